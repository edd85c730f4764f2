"""SQLite as the store of a sink."""

import json
import sqlite3

import pytest

from headwater.change import Change
from headwater.errors import Away, UsageError
from headwater.sink import Sqlite
from headwater.sink.store import Batch, Dated, Feed, Poison
from sink.contract import COLUMNS, Contract, batch, change, feed


class SqlitePlace:
    def __init__(self, path) -> None:
        self.path = path
        self.target = Sqlite(path)

    def query(self, text: str) -> list:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(text).fetchall()
        finally:
            connection.close()

    def rows(self, of: Feed) -> dict:
        found = self.query(f'SELECT id, total, "at", items FROM "{of.topic}"')
        return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in found}


@pytest.fixture
def place(tmp_path):
    return SqlitePlace(tmp_path / "rows.db")


class TestSqlite(Contract):
    """The contract, on a file of its own for each test."""


def row(value: dict, offset: int = 0, key: str = "k", **more) -> Change:
    return Change(key, json.dumps(value), 0, offset, 1_769_853_600_000, **more)


def stored(place, of: Feed, *changes: Change) -> list:
    store = place.target.open(of)
    store.claim([0])
    store.apply(batch(*changes))
    store.close()
    return place.query(f'SELECT * FROM "{of.topic}" ORDER BY 1')


def test_every_kind_of_value_is_kept(place):
    kinds = {
        "i": "BIGINT",
        "d": "DOUBLE",
        "s": "STRING",
        "b": "BOOLEAN",
        "t": "TIMESTAMP",
        "y": "DATE",
        "n": "DECIMAL(38,9)",
        "x": "BINARY",
        "j": "STRUCT<`a`: INT>",
    }
    of = Feed("s", "t", ("i",), kinds)
    value = {
        "i": 2**62, "d": 1.5, "s": "a\u0000b 'é", "b": True, "t": "2026-01-31T10:00:00.000001Z", "y": "2026-01-31",
        "n": "12345678901234567890.123456789", "x": "AAH/", "j": {"a": [1, "x"]}, "_revision": 7,
    }  # fmt: skip
    empty = dict.fromkeys(kinds) | {"i": 1}
    odd = {"i": 2, "d": "Infinity", "n": 12.5}
    nan = {"i": 3, "d": "NaN"}

    found = stored(
        place, of, row(value, 0, str(2**62)), row(empty, 1, "1"), row(odd, 2, "2"), row(nan, 3, "3")
    )

    assert found[0] == (1, *[None] * 8)
    assert found[1][1] == float("inf")
    assert found[1][6] == "12.5"
    assert found[2][1] == "NaN"
    assert found[3] == (
        2**62,
        1.5,
        "a\u0000b 'é",
        1,
        value["t"],
        value["y"],
        value["n"],
        b"\x00\x01\xff",
        '{"a": [1, "x"]}',
    )


@pytest.mark.parametrize("bad", [{"i": "x"}, {"i": 2**63}, {"i": 1.5}, {"i": 1, "s": 7}])
def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(place, bad):
    of = Feed("s", "t", ("i",), {"i": "INT", "s": "STRING"})
    store = place.target.open(of)
    store.claim([0])

    with pytest.raises(Poison) as found:
        store.apply(batch(row({"i": 1, "s": "a"}, 4, "1"), row(bad, 5, "2"), row({"i": 3}, 6, "3")))

    assert (found.value.partition, found.value.offset) == (0, 5)
    assert place.query("SELECT * FROM t") == []
    assert dict(store.claim([0])) == {}
    store.close()


def test_keys_of_several_columns_with_nulls_and_windows_are_one_row_each(place):
    of = Feed(
        "s",
        "t",
        ("window", "c"),
        {"window": "STRUCT<start: TIMESTAMP, end: TIMESTAMP>", "c": "STRING", "n": "INT"},
    )
    start = "2026-01-31T10:00:00.000000Z"
    window = {"start": start, "end": "2026-01-31T11:00:00.000000Z"}
    key, none = json.dumps([start, "DE"]), json.dumps([start, None])
    of_null = [row({"window": window, "c": None, "n": n}, n, none) for n in (1, 2)]
    of_de = [row({"window": window, "c": "DE", "n": n}, n, key) for n in (3, 4)]

    store = place.target.open(of)
    store.claim([0])
    for each in [*of_null, *of_de]:
        store.apply(batch(each))
    assert place.query("SELECT window_start, c, n FROM t ORDER BY n") == [(start, None, 2), (start, "DE", 4)]
    store.apply(batch(Change(none, None, 0, 5, 0), Change(key, None, 0, 6, 0)))
    assert place.query("SELECT * FROM t") == []
    store.close()


def test_rows_of_an_append_feed_are_identified_by_their_place(place):
    of = Feed("s", "t", ("id",), {"id": "STRING"}, append=True)
    store = place.target.open(of)
    store.claim([0])
    store.apply(batch(row({"id": "a"}, 0, "a"), row({"id": "a"}, 1, "a"), Change("a", None, 0, 2, 0)))
    store.close()

    assert place.query("SELECT * FROM t") == [(0, 0, "a"), (0, 1, "a")]


def test_an_older_version_never_replaces_a_newer_one(place):
    of = Feed("s", "t", ("id",), {"id": "STRING", "n": "INT"}, versioned=True)
    store = place.target.open(of)
    store.claim([0])
    for offset, versions in enumerate([(1, 3, 2), (1,), (5, 4)]):
        changes = [row({"id": "a", "n": v}, 10 * offset + i, "a", version=v) for i, v in enumerate(versions)]
        store.apply(batch(*changes))
    store.close()

    assert place.query("SELECT * FROM t") == [("a", 5, 5)]


def test_new_columns_are_added_and_another_type_is_refused(place):
    def of(**columns: str) -> Feed:
        return Feed("s", "t", ("id",), {"id": "STRING"} | columns)

    stored(place, of(n="INT"), row({"id": "a", "n": 1}))
    assert stored(place, of(m="DOUBLE"), row({"id": "b", "m": 2.5}, 1, "b")) == [
        ("a", 1, None),
        ("b", None, 2.5),
    ]
    with pytest.raises(UsageError, match="column 'n' has another type"):
        place.target.open(of(n="STRING"))


def test_a_store_knows_its_topic_and_when_it_was_complete(place):
    store = place.target.open(feed())
    assert isinstance(store, Dated)
    store.claim([0, 1])
    store.adopt("abc")
    store.apply(batch(change("a", 1, 0)))
    assert store.origin() == "abc"
    assert dict(store.at_ms()) == {0: 1_769_853_600_000}
    store.apply(Batch((), {0: 1}))
    assert store.at_ms()[0] > 1_769_853_600_000
    store.reset()
    assert store.origin() == ""
    assert dict(store.at_ms()) == {}
    store.close()


def test_a_full_disk_is_waited_for(place, tmp_path):
    store = place.target.open(feed())
    store.claim([0])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    many = [change(f"k{n}" * 20, n, n) for n in range(2000)]

    with pytest.raises(Away, match="full"):
        store.apply(batch(*many))

    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert dict(store.claim([0])) == {}
    store.apply(batch(*many))
    assert len(place.rows(feed())) == 2000
    store.close()
