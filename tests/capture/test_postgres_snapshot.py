"""A snapshot of PostgreSQL by several connections: each row once, also of tables that are read in ranges."""

import json
import threading
import uuid

import psycopg
import pytest

from headwater.capture import Postgres
from headwater.capture.loop.feed import Feed
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.snapshot import ranges
from headwater.capture.postgres.source import PostgresSource
from headwater.errors import CaptureError, UsageError
from support.captured import events, execute, running, streaming, table
from support.servers import wait_until

ROWS = 20_000


@pytest.fixture
def name(monkeypatch) -> str:
    monkeypatch.setattr("headwater.capture.postgres.snapshot.RANGE_BLOCKS", 16)
    monkeypatch.setattr("headwater.capture.postgres.snapshot.PART_RECORDS", 500)
    return f"snap{uuid.uuid4().hex[:8]}"


def copies(url: str) -> int:
    """How many connections read rows now."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND query LIKE 'COPY%'"
        ).fetchone()
    return found[0] if found else 0


def test_ranges_have_each_row_once_and_the_last_has_no_end(monkeypatch):
    monkeypatch.setattr("headwater.capture.postgres.snapshot.RANGE_BLOCKS", 10)
    assert ranges(0) == ranges(10) == [""]
    assert ranges(21) == [
        " WHERE ctid >= '(0,0)'::tid AND ctid < '(10,0)'::tid",
        " WHERE ctid >= '(10,0)'::tid AND ctid < '(20,0)'::tid",
        " WHERE ctid >= '(20,0)'::tid",
    ]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_several_connections_read_a_large_table_while_it_is_written_to(name, url, broker, workers):
    execute(
        url,
        "CREATE TABLE a (id int PRIMARY KEY, n int)",
        "CREATE TABLE b (id int PRIMARY KEY, n int, x text)",
        "CREATE TABLE c (id int PRIMARY KEY, n int)",
        "INSERT INTO a SELECT i, 0 FROM generate_series(1, 10) i",
        f"INSERT INTO b SELECT i, 0, repeat('x', 50) FROM generate_series(1, {ROWS}) i",
        f"INSERT INTO c SELECT i, 0 FROM generate_series(1, {ROWS // 4}) i",
    )
    over = threading.Event()

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(1, ROWS, 37):
                if over.is_set():
                    return
                connection.execute(f"UPDATE b SET n = n + 1 WHERE id = {number}")
                connection.execute(f"DELETE FROM c WHERE id = {number}")
                connection.execute(f"INSERT INTO b VALUES ({ROWS + number}, 0, '')")

    writer = threading.Thread(target=write)
    source = PostgresSource(name, url, ("a", "b", "c"), snapshot_workers=workers)
    with running(Feed(name, source, broker.bootstrap)):
        writer.start()
        streaming(url, slot_name(name))
        over.set()
        writer.join()
        execute(url, "INSERT INTO a VALUES (11, 0)")
        wait_until(lambda: any(event.key == {"id": 11} for event in events(broker.bootstrap, name)))

    found = events(broker.bootstrap, name)
    for each in "abc":
        with psycopg.connect(url) as connection:
            there = dict(connection.execute(f"SELECT id, n FROM {each}").fetchall())
        rows = table(found, f"{name}.public.{each}")
        assert {row["id"]: row["n"] for row in rows.values()} == there
    assert copies(url) == 0


def test_as_many_connections_read_as_are_asked_for_and_all_end_with_the_reader(name, url):
    execute(
        url,
        "CREATE TABLE b (id int PRIMARY KEY, x text)",
        f"INSERT INTO b SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, {3 * ROWS}) i",
    )
    source = PostgresSource(name, url, ("b",), snapshot_workers=3)
    parts = source.read(None)
    next(parts)
    wait_until(lambda: copies(url) == 3)
    parts.close()
    source.close()
    wait_until(lambda: copies(url) == 0)
    again = list(_snapshot(PostgresSource(name, url, ("b",))))
    keys = [
        json.loads(record.key)["id"]
        for part in again
        for record in part.records
        if record.topic.endswith(".b")
    ]
    assert sorted(keys) == list(range(1, 3 * ROWS + 1)), "a snapshot that was cut off is taken again, whole"
    assert [bool(part.position) for part in again].count(True) == 1


def _snapshot(source: PostgresSource):
    """The parts up to the first position."""
    try:
        for part in source.read(None):
            yield part
            if part.position is not None:
                return
    finally:
        source.close()


def test_what_goes_wrong_in_a_connection_is_raised_where_its_rows_are_taken(name, url):
    execute(
        url,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE FUNCTION wrong(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'no rows today'; END $$",
        f"CREATE ROLE {name} LOGIN REPLICATION",
        f"GRANT SELECT ON a TO {name}",
        "INSERT INTO a VALUES (1)",
        f"CREATE PUBLICATION {slot_name(name)} FOR TABLE a WITH (publish_via_partition_root = false)",
        "ALTER TABLE a ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON a USING (wrong(id))",
    )
    source = PostgresSource(name, url.replace("postgres@", f"{name}@"), ("a",))
    with pytest.raises(CaptureError, match="no rows today"):
        list(_snapshot(source))


@pytest.mark.parametrize("workers", [0, 9])
def test_the_number_of_connections_is_bounded(workers):
    with pytest.raises(UsageError, match=r"snapshot_workers is wrong; got .; expected 1 to 8"):
        Postgres("postgresql://db/shop", ["t"], snapshot_workers=workers).check("shop")
