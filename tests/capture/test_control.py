"""A capture that is looked after: paused, resumed, warned of what its database keeps for it, with one table that cannot continue."""

import json
import sqlite3
import uuid
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from headwater.capture import MariaDB, Polling, Postgres, Sqlite
from headwater.capture.loop.control import send
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.lifecycle import restart
from headwater.capture.messages import Command
from headwater.capture.postgres.position import restart_position
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.source import Part
from headwater.capture.state import last_state
from headwater.cli.main import cli
from headwater.client.client import Client, producer
from headwater.errors import CaptureError, HeadwaterError, UsageError
from support.captured import events, execute, notices, running, streaming, table
from support.servers import BrokerProcess, wait_until


@pytest.fixture
def name(monkeypatch) -> str:
    monkeypatch.setattr("headwater.capture.postgres.stream.ALIVE_S", 0.1)
    return f"ctl{uuid.uuid4().hex[:8]}"


def reported(log: str, name: str) -> list[str]:
    return [notice["what"] for notice in notices(log, name)]


def test_a_paused_capture_reads_nothing_also_after_a_restart(name: str, broker, tmp_path: Path):
    log, db = broker.bootstrap, sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
    declared, topic = Sqlite(tmp_path / "shop.db", ["item"]), f"{name}.item"

    def ids() -> list[int]:
        return sorted(row["id"] for row in table(events(log, name), topic).values())

    with running(Feed(name, declared.open(name, tmp_path), log)):
        db.execute("INSERT INTO item VALUES (1)")
        wait_until(lambda: ids() == [1])
        send(log, name, Command("pause"))
        wait_until(lambda: last_state(log, name).paused)
        db.execute("INSERT INTO item VALUES (2)")
    with running(Feed(name, declared.open(name, tmp_path), log)):
        send(log, name, Command("pause"))
        wait_until(lambda: last_state(log, name).control == 2)
        assert ids() == [1]
        sender = producer(log)
        sender.produce(f"{name}.control", b"no command")
        sender.flush(60)
        send(log, name, Command("resume"))
        wait_until(lambda: ids() == [1, 2])
    assert reported(log, name) == ["paused", "resumed"]
    db.close()


def test_a_database_that_keeps_too_much_is_reported_once_for_each_bound(
    name, url, broker, monkeypatch, caplog
):
    monkeypatch.setattr("headwater.capture.loop.retention_alarm.CHECK_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (x text)")
    source = PostgresSource(name, url, ("t",), alarm_bytes=200_000, limit_bytes=2_000_000)
    log = broker.bootstrap
    with running(Feed(name, source, log)):
        streaming(url, slot_name(name))
        send(log, name, Command("pause"))
        wait_until(lambda: "paused" in reported(log, name))
        fill = "INSERT INTO other SELECT repeat(md5(i::text), 30) FROM generate_series(1, {}) i"
        execute(url, fill.format(500))
        wait_until(lambda: "log retained" in reported(log, name))
        execute(url, fill.format(5000))
        wait_until(lambda: "log limit" in reported(log, name))
        wait_until(lambda: last_state(log, name).retained_bytes > 2_000_000)
    assert reported(log, name) == [
        "snapshot begun",
        "snapshot finished",
        "paused",
        "log retained",
        "log limit",
    ]
    assert f"headwater capture remove {name}" in notices(log, name)[-1]["text"]
    assert [r.levelname for r in caplog.records if "bytes of its log" in r.message] == ["WARNING", "ERROR"]


@pytest.mark.parametrize("paused", [True, False])
def test_a_capture_with_a_limit_stops_past_it_and_saves_the_databases_disk(
    name, url, broker, monkeypatch, paused
):
    monkeypatch.setattr("headwater.capture.loop.retention_alarm.CHECK_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, x text)", "INSERT INTO t VALUES (1, '')")
    log, limit = broker.bootstrap, 2_000_000

    def source() -> PostgresSource:
        return PostgresSource(name, url, ("t",), alarm_bytes=200_000, limit_bytes=limit, past_limit="stop")

    def over_the_limit() -> None:
        with running(Feed(name, source(), log)), psycopg.connect(url) as writer:
            streaming(url, slot_name(name))
            if paused:
                send(log, name, Command("pause"))
                wait_until(lambda: "paused" in reported(log, name))
            writer.execute("UPDATE t SET x = 'open' WHERE id = 1")  # holds the server's log where it is
            execute(url, "INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(2, 5000) i")
            wait_until(lambda: not _slots(url, name))
            writer.rollback()

    with pytest.raises(CaptureError, match="has stopped and dropped its slot") as stopped:
        over_the_limit()
    assert f"`headwater capture snapshot {name} app.py` takes a new snapshot" in str(stopped.value)
    assert reported(log, name)[-1] == "log limit"
    assert "the capture stops and drops its slot" in notices(log, name)[-1]["text"]
    with pytest.raises(CaptureError, match="is gone, and changes with it"):
        source().prepare(begun=True)

    restart(log, name, restart_position())
    if paused:
        send(log, name, Command("resume"))
    limit = 1 << 30
    with running(Feed(name, source(), log)):
        wait_until(lambda: len(table(events(log, name), f"{name}.public.t")) == 5_000)


