"""What goes wrong around a capture is right afterwards, or stops it with the way out; never a silent gap."""

import json
import signal
import uuid

import psycopg
import pytest
from confluent_kafka import TopicPartition

from headwater.capture.loop.feed import Feed
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.source import Part, Record
from headwater.client.client import Client, consumer
from headwater.errors import CaptureError
from support.captured import (
    CaptureProcess,
    Event,
    by_key,
    committed,
    database,
    drop_slots,
    events,
    execute,
    running,
    streaming,
    table,
)
from support.capturedb import Shop, changes, records
from support.databases import PostgresProcess
from support.servers import wait_until

ROWS = 400_000


@pytest.fixture
def name() -> str:
    return f"trap{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["postgres", "mariadb"])
def db(request, name):
    """A database's declaration, the prefix of its topics, and a way to run statements."""
    server = request.getfixturevalue(request.param)
    if request.param == "postgres":
        url = database(server.url)
        numbers = "SELECT i, 0 FROM generate_series(1, {}) i"
        yield f"Postgres({url!r}, ['a', 'b'])", f"{name}.public", numbers, lambda *each: execute(url, *each)
        drop_slots(url)
    else:
        shop = Shop(server, name)
        declared = f"MariaDB({server.url!r}, ['{name}.a', '{name}.b'])"
        yield declared, f"{name}.{name}", "SELECT seq, 0 FROM seq_1_to_{}", shop.run
        shop.connection.close()


def read(log: str, topic: str) -> list[Event]:
    """The committed records of one topic."""
    client = Client(log)
    try:
        return [
            Event(topic, each.key(), json.loads(each.value()))
            for each in client.read([topic])
            if each.value()
        ]
    finally:
        client.close()


def end_of(log: str, topic: str) -> int:
    """How many records a topic has, committed or not."""
    reader = consumer(log, **{"isolation.level": "read_uncommitted"})
    try:
        known = reader.list_topics(timeout=10).topics
        return reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1] if topic in known else 0
    finally:
        reader.close()


def test_a_crash_in_the_middle_of_a_snapshot_leaves_each_row_once(db, name, broker, tmp_path):
    declared, prefix, numbers, run = db
    log = broker.bootstrap
    run("CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE b (id int PRIMARY KEY, n int)")
    run(f"INSERT INTO a {numbers.format(10)}", f"INSERT INTO b {numbers.format(ROWS)}")
    capture = CaptureProcess(tmp_path, name, declared, log)
    capture.start()
    wait_until(lambda: end_of(log, f"{prefix}.b") > 1_000, 60, "rows of the larger table")
    capture.end(signal.SIGKILL)
    state = committed(log, name)
    assert state is not None
    assert len(json.loads(state.position or "{}").get("tables", {})) == 1, (
        "the smaller table is done, the larger is not"
    )
    run("UPDATE a SET n = 1 WHERE id = 1", "DELETE FROM b WHERE id = 1", "UPDATE b SET n = 2 WHERE id = 2")
    capture.start()
    wait_until(lambda: (state := committed(log, name)) and state.rows >= ROWS + 10, 90, "the snapshot")
    run("DELETE FROM b WHERE id = 3", "UPDATE a SET n = 3 WHERE id = 3")
    wait_until(lambda: any(event.value["after"] == {"id": 3, "n": 3} for event in read(log, f"{prefix}.a")))
    assert capture.end(signal.SIGTERM) == 0, capture.log.read_text()[-3000:]

    found = events(log, name)
    small, large = table(found, f"{prefix}.a"), table(found, f"{prefix}.b")
    assert {row["id"]: row["n"] for row in small.values()} == dict.fromkeys(range(1, 11), 0) | {1: 1, 3: 3}
    assert len(large) == ROWS - 2
    assert large['{"id": 2}']["n"] == 2
    begun = [event.value["op"] for event in found if event.topic == f"{prefix}.b" and event.value]
    assert begun.count("r") == ROWS - 1, (
        "rows of a snapshot that was cut off do not count, and none comes twice"
    )


