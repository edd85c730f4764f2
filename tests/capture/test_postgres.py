"""A PostgreSQL database in change topics: snapshot and stream without a gap, large transactions, schema changes, rights, and what stops it."""

import json
import threading
import uuid

import psycopg
import pytest

from headwater.capture.loop.feed import Feed
from headwater.capture.loop.lifecycle import restart
from headwater.capture.postgres.position import restart_position
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.state import last_state
from headwater.client.client import Client
from headwater.errors import CaptureError
from support.captured import drop_slots, events, execute, running, streaming, table
from support.servers import wait_until


@pytest.fixture
def name() -> str:
    return f"shop{uuid.uuid4().hex[:8]}"


def feed(name: str, url: str, log: str, *tables: str, **options) -> Feed:
    return Feed(name, PostgresSource(name, url, tables, **options), log)


def rows(url: str, query: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def count(log: str, topic: str) -> int:
    client = Client(log)
    try:
        return sum(1 for _ in client.read([topic]))
    finally:
        client.close()


def test_a_snapshot_that_races_with_writes_has_each_change_once(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i",
    )
    over = threading.Event()

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            at = 0
            while not over.is_set():
                at += 1
                connection.execute(f"UPDATE t SET n = n + 1 WHERE id = {at % 2000 + 1}")
                connection.execute(f"DELETE FROM t WHERE id = {at % 97 + 1}")
                connection.execute(f"INSERT INTO t VALUES ({at % 97 + 1}, -1)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with running(feed(name, url, broker.bootstrap, "t")):
            streaming(url, slot_name(name))
            over.set()
            writer.join()
            execute(url, "INSERT INTO t VALUES (9999, 9)")
            topic = f"{name}.public.t"
            wait_until(lambda: '{"id": 9999}' in table(events(broker.bootstrap, name), topic))
    finally:
        over.set()
        writer.join()

    found = table(events(broker.bootstrap, name), topic)
    assert {(row["id"], row["n"]) for row in found.values()} == set(rows(url, "SELECT id, n FROM t"))


def test_a_large_transaction_comes_whole_without_what_its_savepoints_took_back(name, url, broker):
    base = url.rsplit("/", 1)[1]
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, x text)",
        f"ALTER DATABASE {base} SET logical_decoding_work_mem = '64kB'",
    )
    with running(feed(name, url, broker.bootstrap, "t")):
        streaming(url, slot_name(name))
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO t SELECT i, repeat('a', 100) FROM generate_series(1, 5000) i")
            connection.execute("SAVEPOINT s")
            connection.execute("INSERT INTO t SELECT i, repeat('b', 100) FROM generate_series(5001, 9000) i")
            connection.execute("ALTER TABLE t ADD y int DEFAULT 7")
            connection.execute(
                "INSERT INTO t SELECT i, repeat('b', 100), 1 FROM generate_series(9001, 9500) i"
            )
            connection.execute("ROLLBACK TO s")
            execute(url, "CREATE TABLE other (id int)")
            connection.execute(
                "INSERT INTO t SELECT i, repeat('c', 100) FROM generate_series(20001, 22000) i"
            )
        with psycopg.connect(url) as connection:
            connection.execute(
                "INSERT INTO t SELECT i, repeat('d', 100) FROM generate_series(30001, 35000) i"
            )
            connection.rollback()
        execute(url, "INSERT INTO t VALUES (0, '')")
        topic = f"{name}.public.t"
        wait_until(lambda: count(broker.bootstrap, topic) >= 7001)

    found = table(events(broker.bootstrap, name), topic)
    assert {row["id"] for row in found.values()} == {0, *range(1, 5001), *range(20001, 22001)}
    assert all(set(row) == {"id", "x"} for row in found.values())