def _slots(url: str, name: str) -> list[tuple[str]]:
    with psycopg.connect(url, autocommit=True) as connection:
        query = f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{slot_name(name)}'"
        return connection.execute(query).fetchall()


def test_a_capture_with_a_limit_stops_past_it_also_while_its_log_is_away(
    name, url, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("headwater.capture.loop.retention_alarm.CHECK_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (x text)")
    source = PostgresSource(name, url, ("t",), alarm_bytes=1, limit_bytes=2_000_000, past_limit="stop")
    broker = BrokerProcess(tmp_path / "data")
    broker.start()

    def without_a_log() -> None:
        with running(Feed(name, source, broker.bootstrap)):
            streaming(url, slot_name(name))
            broker.end()
            execute(url, "INSERT INTO t VALUES (1)")
            wait_until(lambda: "again in" in caplog.text)
            execute(url, "INSERT INTO other SELECT repeat(md5(i::text), 30) FROM generate_series(1, 5000) i")
            wait_until(lambda: not _slots(url, name), 60)

    with pytest.raises(CaptureError, match="has stopped and dropped its slot"):
        without_a_log()


def test_a_table_that_loses_its_key_stops_alone_until_it_is_captured_again(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, n int)", "CREATE TABLE u (id int PRIMARY KEY)")
    log = broker.bootstrap

    def ids(of: str) -> list[int]:
        return sorted(row["id"] for row in table(events(log, name), f"{name}.public.{of}").values())

    with running(Feed(name, PostgresSource(name, url, ("t", "u")), log)):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO t VALUES (1)", "ALTER TABLE t DROP CONSTRAINT t_pkey")
        execute(url, "INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (1)")
        wait_until(lambda: ids("u") == [1])
    with running(Feed(name, PostgresSource(name, url, ("t", "u")), log)):
        execute(url, "INSERT INTO t VALUES (3)", "INSERT INTO u VALUES (2)")
        wait_until(lambda: ids("u") == [1, 2])
        assert ids("t") == [1]
        send(log, name, Command("snapshot", table="t"))
        wait_until(lambda: "snapshot refused" in reported(log, name))
        execute(url, "ALTER TABLE t ADD PRIMARY KEY (id)")
        send(log, name, Command("snapshot", table="t", incremental=False))
        wait_until(lambda: ids("t") == [1, 2, 3])
        execute(url, "DELETE FROM t WHERE id = 2")
        wait_until(lambda: ids("t") == [1, 3])
    stopped = [notice for notice in notices(log, name) if notice["what"] == "table stopped"]
    assert [notice["table"] for notice in stopped] == ["public.t"]
    assert "its key (id integer) is gone" in stopped[0]["text"]


def test_rows_that_are_passed_over_do_not_end_a_transaction(name, url, monkeypatch):
    """A position in the middle of one would let half of it be committed, and all of it come again."""
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    source = PostgresSource(name, url, ("t", "u"))
    try:
        parts = source.read(None)
        wait_until(lambda: next(parts).position)
        wait_until(lambda: next(parts) == Part([], None))  # the snapshot's locks are given back
        execute(url, "ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (0)")
        monkeypatch.setattr("headwater.capture.postgres.stream.PART_BYTES", 200)
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO u VALUES (1)")
            connection.execute("INSERT INTO t SELECT n FROM generate_series(1, 100) n")
            connection.execute("INSERT INTO u VALUES (2)")
        seen: list[tuple[int, str | None]] = []
        wait_until(lambda: seen.append(_records_of_u(next(parts))) or sum(count for count, _ in seen) == 2)
        between = seen[next(n for n, (rows, _) in enumerate(seen) if rows) : -1]
        assert [position for _, position in between] == [None] * len(between)
        assert len(between) > 1
    finally:
        source.close()


def _records_of_u(part: Part) -> tuple[int, str | None]:
    return sum(record.topic.endswith(".u") for record in part.records), part.position


def test_an_outbox_that_is_declared_becomes_topics_by_kind(name, url, broker):
    execute(
        url,
        "CREATE TABLE outbox (id serial PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        """INSERT INTO outbox VALUES (0, 'order', '1', 'Made', '{"n": 0}')""",
    )
    declared = Postgres(url, ["outbox", "orders"], outbox="outbox")
    declared.check(name)
    log = broker.bootstrap

    def of(topic: str) -> list[tuple[bytes, bytes]]:
        client = Client(log)
        try:
            return [(m.key(), m.value()) for m in client.read([f"{name}.{topic}"])]
        finally:
            client.close()

    for number in (1, 2):
        with running(Feed(name, declared.open(name, None), log, outbox=declared.outbox_router(name))):
            streaming(url, slot_name(name))
            with psycopg.connect(url) as connection:
                connection.execute(f"INSERT INTO orders VALUES ({number})")
                connection.execute(
                    f"INSERT INTO outbox VALUES ({number}, 'order', '1', 'Paid', '{{\"n\": {number}}}')"
                )
                connection.execute(f"DELETE FROM outbox WHERE id = {number}")
            wait_until(lambda n=number: len(of("event.order")) == n + 1)
    assert of("event.order") == [(b"1", b'{"n": %d}' % n) for n in range(3)]
    assert len(of("public.orders")) == 2
    assert of("public.outbox") == []
    assert len(of("schema")) == 2, "versions of schemas are recalled through the outbox"
    with pytest.raises(UsageError, match="is not one of its tables"):
        Postgres(url, ["orders"], outbox="outbox").check(name)
    Postgres(url, ["public.*"], outbox="outbox").check(name)


@pytest.mark.parametrize(
    "declared",
    [
        Postgres("postgresql://me:s3cret@db/shop", ["t"]),
        Postgres("postgresql://me@db/shop?password=s3cret&sslmode=require", ["t"]),
        Postgres("postgresql://me:a@s3cret@db/shop", ["t"]),
        MariaDB("mysql://me:s3cret@db", ["d.t"]),
        Polling("postgresql://me:s3cret@db/shop", "t", "v"),
    ],
)
def test_a_declaration_shows_no_password(declared):
    assert "s3cret" not in repr(declared)
    assert "me" in repr(declared)
    assert "db" in repr(declared)


@pytest.fixture
def command(monkeypatch, broker, tmp_path, name, url):
    """Commands in this process, of an application with one capture."""
    monkeypatch.setenv("HEADWATER_LOG", f"kafka://{broker.bootstrap}")
    file = tmp_path / "app.py"
    file.write_text(
        f"import headwater as hw\napp = hw.App('a')\napp.capture({name!r}, hw.capture.Postgres({url!r}, ['t']))\n"
    )

    def run(verb: str, *arguments: str, app: bool = False, code: int = 0) -> str:
        options = [str(file), *arguments] if app else arguments
        result = CliRunner().invoke(cli, ["capture", verb, name, *options])
        if isinstance(result.exception, HeadwaterError):
            return str(result.exception)
        assert result.exit_code == code, result.output
        return result.output

    return run


def test_a_capture_is_looked_after_by_commands(command, name, url, broker, monkeypatch):
    monkeypatch.setattr("headwater.capture.loop.log_writer.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.stream.HEARTBEAT_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    log, topic = broker.bootstrap, f"{name}.public.t"
    assert f"there is no capture '{name}' in this log" in command("status")
    assert "no capture" in command("pause")
    with running(Feed(name, Postgres(url, ["t"]).open(name, None), log)):
        wait_until(lambda: len(events(log, name)) == 2)
        assert "will pause" in command("pause")
        wait_until(lambda: "paused " in command("status"))
        assert "will resume" in command("resume")
        wait_until(lambda: "paused " not in command("status"))
        assert "retained" in command("status")

        assert "name it with --table" in command("snapshot", "--incremental", app=True)
        assert "use --where with --incremental" in command(
            "snapshot", "--table", "t", "--where", "true", app=True
        )
        command("snapshot", "--table", "t", "--where", "id = 2", "--incremental", app=True)
        wait_until(lambda: len(events(log, name)) == 3)

        assert "no difference" in command("audit", app=True)
        ghost = events(log, name)[0].value
        sender = producer(log)
        sender.produce(topic, json.dumps(ghost | {"after": {"id": 9}}), '{"id":9}')
        sender.flush(60)
        assert '{"id":9}' in command("audit", app=True, code=1)
        assert "snapshot finished" in command("audit", "--table", "t", "--repair", app=True)
        assert "no difference" in command("audit", app=True)
    assert "when it starts next" in command("snapshot", app=True)
    assert "is removed from the database" in command("remove", app=True)
    with psycopg.connect(url) as connection:
        found = connection.execute(
            f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot_name(name)}'"
        )
        assert found.fetchall() == []
