"""Rows as records: what Spark writes is what the Python side writes."""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.declare.schema import key_text
from headwater.declare.schema import wire as plain
from headwater.declare.spec import View
from headwater.pipeline.wire import wire

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


ODD = [
    "",
    "a",
    "[null]",
    "[",
    '["a"]',
    "[1,2]",
    "null",
    "\x00",
    "\x01\x1f\x7f",
    "\u2028",
    "😀",
    "é",
    'q"',
    "back\\slash",
    "/",
    "<b>",
    "\t\n\r\b\f",
]


def test_the_key_of_any_text_is_the_same_from_spark_and_from_python(spark):
    rows = spark.createDataFrame([(each, 1) for each in [*ODD, None]], "s STRING, n INT")
    alone, both = (wire.key_expression(rows.schema, key) for key in (("s",), ("s", "n")))
    found = rows.selectExpr("s", f"{alone} AS alone", f"{both} AS both").collect()
    assert [(row.alone, row.both) for row in found] == [
        (key_text([row.s]), key_text([row.s, 1])) for row in found
    ]
    assert len({row.alone for row in found}) == len(found)


SAME = [
    "CAST(0.0 AS DOUBLE)", "CAST(-0.0D AS DOUBLE)", "CAST('NaN' AS DOUBLE)", "CAST(1.5 AS DOUBLE)", "CAST(NULL AS DOUBLE)",
]  # fmt: skip
IDENTITIES = {
    "doubles": SAME,
    "floats": [each.replace("DOUBLE", "FLOAT") for each in SAME],
    "texts": ["'[null]'", "CAST(NULL AS STRING)", "'a'", "'[a'", "'[[a'", "''", "'[[null]'", "'[null'"],
    "arrays": ["array('a, b')", "array('a', 'b')", "array('a')", "CAST(array(NULL) AS ARRAY<STRING>)", "CAST(NULL AS ARRAY<STRING>)", "array('[null]')"],
    "arrays of doubles": ["array(0.0D)", "array(-0.0D)", "array(double('NaN'))", "array(0.0D, 0.0D)"],
    "structs": [
        "named_struct('a', 1, 'b', 'x')", "named_struct('a', 1, 'b', CAST(NULL AS STRING))", "named_struct('a', 2, 'b', 'x')",
        "CAST(NULL AS STRUCT<a: INT, b: STRING>)",
    ],
    "spans": [
        "named_struct('start', TIMESTAMP'2026-01-01 00:00:00Z', 'end', TIMESTAMP'2026-01-01 01:00:00Z')",
        "named_struct('start', TIMESTAMP'2026-01-01 00:00:00Z', 'end', TIMESTAMP'2026-01-01 02:00:00Z')",
    ],
    "binary": ["X'00'", "X''", "CAST(NULL AS BINARY)", "X'0000'"],
}  # fmt: skip


def test_operators_distinguish_keys_exactly_as_sql_does(spark):
    for name, values in IDENTITIES.items():
        rows = spark.sql(
            f"SELECT * FROM VALUES {', '.join(f'({n}, {each})' for n, each in enumerate(values))} AS t(n, k)"
        )
        by_sql = {frozenset(row.n) for row in rows.groupBy("k").agg(F.collect_set("n").alias("n")).collect()}
        for key in (("k",), ("k", "one")):
            one = rows.selectExpr("*", "1 AS one")
            text = F.expr(wire.identity_expression(one.schema, key)).alias("text")
            by_text = {
                frozenset(row.n) for row in one.groupBy(text).agg(F.collect_set("n").alias("n")).collect()
            }
            assert by_text == by_sql, name


@pytest.mark.parametrize("made", ["map('a', 1)", "'a' COLLATE UTF8_LCASE", "parse_json('1')"])
def test_an_operator_refuses_a_key_that_has_no_exact_text(spark, made):
    rows = spark.sql(f"SELECT {made} AS k")
    with pytest.raises(hw.UsageError, match="column 'k' cannot be a key"):
        wire.identity_expression(rows.schema, ("k",))
