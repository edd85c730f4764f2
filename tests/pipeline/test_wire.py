"""Rows as records: what Spark writes is what the Python side writes."""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest

import headwater as hw
from headwater.graph import View
from headwater.pipeline import wire
from headwater.schema import key_text
from headwater.schema import wire as plain

pytestmark = pytest.mark.spark

DDL = (
    "i BIGINT, f DOUBLE, s STRING, b BOOLEAN, t TIMESTAMP, d DATE, n DECIMAL(38,9), x BINARY, "
    "a ARRAY<DECIMAL(5,2)>, o STRUCT<n: DECIMAL(5,2), t: TIMESTAMP>, z STRING"
)
MOMENT = datetime(2026, 1, 5, 9, 0, 0, 120, tzinfo=UTC)
ROW = {
    "i": 2**40,
    "f": 1.5,
    "s": 'ü "quoted" \\ line\n',
    "b": True,
    "t": MOMENT,
    "d": date(2026, 1, 5),
    "n": Decimal("0.000000001"),
    "x": b"\x00\xff",
    "a": [Decimal("1.50")],
    "o": {"n": Decimal("2.00"), "t": MOMENT},
    "z": None,
}


def written(frame, view):
    sql = wire.expressions(frame.schema, view)
    return wire.records(frame, sql, view="it's", run="run", batch="3").collect()[0]


def record(spark, *key):
    view = View("v", key, {})
    frame = spark.createDataFrame([tuple(ROW.values())], DDL)
    wire.check(frame, view)
    return written(frame, view)


def test_values_are_in_the_wire_form(spark):
    expected = {name: plain(value) for name, value in ROW.items()}
    expected["o"] = {name: plain(value) for name, value in ROW["o"].items()}
    assert msgspec.json.decode(record(spark, "i").value) == expected


@pytest.mark.parametrize("name", ["i", "s", "b", "t", "d", "n", "x", "z"])
def test_a_key_of_one_column_is_its_text(spark, name):
    assert record(spark, name).key == key_text([ROW[name]])


def test_headers_are_bytes_by_name(spark):
    assert {header.key: bytes(header.value) for header in record(spark, "i").headers} == {
        "view": b"it's",
        "run": b"run",
        "batch": b"3",
    }


def test_a_key_of_several_columns_is_a_compact_array(spark):
    names = ["i", "s", "b", "t", "d", "n", "x", "z"]
    assert record(spark, *names).key == key_text([ROW[name] for name in names])


def test_a_window_in_a_key_is_its_start(spark):
    frame = spark.sql(
        "SELECT window(TIMESTAMP '2026-01-05T09:03:00Z', '5 minutes') AS window, 'de' AS country"
    )
    both = written(frame, View("v", ("window", "country"), {}))
    alone = written(frame, View("v", ("window",), {}))
    assert both.key == '["2026-01-05T09:00:00.000000Z","de"]'
    assert alone.key == "2026-01-05T09:00:00.000000Z"


def test_columns_of_ours_are_left_out_but_the_version(spark):
    frame = spark.sql("SELECT 1 AS k, 2 AS _topic, 3 AS _version")
    value = written(frame, View("v", ("k",), {})).value
    assert value == '{"k":1,"_version":3}'


@pytest.mark.parametrize("name", ["f", "a", "o"])
def test_a_key_without_an_exact_text_is_refused(spark, name):
    with pytest.raises(hw.UsageError, match=f"key column '{name}' has no exact text"):
        record(spark, name)
