"""An audit finds what a topic has lost, kept too long or never should have had, and a repair of those ranges mends it."""

import json
import threading
import uuid

import psycopg
import pytest

from headwater.capture import Postgres
from headwater.capture.loop.control import finished, send
from headwater.capture.loop.feed import Feed
from headwater.capture.messages import Command
from headwater.capture.postgres.slot import slot_name
from headwater.capture.reread import audit
from headwater.client.client import Client, producer
from headwater.errors import CaptureError
from support.captured import execute, running, streaming
from support.servers import wait_until

ROWS = 300


@pytest.fixture
def name(monkeypatch) -> str:
    monkeypatch.setattr("headwater.capture.loop.log_writer.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.stream.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.stream.ALIVE_S", 0.1)
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
    """Puts records into a topic without its capture."""
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


def test_table_and_topic_are_compared_at_one_position_while_writers_write(name, url, broker):
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


def test_an_audit_of_a_capture_that_does_not_run_says_so(name, url, broker, monkeypatch):
    monkeypatch.setattr(audit, "WAIT_S", 0.1)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(CaptureError, match="does it run"):
        Postgres(url, ["t"]).audit(name, _with_topic(broker.bootstrap, name), "t")


def _with_topic(log: str, name: str) -> str:
    client = Client(log)
    client.ensure_topics([f"{name}.capture"], 1, {})
    client.close()
    return log


ODD = [
    '{"id":7777}',
    '{"id":7777,"x":1}',
    "plain",
    "5",
    "[1]",
    '{"x":1}',
    '{"id":null}',
    '{"id":"abc"}',
    '{"id":true}',
    '{"id":1.5}',
    '{"id":99999999999999999999}',
    '{"id":"a\\u0000b"}',
]
"""Keys that no row of a table with whole numbers as its key has."""
SPELLED = ['{"id": 5}', '{"id":5,"x":1}']
"""Row 5 to who knows rows by what their key says."""


def test_ghosts_of_any_shape_are_deleted_and_a_row_in_another_spelling_is_not(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 9) i",
    )
    log, topic = broker.bootstrap, f"{name}.public.t"
    declared = Postgres(url, ["t"])
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        wait_until(lambda: len(values(log, topic)) == 9)
        row = values(log, topic)['{"id":9}']
        plant(log, topic, *((key, row) for key in (*ODD, *SPELLED)))
        (difference,) = declared.audit(name, log, "t").differences
        assert set(difference.within.ghosts) == {*ODD, *SPELLED}

        command = Command("snapshot", table="public.t", ranges=(difference.within,))
        send(log, name, command)
        said = finished(log, name, command.id)
        assert said.startswith("snapshot finished: 0 rows; 2 keys"), said
        (difference,) = declared.audit(name, log, "t").differences
        assert set(difference.within.ghosts) == set(SPELLED)
        execute(url, "INSERT INTO t VALUES (100, 0)")
        wait_until(lambda: '{"id":100}' in values(log, topic), what="the capture that continues")


def test_a_ghost_with_a_boolean_in_its_key_is_deleted(name, url, broker):
    execute(url, "CREATE TABLE t (id boolean PRIMARY KEY, n int)", "INSERT INTO t VALUES (false, 1)")
    log, topic = broker.bootstrap, f"{name}.public.t"
    declared = Postgres(url, ["t"])
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        wait_until(lambda: values(log, topic))
        plant(log, topic, ('{"id":true}', values(log, topic)['{"id":false}']))
        (difference,) = declared.audit(name, log, "t").differences
        command = Command("snapshot", table="public.t", ranges=(difference.within,))
        send(log, name, command)
        finished(log, name, command.id)
        assert declared.audit(name, log, "t").differences == []


def test_a_row_that_a_tombstone_alone_has_taken_away_is_found(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    log, topic = broker.bootstrap, f"{name}.public.t"
    declared = Postgres(url, ["t"])
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        wait_until(lambda: len(values(log, topic)) == 9)
        plant(log, topic, ('{"id":3}', None))
        (difference,) = declared.audit(name, log, "t").differences
    assert (difference.table_rows, difference.topic_rows) == (9, 8)


def test_rows_whose_large_values_an_update_left_as_they_are_do_not_differ(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 0, repeat('x', 9000) FROM generate_series(1, 5) i",
    )
    log, topic = broker.bootstrap, f"{name}.public.t"
    declared = Postgres(url, ["t"])
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        execute(url, "UPDATE t SET n = 1 WHERE id = 2")
        wait_until(lambda: values(log, topic).get('{"id":2}', {}).get("op") == "u")
        assert declared.audit(name, log, "t").differences == []


def test_records_that_are_not_events_are_differences_that_a_repair_mends(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    log, topic = broker.bootstrap, f"{name}.public.t"
    declared = Postgres(url, ["t"])
    with running(Feed(name, declared.open(name, None), log)):
        streaming(url, slot_name(name))
        wait_until(lambda: len(values(log, topic)) == 9)
        event = values(log, topic)['{"id":4}']
        plant(log, topic, ('{"id":2}', "plain"), ('{"id":3}', {"no": "event"}), ('{"id":8}', 5))
        plant(log, topic, ('{"id":4}', event | {"source": {"alien": 1}}), ('{"id":77}', {}))
        found = declared.audit(name, log, "t").differences
        assert [(each.table_rows, each.topic_rows) for each in found] == [(9, 9), (0, 1)]
        command = Command("snapshot", table="public.t", ranges=tuple(each.within for each in found))
        send(log, name, command)
        finished(log, name, command.id)
        assert declared.audit(name, log, "t").differences == []