def test_a_capture_continues_where_it_was(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    topic = f"{name}.public.t"
    for number in (2, 3, 4):
        with running(feed(name, url, broker.bootstrap, "t")):
            execute(url, f"INSERT INTO t VALUES ({number})")
            wait_until(lambda n=number: len(table(events(broker.bootstrap, name), topic)) == n)

    ops = [event.value["op"] for event in events(broker.bootstrap, name)]
    assert sorted(ops) in (["c", "c", "c", "r"], ["c", "c", "r", "r"])
    assert count(broker.bootstrap, f"{name}.schema") == 1


def test_versions_of_a_schema_are_published_beside_the_data(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    with running(feed(name, url, broker.bootstrap, "t")):
        streaming(url, slot_name(name))
        execute(
            url, "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD b text", "INSERT INTO t VALUES (2, 2, 'x')"
        )
        execute(url, "ALTER TABLE t DROP a", "INSERT INTO t VALUES (3, 'y')")
        wait_until(lambda: len(table(events(broker.bootstrap, name), f"{name}.public.t")) == 3)

    client = Client(broker.bootstrap)
    versions = [json.loads(message.value()) for message in client.read([f"{name}.schema"])]
    client.close()
    assert [v["version"] for v in versions] == [1, 2, 3]
    assert [[c["name"] for c in v["columns"]] for v in versions] == [
        ["id", "a"],
        ["id", "a", "b"],
        ["id", "b"],
    ]


def test_a_table_that_is_added_later_gets_a_snapshot_of_its_own(name, url, broker):
    execute(
        url,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO b VALUES (1)",
    )
    with running(feed(name, url, broker.bootstrap, "a")):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO a VALUES (1)")
        wait_until(lambda: table(events(broker.bootstrap, name), f"{name}.public.a"))
    execute(url, "INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (2)")
    with running(feed(name, url, broker.bootstrap, "a", "b")):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO a VALUES (3)", "INSERT INTO b VALUES (3)")
        wait_until(lambda: len(table(events(broker.bootstrap, name), f"{name}.public.b")) == 3)

    found = events(broker.bootstrap, name)
    assert len(table(found, f"{name}.public.a")) == 3
    assert len(table(found, f"{name}.public.b")) == 3


VALUES = [
    ("float8", "'-Infinity'", "-Infinity"),
    ("numeric", "'Infinity'", "Infinity"),
    ("numeric(5,2)", "-1.5", "/2o="),
    ("date", "'-infinity'", "-infinity"),
    ("date", "'0001-01-01 BC'", -719528),
    ("timestamp", "'-infinity'", -9223372036832400000),
    ("timestamptz", "'0001-06-01 00:00:00+00 BC'", "0000-06-01T00:00:00.000000Z"),
    ("timestamptz", "'12024-06-01 00:00:00.5+00'", "+12024-06-01T00:00:00.500000Z"),
    ("timetz", "'24:00:00+00'", "24:00:00Z"),
    ("interval", "'-1 year -00:00:00.000001'", -31557600000001),
    ("int[]", "'{{1,NULL},{3,4}}'", [[1, None], [3, 4]]),
    ("text[]", "ARRAY['', NULL, 'NULL', 'a\"b\\c', '{,}']", ["", None, "NULL", 'a"b\\c', "{,}"]),
    ("int[]", "'[5:6]={1,2}'", [1, 2]),
    ("numeric[]", "'{NaN,1.5}'", ["NaN", {"scale": 1, "value": "Dw=="}]),
    ("bit(1)[]", "'{1,0}'", [True, False]),
    ("bit(12)", "B'100000000001'", "AQg="),
    ("money", "'$0.07'", "Bw=="),
    ("jsonb", """'{"a": "\\u00e9😀"}'""", '{"a": "é😀"}'),
    ("bytea", "''", ""),
    ("bytea", r"'\x00ff'", "AP8="),
    ("text", "''", ""),
    ("text", "NULL", None),
    ("text", r"E'\t\n\\N \x01 😀'", "\t\n\\N \x01 😀"),
    ("text", "repeat('é', 300)", "é" * 300),
    ("mood", "'sad'", "sad"),
    ("mood[]", "'{sad,NULL}'", ["sad", None]),
    ("positive", "5", 5),
    ("varchar(3)", "'abc'", "abc"),
    ("int8", "'-9223372036854775808'", -(2**63)),
    ("name", "'n'", "n"),
    ("int2vector", "'1 2'", "1 2"),
    ("pair", "ROW(1, 'x')", "(1,x)"),
]


def test_values_of_every_type_come_alike_by_snapshot_and_by_stream(name, url, broker):
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _, _) in enumerate(VALUES))
    insert = f"INSERT INTO t SELECT NUMBER, {', '.join(f'{text}::{kind}' for kind, text, _ in VALUES)}"
    execute(
        url,
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE pair AS (a int, b text)",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}, gen int GENERATED ALWAYS AS (id * 2) STORED)",
        insert.replace("NUMBER", "1"),
    )
    with running(feed(name, url, broker.bootstrap, "t")):
        streaming(url, slot_name(name))
        execute(
            url,
            "ALTER TYPE mood ADD VALUE 'glad'",
            insert.replace("NUMBER", "2"),
            "UPDATE t SET c24 = 'glad' WHERE id = 1",
        )
        topic = f"{name}.public.t"
        wait_until(lambda: count(broker.bootstrap, topic) >= 3)

    expected = {f"c{at}": value for at, (_, _, value) in enumerate(VALUES)}
    read, made, changed = [event.value["after"] for event in events(broker.bootstrap, name)]
    assert read == {"id": 1} | expected
    assert made == {"id": 2} | expected
    assert changed == {"id": 1} | expected | {"c24": "glad"}


