"""An audit finds what a topic has lost, kept too long or never should have had, and a repair of those ranges mends it."""

import json
import threading
import uuid

import psycopg
import pytest

from captured import execute, running, streaming
from headwater.capture import Postgres, audit
from headwater.capture.control import Command, finished, send
from headwater.capture.feed import Feed
from headwater.capture.postgres import slot_name
from headwater.client import Client, producer
from headwater.errors import CaptureError
from servers import wait_until

ROWS = 300


@pytest.fixture
def name(monkeypatch) -> str:
    monkeypatch.setattr("headwater.capture.feed.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.ALIVE_S", 0.1)
    monkeypatch.setattr(audit, "RANGE_ROWS", 50)
    return f"audit{uuid.uuid4().hex[:8]}"


def values(log: str, topic: str) -> dict[str, dict]:
    """The last event of each key."""
    client = Client(log)
    try:
        found = [(message.key(), message.value()) for message in client.read([topic])]
    finally:
        client.close()
    return {key.decode(): json.loads(value) for key, value in found if key is not None and value is not None}


def plant(log: str, topic: str, *records: tuple[str, dict | None]) -> None:
    """Puts records into a topic behind the back of its capture."""
    sender = producer(log)
    for key, value in records:
        sender.produce(topic, None if value is None else json.dumps(value), key)
    assert sender.flush(60) == 0


def test_lost_old_and_ghost_rows_are_found_and_repaired(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, name text, price numeric, at timestamptz)",
        f"INSERT INTO t SELECT i, 'n' || i, i * 1.5, now() FROM generate_series(1, {ROWS}) i",
    )
    log, topic = broker.bootstrap, f"{name}.public.t"
    declared = Postgres(url, ["t"])
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        execute(
            url,
            "UPDATE t SET name = 'new' WHERE id = 120",
            "ALTER TABLE t ADD more text",
            "DELETE FROM t WHERE id = 3",
        )
        execute(url, "INSERT INTO t VALUES (1000, 'é', 1, NULL, 'x')")
        wait_until(lambda: '{"id":1000}' in values(log, topic))
        report = declared.audit(name, log, "t")
        assert (report.rows, report.ranges, report.differences) == (ROWS, 6, [])

        found = values(log, topic)
        lost, old, ghost = found['{"id":10}'], found['{"id":120}'], found['{"id":200}']
        plant(
            log,
            topic,
            ('{"id":10}', lost | {"op": "d", "before": lost["after"], "after": None}),
            ('{"id":120}', old | {"after": old["after"] | {"name": "n120"}}),
            ('{"id":7777}', ghost | {"op": "c", "after": ghost["after"] | {"id": 7777}}),
        )
        differences = declared.audit(name, log, "public.t").differences
        shown = [(one.within.after, one.within.upto, one.within.ghosts) for one in differences]
        assert shown == [
            (None, ("51",), ()),
            (("101",), ("151",), ()),
            (None, None, ('{"id":7777}',)),
        ]
        assert [one.table_rows - one.topic_rows for one in differences] == [1, 0, -1]
        assert differences[1].table_sum != differences[1].topic_sum

        command = Command("snapshot", table="public.t", ranges=tuple(one.within for one in differences))
        send(log, name, command)
        assert finished(log, name, command.id) == "snapshot finished: 100 rows"
        assert declared.audit(name, log, "t").differences == []
    assert values(log, topic)['{"id":7777}']["op"] == "d"


def test_table_and_topic_are_compared_at_one_place_while_writers_go_on(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 99) i",
    )
    log, declared, over = broker.bootstrap, Postgres(url, ["t"]), threading.Event()

    def write() -> None:
        with psycopg.connect(url) as connection:
            while not over.is_set():
                connection.execute("UPDATE t SET n = n + 1 WHERE id < 50")
                connection.execute("DELETE FROM t WHERE id = 60 + (random() * 30)::int")
                connection.commit()

    writer = threading.Thread(target=write)
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        writer.start()
        try:
            assert [declared.audit(name, log, "t").differences for _ in range(2)] == [[], []]
        finally:
            over.set()
            writer.join()


def test_an_audit_of_a_capture_that_stands_says_so(name, url, broker, monkeypatch):
    monkeypatch.setattr(audit, "WAIT_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(CaptureError, match="does it run"):
        Postgres(url, ["t"]).audit(name, _with_topic(broker.bootstrap, name), "t")


def _with_topic(log: str, name: str) -> str:
    client = Client(log)
    client.ensure_topics([f"{name}.capture"], 1, {})
    client.close()
    return log
