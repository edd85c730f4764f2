"""Delivery from a real log into view tables."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from headwater.client.client import Client
from headwater.errors import StorageError
from headwater.testing import SettableClock
from headwater.view.tables.delivery import Delivery
from headwater.view.tables.reader import ViewTable
from support.resultlog import Driver
from support.servers import both_logs, wait_settled, wait_until
from support.viewlog import ViewLog

WRITER = """
import sys, pathlib
from headwater.view.tables import delivery
from headwater.view.tables.delivery import Delivery
delivery.BATCH_RECORDS = 50
def said(view, changes, position):
    print(position, flush=True)
Delivery(sys.argv[1], [sys.argv[2]], pathlib.Path(sys.argv[3]), said).run()
"""


@pytest.fixture
def table(tmp_path):
    """The read side of a view's table."""
    return lambda view: ViewTable(tmp_path / "views" / f"{view}.db")


def stored(table):
    return {row.key: row.columns() for row in table.rows().rows}


def test_keys_that_were_deleted_long_ago_leave_the_file(log, tmp_path):
    view = log.create(partitions=2)
    clock, folder = SettableClock(), tmp_path / "views"
    delivery = Delivery(log.log, [view], folder, lambda *_: None, clock=clock)
    delivery.start()
    log.put(view, {f"k{n}": {"n": n} for n in range(20)})
    log.put(view, {f"k{n}": None for n in range(19)})
    wait_until(lambda: len(stored(ViewTable(folder / f"{view}.db"))) == 1, 30, "the row that is left")

    def rows():
        clock.advance(120)
        with closing(sqlite3.connect(folder / f"{view}.db")) as connection:
            return connection.execute("SELECT count(*) FROM row").fetchone()[0]

    assert rows() == 20
    wait_until(lambda: rows() == 1, 60, "the deleted keys are gone")
    delivery.stop()


def test_records_reach_the_table_and_on_commit_in_milliseconds(log, deliver, table):
    view = log.create()
    _, seen = deliver(view)
    log.put(view, {"first": {"n": 0}})
    seen.wait(view, "first")

    took = []
    for n in range(20):
        begun = time.monotonic()
        log.put(view, {f"k{n}": {"n": n}})
        limit = begun + 10
        while not any(c.key == f"k{n}" for c in seen.changes(view)):
            assert time.monotonic() < limit
            time.sleep(0.001)
        took.append(time.monotonic() - begun)

    assert sorted(took)[10] < 0.25  # a shared machine; alone it is about 5 ms
    assert stored(table(view)) == log.expected(view)
    assert seen.commits[-1][2] == table(view).position()


@both_logs
def test_a_restart_continues_at_the_position_of_the_table(log, deliver, table):
    view = log.create()
    first, seen = deliver(view)
    log.put(view, {"a": {"n": 1}, "b": {"n": 1}})
    seen.wait(view, "a")
    seen.wait(view, "b")
    first.stop()
    log.put(view, {"c": {"n": 2}, "a": None})

    _, again = deliver(view)
    again.wait(view, "c")
    again.wait(view, "a")

    assert {c.key for c in again.changes(view)} == {"a", "c"}
    assert stored(table(view)) == {"b": {"n": 1}, "c": {"n": 2}}


@both_logs
def test_topics_and_partitions_that_appear_later_are_picked_up(log, deliver, table):
    late, early = log.name("late"), log.create(partitions=1)
    _, seen = deliver(late, early)
    log.put(early, {"one": {"n": 1}})
    seen.wait(early, "one")

    log.create(late)
    log.put(late, {"two": {"n": 2}})
    seen.wait(late, "two")

    assert stored(table(late)) == {"two": {"n": 2}}


@both_logs
def test_records_that_are_not_rows_are_left_out_and_named(log, deliver, table, caplog):
    view = log.create(partitions=1, policy="delete")  # Kafka refuses a record without key where it compacts
    _, seen = deliver(view)
    log.put(
        view, {"bad": b"{not json", "list": b"[1]", "text": b"\xff\xfe", None: {"n": 1}, "good": {"n": 1}}
    )
    seen.wait(view, "good")

    assert stored(table(view)) == {"good": {"n": 1}}
    assert table(view).position().of(view) == {0: 5}
    assert "4 records are not rows" in caplog.text
    assert f"{view}-0 offset 0" in caplog.text


@both_logs
def test_versions_and_hidden_columns_hold_end_to_end(log, deliver, table):
    view = log.create()
    _, seen = deliver(view)
    for n in (1, 2, 3, 1, 2, 4, 1):
        log.put(view, {"DE": {"n": n, "_version": n}})
    log.put(view, {"DE end": {}, "FR end": {}, "GB end": {}})
    for key in ("DE end", "FR end", "GB end"):
        seen.wait(view, key)

    assert stored(table(view))["DE"] == {"n": 4}


@both_logs
def test_a_topic_made_again_under_the_same_name_rebuilds_its_table(log, deliver, table, caplog):
    view = log.create(partitions=1)
    first, seen = deliver(view)
    log.put(view, {f"old{n}": {"n": n} for n in range(5)})
    seen.wait(view, "old4")
    first.stop()
    before = table(view).position()
    log.delete(view)
    wait_until(lambda: view not in Client(log.log).partitions(), 20, "the deletion")
    log = ViewLog(log.log)  # a producer that never knew the old topic
    log.create(view, partitions=2)
    log.put(
        view, {f"new{n}": {"n": n} for n in range(9)}, partition=0
    )  # more than before: only the id differs
    log.put(view, {"other": {"n": 9}}, partition=1)

    _, again = deliver(view)
    again.wait(view, "new8")
    again.wait(view, "other")

    assert stored(table(view)) == {f"new{n}": {"n": n} for n in range(9)} | {"other": {"n": 9}}
    assert table(view).position().build > before.build
    assert "rebuilding it from" in caplog.text


