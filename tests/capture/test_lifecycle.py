"""A capture is added to its database and removed from it, also while it runs."""

import signal
import sqlite3
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from headwater.capture import Sqlite
from headwater.capture.loop import lifecycle
from headwater.capture.loop.feed import Feed
from headwater.capture.mariadb.source import MariaDBSource
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.cli.main import cli
from headwater.errors import HeadwaterError
from headwater.node.gate import Gate
from headwater.node.supervisor import Part, Supervisor
from support.captured import CaptureProcess, committed, drop_slots, events, execute, running, streaming, table
from support.capturedb import Shop
from support.servers import wait_until


@pytest.fixture
def name() -> str:
    return f"life{uuid.uuid4().hex[:8]}"


@pytest.fixture
def command(monkeypatch, broker, tmp_path, name):
    """Commands in this process, of an application with one capture."""
    monkeypatch.setenv("HEADWATER_LOG", f"kafka://{broker.bootstrap}")

    def run(verb: str, declared: str) -> str:
        file = tmp_path / "declared.py"
        file.write_text(
            f"import headwater as hw\napp = hw.App('a')\napp.capture({name!r}, hw.capture.{declared})\n"
        )
        result = CliRunner().invoke(cli, ["capture", verb, name, str(file)])
        if isinstance(result.exception, HeadwaterError):
            return f"refused: {result.exception}"
        assert result.exit_code == 0, result.output
        return result.output

    return run


def left(url: str, name: str) -> list[str]:
    """What a capture has in its database."""
    with psycopg.connect(url, autocommit=True) as connection:
        slots = connection.execute(
            f"SELECT 'slot' FROM pg_replication_slots WHERE slot_name = '{slot_name(name)}'"
        )
        made = connection.execute(
            f"SELECT 'publication' FROM pg_publication WHERE pubname = '{slot_name(name)}'"
        )
        return [what for (what,) in [*slots.fetchall(), *made.fetchall()]]


def rows(log: str, topic: str) -> list[int]:
    return sorted(row["id"] for row in table(events(log, topic.partition(".")[0]), topic).values())


def test_a_capture_that_runs_is_removed_and_ends_with_a_clear_line(name, url, broker, tmp_path, command):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    declared, log = f"Postgres({url!r}, ['t'], partitions=1)", broker.bootstrap
    capture = CaptureProcess(tmp_path, name, declared, log)
    capture.start()
    streaming(url, slot_name(name))
    assert "is removed from the database" in command("remove", declared)
    assert left(url, name) == []
    assert capture.wait() == 0
    assert (
        f"capture {name} was removed and ends; `headwater capture add {name} app.py` brings it back"
        in capture.log.read_text()
    )

    capture.start()
    assert capture.wait() == 0, "one that was removed stays ended"
    assert left(url, name) == []
    execute(url, "DELETE FROM t", "INSERT INTO t VALUES (2)")
    assert "is back" in command("add", declared)
    capture.start()
    wait_until(lambda: rows(log, f"{name}.public.t") == [2])
    execute(url, "INSERT INTO t VALUES (3)")
    wait_until(lambda: rows(log, f"{name}.public.t") == [2, 3])
    assert capture.end(signal.SIGTERM) == 0


def test_one_that_stays_waits_without_a_slot_until_it_is_added_again(name, url, broker, command):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    declared, log = f"Postgres({url!r}, ['t'], partitions=1)", broker.bootstrap
    with running(Feed(name, PostgresSource(name, url, ("t",)), log, stays=True)):
        for number in (2, 3):
            streaming(url, slot_name(name))
            command("remove", declared)
            assert "removed" in _status(name)
            execute(url, f"INSERT INTO t VALUES ({number})")
            wait_until(lambda: committed(log, name).removed)
            assert left(url, name) == []
            command("add", declared)
            wait_until(lambda n=number: rows(log, f"{name}.public.t") == list(range(1, n + 1)))
        streaming(url, slot_name(name))


