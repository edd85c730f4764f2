"""Columns in Spark's notation, and stores whose library is missing."""

import datetime as dt
import json
from decimal import Decimal

import pytest

from headwater.change import Change
from headwater.errors import UsageError
from headwater.sink.batch_rows import newest_changes
from headwater.sink.store import Poison
from headwater.sink.stores.optional_library import import_library
from headwater.sink.stores.spark_types import SparkType, change_reader, parse_type


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", SparkType("BIGINT")),
        ("decimal(38, 9)", SparkType("DECIMAL", (38, 9))),
        ("DECIMAL", SparkType("DECIMAL", (10, 0))),
        ("VARCHAR(20)", SparkType("STRING")),
        ("ARRAY<ARRAY<INT>>", SparkType("ARRAY", (), (SparkType("ARRAY", (), (SparkType("INT"),)),))),
        ("MAP<STRING, DOUBLE>", SparkType("MAP", (), (SparkType("STRING"), SparkType("DOUBLE")))),
        (
            "STRUCT<`a b`: INT NOT NULL COMMENT 'it, is', `c```: DATE>",
            SparkType("STRUCT", (), (SparkType("INT"), SparkType("DATE")), ("a b", "c`")),
        ),
        ("STRUCT<>", SparkType("STRUCT")),
    ],
)
def test_notation_is_read(text, expected):
    assert parse_type(text) == expected


@pytest.mark.parametrize("text", ["", "INTERVAL DAY", "ARRAY", "ARRAY<INT", "MAP<STRING>", "INT INT"])
def test_what_no_store_has_is_one_clear_line(text):
    with pytest.raises(UsageError, match="has no type for a column"):
        parse_type(text)


def test_rows_are_read_by_their_types():
    read = change_reader({"at": "TIMESTAMP", "n": "DECIMAL(38,9)", "x": "DOUBLE", "b": "BINARY", "d": "DATE"})
    row = {
        "at": "2026-01-31T10:00:00.000001Z",
        "n": "1.50",
        "x": "-Infinity",
        "b": "AQI=",
        "d": None,
        "_v": 1,
    }

    assert read(Change("k", json.dumps(row), 0, 7, 0)) == {
        "at": dt.datetime(2026, 1, 31, 10, 0, 0, 1, dt.UTC),
        "n": Decimal("1.50"),
        "x": float("-inf"),
        "b": b"\x01\x02",
        "d": None,
    }
    with pytest.raises(Poison, match=r"does not fit.*\$\.at") as caught:
        read(Change("k", '{"at": 5}', 3, 7, 0))
    assert (caught.value.partition, caught.value.offset) == (3, 7)


def test_the_last_change_of_a_key_wins_unless_its_version_is_smaller():
    def won(*changes):
        rows = newest_changes(
            Change("k", value, 0, n, 0, version) for n, (value, version) in enumerate(changes)
        )
        return rows["k"].change.offset, rows["k"].was_deleted

    assert won(("{}", None), ("{}", None)) == (1, False)
    assert won(("{}", 5), ("{}", 4)) == (0, False)
    assert won(("{}", 5), ("{}", 5), ("{}", 4)) == (1, False)
    assert won(("{}", 5), (None, None), ("{}", 4)) == (2, True)


def test_a_missing_library_says_how_to_get_it():
    with pytest.raises(
        UsageError, match=r"needs the package 'nosuchdriver'; pip install 'headwater\[cache\]'"
    ):
        import_library("nosuchdriver.inner", "cache")
