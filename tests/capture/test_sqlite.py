"""A SQLite source: every connection's commits in order, through changes of the schema and a reader that is killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from headwater.capture.source import Part
from headwater.capture.sqlite.source import RESTART, SqliteSource
from headwater.capture.sqlite.triggers import install, last_number, remove
from headwater.errors import CaptureError
from support.capturedb import applied, changes, records, until
from support.servers import wait_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def db(path):
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    yield connection
    connection.close()


def read(path, db, position, *tables):
    source = SqliteSource("shop", path, tables or ["t"])
    try:
        return until(source.read(position), str(last_number(db)))
    finally:
        source.close()


def test_changes_come_in_debeziums_envelope(path, db):
    install(db, ["t"])
    db.execute("INSERT INTO t VALUES (1, 'é')")
    db.execute("UPDATE t SET a = 2")
    db.execute("UPDATE t SET id = 3")
    db.execute("DELETE FROM t")
    parts = read(path, db, "0")

    assert changes(parts) == [
        ("c", None, {"id": 1, "a": "é"}),
        ("u", {"id": 1, "a": "é"}, {"id": 1, "a": 2}),
        ("d", {"id": 1, "a": 2}, None),
        ("x", {"id": 1}, None),
        ("c", None, {"id": 3, "a": 2}),
        ("d", {"id": 3, "a": 2}, None),
        ("x", {"id": 3}, None),
    ]
    value = json.loads(records(parts)[0].value)
    assert (records(parts)[0].topic, records(parts)[0].key) == ("shop.t", b'{"id":1}')
    assert (value["source"]["connector"], value["source"]["change"]) == ("sqlite", 1)


def test_values_keep_the_type_they_were_stored_with(path, db):
    given = [None, 1, -(2**63), 0.1, 1e308, float("inf"), "", "1", 'q"\\\n😀', b"\x00\xff", "tail\x00"]
    expected = [None, 1, -(2**63), 0.1, 1e308, "Infinity", "", "1", 'q"\\\n😀', "AP8=", "tail\x00"]
    install(db, ["t"])
    db.executemany("INSERT INTO t(a) VALUES (?)", [(value,) for value in given])

    assert [after["a"] for _, _, after in changes(read(path, db, "0"))] == expected
    assert [after["a"] for _, _, after in changes(read(path, db, None))] == expected


def test_what_is_rolled_back_is_not_seen_and_transactions_are_whole(path, db):
    install(db, ["t"])
    db.execute("BEGIN")
    db.execute("INSERT INTO t VALUES (1, 1)")
    db.execute("SAVEPOINT s")
    db.execute("INSERT INTO t VALUES (2, 2)")
    db.execute("ROLLBACK TO s")
    source = SqliteSource("shop", path, ["t"])
    assert next(source.read("0")) == Part([], None)
    source.close()
    db.executemany("INSERT INTO t VALUES (?, 0)", [(n,) for n in range(3, 5003)])
    db.execute("COMMIT")
    parts = read(path, db, "0")

    assert [after["id"] for _, _, after in changes(parts)] == [1, *range(3, 5003)]
    assert [part.position for part in parts] == [None, None, "5001"]


def test_a_snapshot_that_races_with_writers_fits_the_stream(path, db):
    db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY, a)")
    db.executemany("INSERT INTO t VALUES (?, 0)", [(n,) for n in range(3000)])
    stop = threading.Event()

    def write(seed):
        own = sqlite3.connect(path, isolation_level=None, timeout=30)
        n = 0
        while not stop.is_set():
            n += 1
            own.execute("BEGIN IMMEDIATE")
            own.execute("UPDATE t SET a = a + 1 WHERE id = ?", (n * 7 % 3000,))
            own.execute("INSERT INTO u(a) VALUES (?)", (seed,))
            own.execute("DELETE FROM t WHERE id = ? AND a > 1", (n * 13 % 3000,))
            own.execute("COMMIT")
            stop.wait(0.002)
        own.close()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    source = SqliteSource("shop", path, ["t", "u"])
    parts = source.read(None)
    found = []
    try:
        for _ in range(25):
            part = next(parts)
            found.append(part)
            if part.position:
                source.confirm(part.position)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    db.execute("INSERT INTO u(a) VALUES (9)")  # the end may have been read already
    found += until(parts, str(last_number(db)))
    source.close()

    rows = applied(records(found))
    for table in "tu":
        truth = {f'{{"id":{i}}}'.encode(): {"id": i, "a": a} for i, a in db.execute(f"SELECT * FROM {table}")}
        assert rows[f"shop.{table}"] == truth


def test_entries_are_deleted_once_they_are_confirmed_and_numbers_continue(path, db):
    source = SqliteSource("shop", path, ["t"])
    parts = source.read(None)
    until(parts, "0")
    for number in (1, 2):
        db.execute("INSERT INTO t(a) VALUES (1)")
        until(parts, str(number))
        source.confirm(str(number))
        assert db.execute("SELECT count(*) FROM _headwater_changes").fetchone() == (0,)
    source.close()

    with pytest.raises(CaptureError, match="another capture has read them"):
        read(path, db, "1")
    with pytest.raises(CaptureError, match="older than its capture"):
        read(path, db, "3")


def test_a_changed_table_continues_with_all_its_values(path, db):
    source = SqliteSource("shop", path, ["t"])
    parts = source.read(None)
    until(parts, "0")
    db.execute("INSERT INTO t VALUES (1, 1)")
    db.execute("ALTER TABLE t ADD COLUMN b DEFAULT 'd'")
    db.execute("INSERT INTO t VALUES (2, 2, 'unseen by the old trigger')")
    db.execute("ALTER TABLE t RENAME COLUMN a TO c")
    found = [next(parts)]
    while not any(b'"c":2' in (r.value or b"") for part in found for r in part.records):
        found.append(next(parts))
    db.execute("UPDATE t SET b = 'e' WHERE id = 1")
    found += until(parts, str(last_number(db)))
    source.close()

    rows = applied(records(found))["shop.t"]
    assert list(rows.values()) == [
        {"id": 1, "c": 1, "b": "e"},
        {"id": 2, "c": 2, "b": "unseen by the old trigger"},
    ]
    shown = [json.loads(r.value) for r in records(found, schema=True) if r.topic == "shop.schema"]
    assert [c["name"] for c in shown[-1]["columns"]] == ["id", "c", "b"]


def test_a_table_that_was_created_again_is_emptied_and_filled(path, db):
    db.execute("INSERT INTO t VALUES (1, 1)")
    source = SqliteSource("shop", path, ["t"])
    parts = source.read(None)
    found = until(parts, "0")
    db.execute("BEGIN")
    db.execute("DROP TABLE t")
    db.execute("CREATE TABLE t(name TEXT PRIMARY KEY)")
    db.execute("INSERT INTO t VALUES ('x')")
    db.execute("COMMIT")
    found += until(parts, "2")
    source.close()

    assert applied(records(found))["shop.t"] == {b'{"name":"x"}': {"name": "x"}}


def test_a_table_that_is_added_later_comes_with_its_rows(path, db):
    db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY)")
    db.execute("INSERT INTO u VALUES (1), (2)")
    install(db, ["t"])
    position = read(path, db, None)[-1].position
    db.execute("DELETE FROM u WHERE id = 1")
    source = SqliteSource("shop", path, ["t", "u"])
    parts = source.read(position)
    found = [next(part for part in parts if part.records)]
    db.execute("INSERT INTO u VALUES (3)")
    found += until(parts, str(last_number(db)))
    source.close()

    assert [row["id"] for row in applied(records(found))["shop.u"].values()] == [2, 3]


def test_a_capture_that_starts_again_forgets_rows_that_are_gone(path, db):
    db.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    install(db, ["t"])
    first = read(path, db, None)
    remove(db)
    db.execute("DELETE FROM t WHERE id = 1")
    again = read(path, db, RESTART)

    assert [row["id"] for row in applied(records(first + again))["shop.t"].values()] == [2]


def test_replaced_rows_show_their_delete_with_recursive_triggers(path, db):
    db.execute("CREATE UNIQUE INDEX one ON t(a)")
    install(db, ["t"])
    db.execute("PRAGMA recursive_triggers = ON")
    db.execute("INSERT INTO t VALUES (1, 'same')")
    db.execute("INSERT OR REPLACE INTO t VALUES (2, 'same')")

    assert [op for op, _, _ in changes(read(path, db, "0"))] == ["c", "d", "x", "c"]


def test_triggers_are_removed_without_a_trace_and_missed_by_the_reader(path, db):
    before = db.execute("SELECT name, sql FROM sqlite_master").fetchall()
    install(db, ["t"])
    db.execute("INSERT INTO t VALUES (1, 1)")
    remove(db)

    after = db.execute("SELECT name, sql FROM sqlite_master").fetchall()
    assert [row for row in after if row[0] != "sqlite_sequence"] == before
    with pytest.raises(CaptureError, match="take a new snapshot"):
        read(path, db, "0")


def test_a_missing_table_or_file_is_refused(path, db, tmp_path):
    with pytest.raises(CaptureError, match="there is no table none"):
        next(SqliteSource("shop", path, ["none"]).read(None))
    with pytest.raises(CaptureError, match="there is no database"):
        next(SqliteSource("shop", tmp_path / "none.db", ["t"]).read(None))


READER = """
import json, sys
from headwater.capture.source import Part
from headwater.capture.sqlite.source import RESTART, SqliteSource
source = SqliteSource("shop", sys.argv[1], ["t"])
out = open(sys.argv[2], "a")
for part in source.read(sys.argv[3] if len(sys.argv) > 3 else None):
    if part.records or part.position:
        rows = [json.loads(r.value)["after"] for r in part.records if r.value and r.topic == "shop.t"]
        out.write(json.dumps([part.position, rows]) + "\\n")
        out.flush()
        if part.position:
            source.confirm(part.position)
