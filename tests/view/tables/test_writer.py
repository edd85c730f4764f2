"""The SQLite table of a view: rows and position move together, and nothing moves them twice."""

import sqlite3
from contextlib import closing

import pytest

from headwater.change import Change
from headwater.errors import StorageError
from headwater.position import Position
from headwater.testing import SettableClock
from headwater.view.tables import deleted_keys
from headwater.view.tables.deleted_keys import TOMBSTONES_MAX
from headwater.view.tables.reader import ViewTable
from headwater.view.tables.writer import SqliteTable


@pytest.fixture
def path(tmp_path):
    return tmp_path / "revenue.db"


@pytest.fixture
def table(path):
    table = SqliteTable(path)
    yield table
    table.close()


def change(key, value, offset, partition=0, version=None):
    return Change(key, value, partition, offset, timestamp_ms=1000 + offset, version=version)


def at(offset, partition=0):
    return Position({"revenue": {partition: offset}})


def stored(path):
    return {row.key: row.value for row in ViewTable(path).rows().rows}


def test_rows_and_position_are_there_after_reopening(table, path):
    table.apply([change("DE", '{"total":1}', 0), change("FR", '{"total":2}', 1)], at(2))
    table.close()

    again = SqliteTable(path)

    assert again.position().of("revenue") == {0: 2}
    assert stored(path) == {"DE": '{"total":1}', "FR": '{"total":2}'}
    again.close()


def test_the_same_records_applied_twice_change_nothing(table, path):
    changes = [change("DE", '{"total":1}', 0), change("DE", '{"total":2}', 1)]
    assert len(table.apply(changes, at(2))) == 1
    before = path.read_bytes()

    assert table.apply(changes, at(2)) == []

    assert stored(path) == {"DE": '{"total":2}'}
    assert path.read_bytes() == before


def test_an_overlapping_batch_applies_only_what_is_new(table, path):
    table.apply([change("DE", '{"total":1}', 0), change("DE", '{"total":2}', 1)], at(2))

    applied = table.apply([change("DE", '{"total":1}', 0), change("FR", '{"total":9}', 2)], at(3))

    assert [c.key for c in applied] == ["FR"]
    assert stored(path) == {"DE": '{"total":2}', "FR": '{"total":9}'}


def test_a_failed_write_moves_neither_rows_nor_position(table, path):
    table.apply([change("DE", '{"total":1}', 0)], at(1))
    bad = Change("FR", object(), 0, 1, 1001)

    with pytest.raises(StorageError, match=r"revenue\.db"):
        table.apply([change("DE", '{"total":7}', 1), bad], at(3))

    assert stored(path) == {"DE": '{"total":1}'}
    assert table.position() == ViewTable(path).position()
    assert table.position().of("revenue") == {0: 1}


def test_partitions_have_offsets_of_their_own(table):
    table.apply([change("DE", "{}", 5, partition=0)], at(6))
    table.apply([change("FR", "{}", 0, partition=1)], at(1, partition=1))

    assert table.position().of("revenue") == {0: 6, 1: 1}


def test_a_deleted_key_is_gone_but_a_resuming_reader_learns_of_it(table, path):
    table.apply([change("DE", '{"total":1}', 0), change("FR", '{"total":2}', 1)], at(2))
    position = table.position()

    table.apply([change("DE", None, 2)], at(3))

    assert stored(path) == {"FR": '{"total":2}'}
    since = ViewTable(path).since(position, 10)
    assert [(row.key, row.value) for row in since.rows] == [("DE", None)]


def rows_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM row").fetchone()[0]


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def churning(path, clock):
    """A table whose keys live for a minute each, like sessions and windows: they come and are deleted."""
    table = SqliteTable(path, clock)
    made = iter(range(1_000_000))

    def churn(keys, seconds):
        for _ in range(keys):
            n = next(made)
            table.apply([change(f"s{n}", '{"n":1}', 2 * n)], at(2 * n + 1))
            clock.advance(seconds)
            table.tidy()
            table.apply([Change(f"s{n}", None, 0, 2 * n + 1, 0)], at(2 * n + 2))

    yield table, churn
    table.close()


def test_a_file_does_not_grow_with_keys_that_come_and_go(churning, path):
    _, churn = churning
    churn(100, 60)
    early = rows_in(path)
    churn(400, 60)

    assert stored(path) == {}
    assert rows_in(path) <= early
    assert rows_in(path) < 70


def test_a_reader_who_resumes_within_an_hour_learns_of_deletions(churning, path, clock):
    table, churn = churning
    churn(200, 60)
    left = table.position()
    churn(50, 60)
    clock.advance(5 * 60)
    table.tidy()

    since = ViewTable(path).since(left, 1_000)
    assert [row.key for row in since.rows] == [f"s{n}" for n in range(200, 250)]
    assert {row.value for row in since.rows} == {None}