@both_logs
def test_offsets_that_the_log_does_not_have_rebuild_the_table(log, deliver, table, tmp_path, caplog):
    view = log.create(partitions=1)
    first, seen = deliver(view)
    log.put(view, {"a": {"n": 1}, "b": {"n": 2}})
    seen.wait(view, "b")
    first.stop()
    _write(table(view).path, "UPDATE position SET offset = 1000")
    _write(table(view).path, "INSERT INTO row VALUES ('ghost', '{}', 0, 999, 0, NULL)")

    _, again = deliver(view)
    again.wait(view, "b")

    assert stored(table(view)) == {"a": {"n": 1}, "b": {"n": 2}}
    assert "no longer has the offsets" in caplog.text


def test_a_broker_restart_is_ridden_through(own_broker, deliver, table, caplog):
    log = ViewLog(own_broker.bootstrap)
    view = log.create()
    delivery, seen = deliver(view, address=own_broker.bootstrap)
    log.put(view, {"before": {"n": 1}})
    seen.wait(view, "before")

    own_broker.end(signal.SIGKILL)
    wait_until(lambda: "does not answer" in caplog.text, 20, "the word that the log is away")
    own_broker.start()
    log.put(view, {"after": {"n": 2}})

    seen.wait(view, "after", 30)
    assert stored(table(view)) == {"before": {"n": 1}, "after": {"n": 2}}
    assert len(seen.changes(view)) == 2
    delivery.stop()


def test_a_killed_writer_leaves_rows_and_position_that_belong_together(log, table, tmp_path):
    view = log.create()
    stop = threading.Event()

    def traffic():
        source = random.Random(7)
        count = 0
        while not stop.is_set():
            rows = {f"k{source.randrange(300)}": {"n": count + i} for i in range(200)}
            rows[f"k{source.randrange(300)}"] = None
            count += len(rows)
            log.put(view, rows)

    producing = threading.Thread(target=traffic)
    producing.start()
    try:
        for seed in range(5):
            _run_and_kill(log, view, tmp_path, random.Random(seed).randrange(5, 120))
            position = table(view).position()
            assert stored(table(view)) == log.expected(view, position.of(view))
    finally:
        stop.set()
        producing.join()

    last = Delivery(log.log, [view], tmp_path / "views", lambda *_: None)
    last.start()
    ends = {place[1]: end for place, end in Client(log.log).end_offsets([view]).items()}
    wait_until(lambda: table(view).position().of(view) == ends, 30, "the end of the log")
    last.stop()
    assert stored(table(view)) == log.expected(view)
    assert table(view).position().build == position.build


def test_two_deliveries_into_one_folder_are_refused(log, deliver):
    view = log.create()
    deliver(view)

    with pytest.raises(StorageError, match="in use by another console"):
        deliver(view)


def test_a_failing_disk_ends_delivery_with_its_error(log, deliver, table):
    failures = []
    view = log.create()
    _, seen = deliver(view, on_failure=failures.append)
    log.put(view, {"a": {"n": 1}})
    seen.wait(view, "a")
    _write(table(view).path, "DROP TABLE position")

    log.put(view, {"b": {"n": 2}})

    wait_until(lambda: failures, 20, "the failure")
    assert isinstance(failures[0], StorageError)
    assert "b" not in stored_raw(table(view).path)


def cpu_seconds(but: set[Path]) -> float:
    """The CPU time of this process's threads except ``but``: clients of other tests may be at work too."""
    ticks = 0
    for task in set(Path("/proc/self/task").iterdir()) - but:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_twenty_idle_views_cost_next_to_nothing(log, deliver):
    views = [log.create(partitions=2) for _ in range(20)]
    others = set(Path("/proc/self/task").iterdir())
    _, seen = deliver(*views)
    for view in views:
        log.put(view, {"one": {"n": 1}})
    for view in views:
        seen.wait(view, "one")

    begun, cpu = time.monotonic(), cpu_seconds(others)
    time.sleep(3)  # the measure itself: idle time

    assert (cpu_seconds(others) - cpu) / (time.monotonic() - begun) < 0.05


def _run_and_kill(log, view, tmp_path, commits):
    """Runs a writer in a process of its own and kills it right after so many commits."""
    command = [sys.executable, "-c", WRITER, log.log, view, str(tmp_path / "views")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    for _ in range(commits):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=120)
    process.stdout.close()


def _write(path, statement):
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement)
    connection.close()


def stored_raw(path):
    import sqlite3

    connection = sqlite3.connect(path)
    keys = {key for (key,) in connection.execute("SELECT key FROM row")}
    connection.close()
    return keys


@both_logs
def test_a_new_table_reaches_the_end_of_the_log_though_its_last_records_were_compacted(log, deliver, table):
    view = log.create(partitions=1)
    driver = Driver(log.log, view)
    driver.publish({}, {"DE": b"{}"})
    driver.begin({}, {"DE": b"{}", "FR": b"{}"})
    driver.abort()
    client = Client(log.log)
    wait_settled(client, view)
    (end,) = client.end_offsets([view]).values()

    _, seen = deliver(view)

    wait_until(lambda: table(view).position().of(view) == {0: end}, 20, "the end of the log")
    assert stored(table(view)) == {"DE": {}}
    log.put(view, {"FR": {"n": 1}})
    seen.wait(view, "FR")
    assert stored(table(view)) == {"DE": {}, "FR": {"n": 1}}