def test_a_role_with_replication_and_select_is_enough(name, url, broker, postgres):
    role = f"reader_{name}"
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"CREATE PUBLICATION {slot_name(name)} FOR TABLE t",
    )
    limited = url.replace("postgres@", f"{role}@")
    with pytest.raises(CaptureError, match=f'GRANT SELECT ON .*TO "{role}"'):
        next(PostgresSource(name, limited, ("t",)).read(None))
    execute(url, f"GRANT SELECT ON t TO {role}")
    with running(feed(name, limited, broker.bootstrap, "t")):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO t VALUES (2)")
        wait_until(lambda: len(table(events(broker.bootstrap, name), f"{name}.public.t")) == 2)


def test_a_missing_right_is_reported_with_the_statement_that_grants_it(name, url):
    role = f"reader_{name}"
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT ON t TO {role}",
    )
    limited = url.replace("postgres@", f"{role}@")
    with pytest.raises(CaptureError, match="replica"):
        next(PostgresSource(name, limited, ("t",)).read(None))
    execute(url, f"ALTER ROLE {role} REPLICATION")
    with pytest.raises(CaptureError, match="let an owner of the tables run: CREATE PUBLICATION"):
        next(PostgresSource(name, limited, ("t",)).read(None))
    with pytest.raises(CaptureError, match=r"public\.missing does not exist"):
        next(PostgresSource(name, url, ("missing",)).read(None))


def begun(name: str, url: str) -> str:
    source = PostgresSource(name, url, ("t",))
    position = next(part.position for part in source.read(None) if part.position is not None)
    source.close()
    return position


def test_a_position_that_does_not_fit_the_slot_stops_the_capture(name, url):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    slot, position = slot_name(name), json.loads(begun(name, url))

    def reading(**changes):
        return next(PostgresSource(name, url, ("t",)).read(json.dumps(position | changes)))

    with pytest.raises(CaptureError, match="another database server"):
        reading(system="1")
    with pytest.raises(CaptureError, match="newer than the server's log"):
        reading(lsn="FFFF/0")
    execute(
        url, "INSERT INTO t VALUES (1)", f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"
    )
    with pytest.raises(
        CaptureError, match=f"moved forward by another process.*headwater capture snapshot {name}"
    ):
        reading()
    execute(url, f"SELECT pg_drop_replication_slot('{slot}')")
    with pytest.raises(CaptureError, match="is gone"):
        reading()


def test_a_publication_that_was_dropped_stops_the_capture(name, url):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    position, slot = begun(name, url), slot_name(name)
    execute(url, f"DROP PUBLICATION {slot}", "INSERT INTO t VALUES (1)")
    source = PostgresSource(name, url, ("t",))
    with pytest.raises(CaptureError, match="headwater capture snapshot"):
        for _ in source.read(position):
            pass


def test_a_capture_that_starts_again_forgets_rows_that_are_gone(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    topic = f"{name}.public.t"
    with running(feed(name, url, broker.bootstrap, "t")):
        wait_until(lambda: len(table(events(broker.bootstrap, name), topic)) == 2)
    drop_slots(url)
    execute(url, "DELETE FROM t WHERE id = 1")
    restart(broker.bootstrap, name, restart_position())
    with running(feed(name, url, broker.bootstrap, "t")):
        wait_until(lambda: list(table(events(broker.bootstrap, name), topic)) == ['{"id": 2}'])


def test_removing_a_capture_leaves_nothing_in_the_database(name, url):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    begun(name, url)
    PostgresSource(name, url, ("t",)).remove()

    assert rows(url, f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot_name(name)}'") == []
    assert rows(url, "SELECT 1 FROM pg_publication") == []


def test_changes_of_other_tables_move_the_slot_on(name, url, broker, monkeypatch):
    monkeypatch.setattr("headwater.capture.loop.log_writer.HEARTBEAT_S", 0.2)
    monkeypatch.setattr("headwater.capture.postgres.stream.HEARTBEAT_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (x text)")
    query = f"SELECT confirmed_flush_lsn >= '{{}}' FROM pg_replication_slots WHERE slot_name = '{slot_name(name)}'"
    with running(feed(name, url, broker.bootstrap, "t")):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
        end = rows(url, "SELECT pg_current_wal_lsn()::text")[0][0]
        wait_until(lambda: rows(url, query.format(end))[0][0])

    assert count(broker.bootstrap, f"{name}.public.t") == 0
    assert last_state(broker.bootstrap, name).rows == 1  # the version of the table's schema


def test_partitions_come_under_the_name_of_the_whole_table_on_request(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO t VALUES (1)",
    )
    with running(feed(name, url, broker.bootstrap, "t", root=True)):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO t VALUES (2)")
        wait_until(lambda: len(table(events(broker.bootstrap, name), f"{name}.public.t")) == 2)