def test_a_reader_who_was_away_for_longer_than_deletions_are_known_is_given_a_snapshot(churning, path):
    table, churn = churning
    churn(10, 60)
    left = table.position()
    churn(100, 60)

    assert ViewTable(path).since(left, 1_000) is None
    assert ViewTable(path).since(table.position(), 1_000).rows == ()


def test_a_reader_who_was_away_while_nothing_was_deleted_resumes_after_days(table, path, clock):
    table.apply([change("DE", '{"n":1}', 0)], at(1))
    left = table.position()
    table.close()
    again = SqliteTable(path, clock)
    again.tidy()
    clock.advance(3 * 86_400)
    again.tidy()
    again.apply([change("DE", '{"n":2}', 1)], at(2))

    assert [row.key for row in ViewTable(path).since(left, 10).rows] == ["DE"]
    again.close()


def test_many_deletions_at_once_are_forgotten_beyond_those_that_a_reader_can_get(path, clock):
    table = SqliteTable(path, clock)
    keys = [f"s{n}" for n in range(12_000)]
    table.apply([change(key, '{"n":1}', n) for n, key in enumerate(keys)], at(12_000))
    before = table.position()
    table.apply([change(key, None, 12_000 + n) for n, key in enumerate(keys)], at(24_000))
    table.tidy()

    assert rows_in(path) == TOMBSTONES_MAX
    assert ViewTable(path).since(before, 20_000) is None
    kept = Position({"revenue": {0: 14_000}}, before.build)
    assert len(ViewTable(path).since(kept, 20_000).rows) == TOMBSTONES_MAX
    table.close()


def test_a_file_of_an_earlier_version_forgets_its_old_deletions(table, path, clock, monkeypatch):
    monkeypatch.setattr(deleted_keys, "PRUNE_ROWS", 7)
    table.apply([change(f"s{n}", None, n) for n in range(50)], at(50))
    table.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP INDEX row_deleted; DROP TABLE mark; DROP TABLE floor;")
    assert ViewTable(path).since(Position({"revenue": {0: 3}}, ViewTable(path).position().build), 50)

    again = SqliteTable(path, clock)
    again.tidy()
    assert rows_in(path) == 50
    clock.advance(3_700)
    for left in (43, 36, 29, 22, 15, 8, 1, 0):
        again.tidy()
        assert rows_in(path) == left
    again.close()


def test_a_deleted_key_can_come_back(table, path):
    table.apply([change("DE", '{"total":1}', 0, version=9), change("DE", None, 1)], at(2))
    table.apply([change("DE", '{"total":5}', 2, version=1)], at(3))

    assert stored(path) == {"DE": '{"total":5}'}


def test_a_row_that_is_published_again_is_dropped(table, path):
    table.apply([change("DE", '{"n":31}', 0, version=31)], at(1))

    applied = table.apply([change("DE", f'{{"n":{n}}}', n, version=n) for n in range(1, 32)], at(32))

    assert applied == []
    assert stored(path) == {"DE": '{"n":31}'}
    assert table.position().of("revenue") == {0: 32}
    assert len(table.apply([change("DE", '{"n":32}', 32, version=32)], at(33))) == 1


def test_versions_decide_inside_one_batch_too(table, path):
    changes = [change("DE", f'{{"n":{n}}}', i, version=n) for i, n in enumerate([1, 2, 3, 1, 2])]

    applied = table.apply(changes, at(5))

    assert [c.version for c in applied] == [3]
    assert stored(path) == {"DE": '{"n":3}'}


def test_a_reset_table_is_empty_and_has_a_greater_build(table, path):
    table.apply([change("DE", "{}", 0)], at(1))
    before = table.position()

    table.reset("topic-two")

    assert stored(path) == {}
    assert table.position().build > before.build
    assert table.position().of("revenue") == {}
    assert table.origin == "topic-two"
    assert ViewTable(path).since(before, 10) is None


def test_a_file_of_an_older_format_is_filled_again_from_the_log(path, caplog):
    old = sqlite3.connect(path)
    old.executescript("CREATE TABLE something (a); PRAGMA user_version = 0;")
    old.close()

    table = SqliteTable(path)

    assert table.position().of("revenue") == {}
    assert "filling it again" in caplog.text
    table.close()


def test_a_file_that_is_not_a_table_is_one_clear_error(path):
    path.write_bytes(b"this is not a database, and was never meant to be one" * 100)

    with pytest.raises(StorageError, match=r"revenue\.db.*remove the file"):
        SqliteTable(path)


def test_a_row_deleted_and_inserted_again_in_one_batch_takes_the_place_of_a_greater_version(table, path):
    table.apply([change("DE", '{"total":10}', 0, version=10)], at(1))

    applied = table.apply([change("DE", None, 1), change("DE", '{"total":3}', 2, version=3)], at(3))

    assert stored(path) == {"DE": '{"total":3}'}
    assert [each.offset for each in applied] == [2]
