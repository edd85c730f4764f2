"""Tables of changes: Arrow parses a batch as we parse its rows, and a value that does not fit is named."""

import datetime as dt
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.change import Change
from headwater.sink.store import Poison
from headwater.sink.stores.arrow_rows import ArrowTables

COLUMNS = {
    "yes": "BOOLEAN",
    "tiny": "TINYINT",
    "big": "BIGINT",
    "real": "DOUBLE",
    "word": "STRING",
    "at": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "words": "ARRAY<STRING>",
    "maker": "STRUCT<`name`: STRING, `since`: INT, `marks`: ARRAY<BIGINT>>",
}
EARLIEST, LATEST = (dt.datetime.fromisoformat(f"{year}-01-01") for year in (1900, 2200))
TIMES = st.datetimes(EARLIEST, LATEST).map(lambda at: at.isoformat(timespec="microseconds"))
REAL = st.floats(allow_nan=False, allow_infinity=False)
ANY = st.none() | st.integers() | REAL | st.text() | st.booleans() | st.lists(st.integers(), max_size=2)
NONE = st.nothing()
FITTING = {
    "yes": st.booleans(),
    "tiny": st.integers(-128, 127),
    "big": st.integers(-(2**63), 2**63 - 1),
    "real": REAL | st.sampled_from(["NaN", "Infinity", "-Infinity"]),
    "word": st.text(),
    "at": TIMES.map(lambda at: f"{at}Z"),
    "local": TIMES,
    "words": st.lists(st.none() | st.text(), max_size=3),
    "maker": st.fixed_dictionaries(
        {}, optional={"name": st.text(), "since": st.integers(0, 3000), "marks": st.lists(st.integers(0, 9))}
    ),
}


def rows(columns, odd=NONE):
    fields = {name: st.none() | each | odd for name, each in columns.items()}
    return st.lists(st.none() | st.fixed_dictionaries({"more": ANY}, optional=fields), max_size=6)


def changes(values):
    return [
        Change(str(n), None if value is None else json.dumps(value), 0, n, 0)
        for n, value in enumerate(values)
    ]


def keys(found):
    return [[each.key for each in found]]


def by_rows(columns):
    """One that never asks Arrow's reader."""
    arrow = ArrowTables(columns, {"_key": "STRING"})
    arrow._json = None
    return arrow


def outcome(arrow, values):
    try:
        return arrow.table(changes(values), keys).combine_chunks()
    except Poison as error:
        return error.offset


@given(rows(FITTING))
@example([])
@example([None, None])
@example([{"at": "2026-01-31T10:00:00+02:00"}, {"at": "2026-01-31T10:00:00"}])
@example([{"real": "NaN"}, {"real": 1e300}])
@example([{"real": "Infinity"}])
def test_what_arrow_reads_by_itself_is_what_is_read_row_by_row(values):
    found = outcome(ArrowTables(COLUMNS, {"_key": "STRING"}), values)

    expected = outcome(by_rows(COLUMNS), values)
    assert found.schema == expected.schema
    assert str(found.to_pylist()) == str(expected.to_pylist())  # as text: NaN is not itself


@given(rows(FITTING, odd=ANY))
@example([{"real": 1.0}, {"real": 10**400}])
@example([{"word": "\ud800"}])
@example([{"at": "2026-01-31T10:00:00Z"}, {"at": "2026-01-31"}])
@example([{"at": "2026-01-31T10:00+02:00"}])
@example([{"local": "2026-01-31T10:00"}])
@settings(max_examples=300)
def test_what_does_not_fit_is_named_as_if_it_were_read_row_by_row(values):
    found, expected = (
        outcome(ArrowTables(COLUMNS, {"_key": "STRING"}), values),
        outcome(by_rows(COLUMNS), values),
    )

    if isinstance(expected, int) or isinstance(found, int):
        assert found == expected
    else:
        assert str(found.to_pylist()) == str(expected.to_pylist())


@pytest.mark.parametrize(
    "column", ["BINARY", "DATE", "DECIMAL(9,2)", "MAP<STRING,INT>", "ARRAY<DOUBLE>", "ARRAY<TIMESTAMP>"]
)
def test_what_arrow_reads_in_another_way_is_left_to_us(column):
    assert ArrowTables({"a": column}, {})._json is None


def test_the_whole_of_a_batch_is_read_by_arrow(monkeypatch):
    arrow = ArrowTables(COLUMNS, {"_key": "STRING"})
    monkeypatch.setattr(arrow, "_row", None)

    table = arrow.table(changes([{"word": "x\n" * n, "big": n} for n in range(5_000)]), keys)

    assert table.column("big").to_pylist() == list(range(5_000))
