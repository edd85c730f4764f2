"""Tables are read again beside the stream: with writers, over a restart, by a condition; what cannot be read is reported."""

import json
import random
import threading
import uuid
from typing import Any

import psycopg
import pytest

from headwater.capture.loop.control import send
from headwater.capture.loop.feed import Feed
from headwater.capture.messages import Command
from headwater.capture.postgres import incremental
from headwater.capture.postgres.incremental import Visibility
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.state import last_state
from headwater.client.client import Client
from support.captured import execute, running, streaming
from support.servers import wait_until

ROWS = 1_500


@pytest.fixture
def name(monkeypatch) -> str:
    monkeypatch.setattr("headwater.capture.postgres.stream.ALIVE_S", 0.1)
    return f"inc{uuid.uuid4().hex[:8]}"


def read(log: str, topic: str) -> list[tuple[Any, Any]]:
    client = Client(log)
    try:
        return [
            (
                None if m.key() is None else m.key().decode(),
                None if m.value() is None else json.loads(m.value()),
            )
            for m in client.read([topic])
        ]
    finally:
        client.close()


def notices(log: str, name: str) -> list[tuple[str, str]]:
    """Those of snapshots that were asked for."""
    found = [value for _, value in read(log, f"{name}.notifications")]
    return [(value["what"], value.get("table", "")) for value in found if "id" in value.get("details", {})]


def folded(log: str, topic: str) -> dict[str, Any]:
    """The rows that a reader of the topic ends with."""
    rows: dict[str, Any] = {}
    for key, value in read(log, topic):
        if value is not None and value["op"] == "t":
            rows.clear()
        elif value is None or value["after"] is None:
            rows.pop(key, None)
        else:
            rows[key] = value["after"]
    return rows


def source_rows(url: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return set(connection.execute("SELECT id, kind, n FROM t").fetchall())


def topic_rows(log: str, name: str) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in folded(log, f"{name}.public.t").values()}


def filled(url: str) -> None:
    execute(
        url,
        "CREATE TABLE t (id int, kind text, n int, PRIMARY KEY (kind, id))",
        f"INSERT INTO t SELECT i, chr(97 + i % 3) || E'\\t\\'', 0 FROM generate_series(1, {ROWS}) i",
    )