"""


def test_a_killed_reader_continues_without_a_gap(path, db, tmp_path):
    out = tmp_path / "out"
    out.touch()
    install(db, ["t"])

    def lines():
        return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("]")]

    for _ in range(3):
        done = [line for line in lines() if line[0]]
        arguments = [done[-1][0]] if done else []
        reader = subprocess.Popen([sys.executable, "-c", READER, path, out, *arguments])
        try:
            for _ in range(200):
                db.execute("INSERT INTO t(a) VALUES (0)")
            wait_until(lambda seen=done: len([line for line in lines() if line[0]]) > len(seen))
        finally:
            os.kill(reader.pid, signal.SIGKILL)
            reader.wait()
    db.execute("INSERT INTO t(a) VALUES (0)")
    position = [line for line in lines() if line[0]][-1][0]
    rest = [after["id"] for _, _, after in changes(read(path, db, position))]

    assert [row["id"] for _, rows in lines() for row in rows] + rest == list(range(1, 602))


def test_a_key_that_is_renamed_empties_the_table_before_its_rows_come_again(path, db):
    install(db, ["t"])
    db.execute("INSERT INTO t VALUES (1, 'a')")
    db.execute("ALTER TABLE t RENAME id TO no")
    install(db, ["t"], rows=True)
    parts = read(path, db, "0")

    assert [op for op, _, _ in changes(parts)] == ["c", "t", "r"]
    assert [part.truncated for part in parts] == [True]
    assert list(applied(records(parts))["shop.t"]) == [b'{"no":1}']