def test_a_slot_that_the_server_has_given_up_stops_the_capture(name):
    server = PostgresProcess()
    server.start()
    try:
        url = database(server.url)
        execute(url, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
        source = PostgresSource(name, url, ("t",))
        position = next(part.position for part in source.read(None) if part.position is not None)
        source.close()

        def lost() -> bool:
            execute(
                url,
                "SELECT pg_switch_wal()",
                "INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t",
                "CHECKPOINT",
            )
            with psycopg.connect(url) as connection:
                found = connection.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
            return found == ("lost",)

        wait_until(lost, 60, "the slot given up")
        with pytest.raises(
            CaptureError, match=rf"was lost.*headwater capture snapshot {name}.*max_slot_wal_keep_size"
        ):
            next(source.read(position))
        source.close()
    finally:
        server.end()


def test_a_capture_continues_after_a_position_newer_than_its_slot(name, url):
    """A crash may come between the commit in the log and the word to the server: the server sends those changes again, the capture does not."""
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    source = PostgresSource(name, url, ("t",))
    parts = source.read(None)
    next(part for part in parts if part.position is not None)
    slot = f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot_name(name)}'"
    with psycopg.connect(url, autocommit=True) as connection:
        before = connection.execute(slot).fetchone()
        connection.execute("INSERT INTO t VALUES (1)")
        position = next(part.position for part in parts if data(part))
        source.close()
        assert connection.execute(slot).fetchone() == before
        connection.execute("INSERT INTO t VALUES (2)")
    again = PostgresSource(name, url, ("t",))
    found = next(data(part) for part in again.read(position) if data(part))
    again.close()
    assert [json.loads(record.value)["after"]["id"] for record in found] == [2]


def data(part: Part) -> list[Record]:
    return [record for record in part.records if not record.topic.endswith(".schema")]


def test_a_table_that_was_left_out_for_a_while_is_captured_again(name, url, broker):
    log, topic = broker.bootstrap, f"{name}.public.t"
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    execute(url, "INSERT INTO t VALUES (1), (2)")

    def feed(*tables: str) -> Feed:
        return Feed(name, PostgresSource(name, url, tables), log)

    with running(feed("t", "u")):
        streaming(url, slot_name(name))
    with running(feed("u")):
        streaming(url, slot_name(name))
        execute(url, "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)", "INSERT INTO u VALUES (1)")
        wait_until(lambda: table(events(log, name), f"{name}.public.u"))
    with running(feed("t", "u")):
        wait_until(lambda: list(table(events(log, name), topic)) == ['{"id": 2}', '{"id": 3}'])


LEFT_OUT = {
    "made again": ("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (2), (3)"),
    "made again and published": (
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (2), (3)",
        "ALTER PUBLICATION {} ADD TABLE t",
    ),
    "not published": ("ALTER PUBLICATION {} DROP TABLE t", "DELETE FROM t", "INSERT INTO t VALUES (2), (3)"),
    "not published for a while": (
        "ALTER PUBLICATION {} DROP TABLE t",
        "DELETE FROM t",
        "INSERT INTO t VALUES (2), (3)",
        "ALTER PUBLICATION {} ADD TABLE t",
    ),
}