def test_a_supervisor_takes_a_removed_capture_for_no_failure(name, url, broker, tmp_path, command):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    declared, log = f"Postgres({url!r}, ['t'], partitions=1)", broker.bootstrap
    file = tmp_path / "app.py"
    file.write_text(
        f"import headwater as hw\napp = hw.App('a')\napp.capture({name!r}, hw.capture.{declared})\n"
    )
    argv = (sys.executable, "-m", "headwater", "capture", "run", "--supervised", name, str(file))
    supervisor = Supervisor(tmp_path / "up")
    (tmp_path / "run").mkdir()
    Gate(tmp_path).open()  # as the pipeline does
    try:
        supervisor.start(
            Part("capture", argv, environ={"HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path / 'views'}"})
        )
        streaming(url, slot_name(name))
        command("remove", declared)
        wait_until(lambda: "was removed and waits" in supervisor.tail("capture"))
        assert left(url, name) == []
        command("add", declared)
        streaming(url, slot_name(name))
        wait_until(lambda: rows(log, f"{name}.public.t") == [1])
        supervisor.check()
        assert supervisor.restarts() == {}
    finally:
        supervisor.close()


def _status(name: str) -> str:
    return CliRunner().invoke(cli, ["capture", "status", name]).output


def test_a_sqlite_capture_that_runs_puts_no_triggers_back_after_it_was_removed(name, broker, tmp_path: Path):
    log, path = broker.bootstrap, tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
    declared = Sqlite(path, ["item"])
    feed = Feed(name, declared.open(name, tmp_path), log)
    with running(feed):
        db.execute("INSERT INTO item VALUES (1)")
        wait_until(lambda: rows(log, f"{name}.item") == [1])
        lifecycle.remove(log, name, declared.restart_position())
        declared.remove(name)
        wait_until(lambda: feed.state.removed)
    assert db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%headwater%'").fetchall() == []
    db.close()


def test_a_capture_of_mariadb_ends_when_it_is_removed(name, broker, mariadb, command):
    shop = Shop(mariadb, name)
    shop.run("CREATE TABLE t (id int PRIMARY KEY)")
    declared, log = f"MariaDB({mariadb.url!r}, ['{name}.t'])", broker.bootstrap
    said = command("add", declared)
    assert f"tables are there: {name}.t" in said
    assert "logs what a capture needs" in said
    feed = Feed(name, MariaDBSource(name, mariadb.url, [f"{name}.t"]), log)
    with running(feed):
        wait_until(lambda: (state := committed(log, name)) and state.position)
        command("remove", declared)
        wait_until(lambda: feed.state.removed)
    assert f"no table {name}.none" in command("add", f"MariaDB({mariadb.url!r}, ['{name}.none'])")
    shop.connection.close()


def test_adding_prepares_a_database_once_and_the_first_run_continues_from_there(name, url, broker, command):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    declared, log = f"Postgres({url!r}, ['t'], partitions=1)", broker.bootstrap
    first = command("add", declared)
    assert f"publication {slot_name(name)} is created: public.t" in first
    assert f"slot {slot_name(name)} is created" in first
    assert "is ready" in first
    assert left(url, name) == ["slot", "publication"]
    again = command("add", declared)
    assert f"publication {slot_name(name)} is there" in again
    assert f"slot {slot_name(name)} is there" in again
    execute(url, "INSERT INTO t VALUES (2)", "DELETE FROM t WHERE id = 1")
    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        wait_until(lambda: rows(log, f"{name}.public.t") == [2])
        streaming(url, slot_name(name))
        assert "is there" in command("add", declared)
    drop_slots(url)
    assert "is gone, and changes with it" in command("add", declared), "a gap is not covered by a new slot"
    assert "public.none does not exist" in command("add", f"Postgres({url!r}, ['none'])")


def test_adding_a_sqlite_capture_installs_its_triggers_once(name, tmp_path: Path, command):
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, version INTEGER)")
    declared = f"Sqlite({str(path)!r}, ['item'])"
    assert "triggers are created: item" in command("add", declared)
    assert "triggers are there: item" in command("add", declared)
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone() == (3,)
    polled = f"Polling('sqlite:{path}', 'item', 'version')"
    assert "can be polled by version" in command("add", polled)
    db.close()


def test_only_one_that_was_removed_comes_back(name, broker):
    assert not lifecycle.add(broker.bootstrap, name)
    lifecycle.remove(broker.bootstrap, name, "snapshot")
    assert lifecycle.add(broker.bootstrap, name)
    assert not lifecycle.add(broker.bootstrap, name)