class Writer(threading.Thread):
    """Changes, deletes and inserts rows at random, in transactions of several, some of which are taken back."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__()
        self.over = threading.Event()
        self.written = 0
        self._url = url
        self._random = random.Random(seed)

    def run(self) -> None:
        with psycopg.connect(self._url) as connection:
            while not self.over.is_set():
                try:
                    for _ in range(self._random.randint(1, 4)):
                        connection.execute(self._statement())
                        self.written += 1
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    connection.rollback()  # what one of them did was in the way of the other
                    continue
                connection.rollback() if self._random.random() < 0.1 else connection.commit()

    def _statement(self) -> str:
        number, at = self._random.randint(1, ROWS + 100), self._random.random()
        if at < 0.5:
            return f"UPDATE t SET n = n + 1 WHERE id = {number}"
        if at < 0.6:
            return f"UPDATE t SET kind = kind || 'x' WHERE id = {number} AND length(kind) < 6"
        if at < 0.8:
            return f"DELETE FROM t WHERE id = {number}"
        return f"INSERT INTO t VALUES ({number}, 'b', {-number}) ON CONFLICT DO NOTHING"


def feed(name: str, url: str, log: str) -> Feed:
    return Feed(name, PostgresSource(name, url, ("t",)), log)


def test_rows_read_again_beside_writers_never_bring_back_old_ones(name, url, broker, monkeypatch):
    monkeypatch.setattr(incremental, "CHUNK_ROWS", 100)
    filled(url)
    log, writers = broker.bootstrap, [Writer(url, seed) for seed in (1, 2)]
    with running(feed(name, url, log)):
        streaming(url, slot_name(name))
        for writer in writers:
            writer.start()
        send(log, name, Command("snapshot", table="t"))
        try:
            wait_until(lambda: ("snapshot finished", "public.t") in notices(log, name), 60)
        finally:
            for writer in writers:
                writer.over.set()
                writer.join()
        wait_until(lambda: topic_rows(log, name) == source_rows(url), what="topic and table alike")
    assert min(writer.written for writer in writers) > 10
    ops = [value["op"] for _, value in read(log, f"{name}.public.t") if value]
    again = ops.count("r") - ROWS
    assert ROWS * 0.1 < again < ROWS * 1.1, "chunks without the rows that the stream brought"


def test_a_snapshot_continues_after_its_last_chunk_after_a_restart(name, url, broker, monkeypatch):
    monkeypatch.setattr(incremental, "CHUNK_ROWS", 50)
    filled(url)
    log = broker.bootstrap
    with running(feed(name, url, log)):
        streaming(url, slot_name(name))
    send(log, name, Command("snapshot", table="public.t", where="id <= 1000"))
    for stop_at in (150, 600):

        def came(rows: int = stop_at) -> bool:
            state = last_state(log, name)
            pending = json.loads(state.position).get("snapshots")
            return state.control == 1 and (pending is None or pending[0].get("rows", 0) >= rows)

        with running(feed(name, url, log)):
            wait_until(came, what=f"{stop_at} rows")
    execute(url, "UPDATE t SET n = 5 WHERE id < 100", "DELETE FROM t WHERE id = 999")
    with running(feed(name, url, log)):
        wait_until(lambda: ("snapshot finished", "public.t") in notices(log, name))
        wait_until(lambda: topic_rows(log, name) == source_rows(url))
    snapshot = [
        value["after"]["id"] for _, value in read(log, f"{name}.public.t") if value and value["op"] == "r"
    ]
    again = snapshot[ROWS:]
    assert len(again) == len(set(again)), "no row twice"
    assert max(again) == 1000
    assert [what for what, _ in notices(log, name)] == ["snapshot begun", "snapshot finished"]


def test_what_cannot_be_read_again_is_reported_and_the_capture_continues(name, url, broker):
    filled(url)
    log = broker.bootstrap
    with running(feed(name, url, log)):
        streaming(url, slot_name(name))
        send(log, name, Command("snapshot", table="nothing"))
        send(log, name, Command("snapshot", table="t", where="nonesuch = 1"))
        send(log, name, Command("snapshot", table="t", where="n = 'x'"))
        wait_until(lambda: len(notices(log, name)) == 3)
        execute(url, "INSERT INTO t VALUES (0, 'z', 1)")
        wait_until(lambda: topic_rows(log, name) == source_rows(url))
    assert [what for what, _ in notices(log, name)] == [
        "snapshot refused",
        "snapshot failed",
        "snapshot failed",
    ]


@pytest.mark.parametrize(
    "where",
    [
        "false) UNION ALL SELECT id, word, 0 FROM secret WHERE (true",
        "n = (SELECT count(*) FROM secret)",
        "pg_drop_replication_slot('another') IS NULL",
    ],
)
def test_who_writes_the_control_topic_runs_no_sql_in_the_database(name, url, broker, where):
    filled(url)
    execute(
        url,
        "CREATE TABLE secret (id int, word text)",
        "INSERT INTO secret VALUES (1, 'hidden')",
        "SELECT pg_create_physical_replication_slot('another')",
    )
    log = broker.bootstrap
    with running(feed(name, url, log)):
        streaming(url, slot_name(name))
        send(log, name, Command("snapshot", table="t", where=where))
        wait_until(lambda: notices(log, name))
        execute(url, "SELECT pg_drop_replication_slot('another')")  # it is there
    assert [what for what, _ in notices(log, name)] == ["snapshot refused"]
    assert topic_rows(log, name) == source_rows(url)


def test_one_table_alone_may_be_captured_again(name, url, broker):
    filled(url)
    log = broker.bootstrap
    with running(feed(name, url, log)):
        streaming(url, slot_name(name))
        send(log, name, Command("snapshot", table="t", incremental=False))
        wait_until(lambda: any(value and value["op"] == "t" for _, value in read(log, f"{name}.public.t")))
        execute(url, "DELETE FROM t WHERE id > 10")
        wait_until(lambda: topic_rows(log, name) == source_rows(url))


@pytest.mark.parametrize(
    ("snapshot", "number", "seen"),
    [
        ("10:20:12,15", 9, True),
        ("10:20:12,15", 12, False),
        ("10:20:12,15", 13, True),
        ("10:20:", 20, False),
        (f"{(1 << 32) - 5}:{(1 << 32) + 5}:", (1 << 32) - 7, True),
        (f"{(1 << 32) - 5}:{(1 << 32) + 5}:", 4, True),
        (f"{(1 << 32) - 5}:{(1 << 32) + 5}:{(1 << 32) - 2}", (1 << 32) - 2, False),
        (f"{(3 << 32) - 5}:{3 << 32}:", 3, False),
    ],
)
def test_a_reader_sees_transactions_by_number_also_where_numbers_begin_again(snapshot, number, seen):
    assert Visibility.parse(snapshot).sees(number) is seen