@pytest.fixture
def watchful(monkeypatch):
    monkeypatch.setattr("headwater.capture.postgres.stream.HEARTBEAT_S", 0.5)


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("running_meanwhile", [False, True], ids=["down", "running"])
@pytest.mark.parametrize("statements", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_table_that_the_server_did_not_publish_for_a_while_is_captured_again(
    name, url, broker, statements, running_meanwhile
):
    log, topic = broker.bootstrap, f"{name}.public.t"
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    execute(url, "INSERT INTO t VALUES (1), (2)")
    said = [statement.format(slot_name(name)) for statement in statements]

    def feed() -> Feed:
        return Feed(name, PostgresSource(name, url, ("t", "u")), log)

    def rows() -> set[int]:
        return {row["id"] for row in by_key(events(log, name), topic).values()}

    with running(feed()):
        streaming(url, slot_name(name))
        wait_until(lambda: rows() == {1, 2})
        if running_meanwhile:
            execute(url, *said)
            wait_until(lambda: rows() == {2, 3})
    if not running_meanwhile:
        execute(url, *said)
    with running(feed()):
        wait_until(lambda: rows() == {2, 3})
        execute(url, "INSERT INTO t VALUES (4)", "DELETE FROM t WHERE id = 2")
        wait_until(lambda: rows() == {3, 4})
    assert set(table(events(log, name), topic)) == {'{"id": 3}', '{"id": 4}'}


def test_a_table_that_is_captured_again_under_another_key_continues(name, url, broker):
    log, topic = broker.bootstrap, f"{name}.public.t"
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        streaming(url, slot_name(name))
    execute(url, "INSERT INTO t VALUES (2)", "DROP TABLE t", "CREATE TABLE t (no int PRIMARY KEY)")
    execute(url, "INSERT INTO t VALUES (3)")
    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO t VALUES (4)")
        wait_until(lambda: list(table(events(log, name), topic)) == ['{"no": 3}', '{"no": 4}'])


def test_a_binlog_that_was_purged_stops_the_capture(name, mariadb):
    shop = Shop(mariadb, name)
    shop.run("CREATE TABLE t(id int PRIMARY KEY)")
    start = shop.position()
    shop.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")

    def purged() -> bool:
        last = shop.run("SHOW BINARY LOGS")[-1][0]
        shop.run(f"PURGE BINARY LOGS TO '{last}'")
        return len(shop.run("SHOW BINARY LOGS")) == 1

    wait_until(purged)
    with pytest.raises(
        CaptureError, match=r"no longer has the binlog after.*take a new snapshot.*binlog_expire_logs_seconds"
    ):
        shop.read(start)
    assert sorted(after["id"] for _, _, after in changes(shop.read(None))) == [1, 2]


def test_exotic_columns_of_tables_that_are_not_captured_harm_nothing(name, url, broker):
    execute(
        url,
        "CREATE TYPE pair AS (a int, b text[])",
        "CREATE TYPE span AS RANGE (subtype = pair)",
        "CREATE DOMAIN many AS pair[] CHECK (array_length(VALUE, 1) < 9)",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE odd (id pair, m many, s span, x xml, q tsquery, p pg_lsn, g int GENERATED ALWAYS AS (1) STORED)",
        "ALTER TABLE odd REPLICA IDENTITY FULL",
    )
    insert = "INSERT INTO odd VALUES ((1, '{x,NULL}'), ARRAY[(1, NULL)::pair], NULL, '<a/>', 'a & b', '0/1')"
    execute(url, insert)
    with running(Feed(name, PostgresSource(name, url, ("t",)), broker.bootstrap)):
        streaming(url, slot_name(name))
        execute(
            url, f"BEGIN; {insert}; UPDATE odd SET q = 'c'; DELETE FROM odd; INSERT INTO t VALUES (1); COMMIT"
        )
        execute(url, "ALTER TABLE odd DROP COLUMN m", "DROP TYPE span CASCADE", "INSERT INTO t VALUES (2)")
        wait_until(lambda: len(table(events(broker.bootstrap, name), f"{name}.public.t")) == 2)
    assert {event.topic for event in events(broker.bootstrap, name)} == {f"{name}.public.t"}


def test_exotic_columns_of_mariadbs_tables_that_are_not_captured_harm_nothing(name, mariadb):
    shop = Shop(mariadb, name)
    shop.run(
        "CREATE TABLE t(id int PRIMARY KEY)",
        "CREATE TABLE odd(c text COMPRESSED, g geometry, v int INVISIBLE, p int AS (1) PERSISTENT, e enum('', 'é'))",
    )
    start = shop.position()
    shop.run(
        "BEGIN", "INSERT INTO odd(c, e) VALUES (repeat('x', 999), 'é')", "INSERT INTO t VALUES (1)", "COMMIT"
    )
    assert [record.topic for record in records(shop.read(start, "t"))] == [f"lab.{name}.t"]
    assert changes(shop.read(None, "t")) == [("r", None, {"id": 1})]
