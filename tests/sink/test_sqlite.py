"""SQLite as the store of a sink."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headwater.change import Change
from headwater.errors import UnavailableError
from headwater.sink import Sqlite
from headwater.sink.store import Poison, SinkFeed
from sink.contract import COLUMNS, batch, change, feed
from sink.sqlcontract import SqlContract, row


class SqlitePlace:
    def __init__(self, path) -> None:
        self.path = path
        self.target = Sqlite(path)
        self.history = Sqlite(path, history=True)

    def query(self, text: str) -> list:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(text).fetchall()
        finally:
            connection.close()

    def save(self) -> Path:
        saved = self.path.with_suffix(".copy")
        copy(self.path, saved)
        return saved

    def restore(self, saved: Path) -> None:
        copy(saved, self.path)

    def write_format(self, of: SinkFeed, number: int | None) -> None:  # noqa: ARG002  all sinks share it
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            if number is None:
                connection.execute("DROP TABLE headwater_format")
            else:
                connection.execute("UPDATE headwater_format SET format = ?", (number,))

    def rows(self, of: SinkFeed) -> dict:
        found = self.query(f'SELECT id, total, "at", items FROM "{of.topic}"')
        return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in found}


def copy(source: Path, target: Path) -> None:
    """As the command ``.restore`` does it."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


@pytest.fixture
def place(tmp_path):
    return SqlitePlace(tmp_path / "rows.db")


class TestSqlite(SqlContract):
    """The contracts, on a file of its own for each test."""


def stored(place, of: SinkFeed, *changes: Change) -> list:
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
    of = SinkFeed("s", "t", ("i",), kinds)
    value = {
        "i": 2**62, "d": 1.5, "s": "a\u0000b 'é", "b": True,
        "t": "2026-01-31T10:00:00.000001Z", "y": "2026-01-31",
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
    of = SinkFeed("s", "t", ("i",), {"i": "INT", "s": "STRING"})
    store = place.target.open(of)
    store.claim([0])

    with pytest.raises(Poison) as found:
        store.apply(batch(row({"i": 1, "s": "a"}, 4, "1"), row(bad, 5, "2"), row({"i": 3}, 6, "3")))

    assert (found.value.partition, found.value.offset) == (0, 5)
    assert place.query("SELECT * FROM t") == []
    assert dict(store.claim([0])) == {}
    store.close()


def test_a_full_disk_is_waited_for(place, tmp_path):
    store = place.target.open(feed())
    store.claim([0])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    many = [change(f"k{n}" * 20, n, n) for n in range(2000)]

    with pytest.raises(UnavailableError, match="full"):
        store.apply(batch(*many))

    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert dict(store.claim([0])) == {}
    store.apply(batch(*many))
    assert len(place.rows(feed())) == 2000
    store.close()
