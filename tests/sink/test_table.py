"""The SQLite table of a view: rows and position move together, and nothing moves them twice."""

import sqlite3

import pytest

from headwater.change import Change
from headwater.errors import StorageError
from headwater.position import Position
from headwater.sink import SqliteTable
from headwater.view import ViewTable


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


def test_a_deleted_key_can_come_back(table, path):
    table.apply([change("DE", '{"total":1}', 0, version=9), change("DE", None, 1)], at(2))
    table.apply([change("DE", '{"total":5}', 2, version=1)], at(3))

    assert stored(path) == {"DE": '{"total":5}'}


def test_a_row_whose_version_is_not_greater_is_dropped(table, path):
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


def test_a_file_of_another_format_is_built_anew(path, caplog):
    old = sqlite3.connect(path)
    old.executescript("CREATE TABLE something (a); PRAGMA user_version = 99;")
    old.close()

    table = SqliteTable(path)

    assert table.position().of("revenue") == {}
    assert "building it anew" in caplog.text
    table.close()


def test_a_file_that_is_no_table_is_one_clear_error(path):
    path.write_bytes(b"this is not a database, and was never meant to be one" * 100)

    with pytest.raises(StorageError, match=r"revenue\.db.*remove the file"):
        SqliteTable(path)


def test_a_row_deleted_and_begun_anew_in_one_batch_takes_the_place_of_a_greater_version(table, path):
    table.apply([change("DE", '{"total":10}', 0, version=10)], at(1))

    applied = table.apply([change("DE", None, 1), change("DE", '{"total":3}', 2, version=3)], at(3))

    assert stored(path) == {"DE": '{"total":3}'}
    assert [each.offset for each in applied] == [2]
