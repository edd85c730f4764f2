"""A store that becomes silent within a batch, as after a pulled cable: the sink waits and continues."""

import json
import os
import signal
import threading
import uuid

import psycopg
import pytest
import redis

import headwater as hw
from headwater.sink import Postgres, Redis, patience
from headwater.sink.loop.loop import Loop
from headwater.sink.loop.sinks import Sinks
from headwater.sink.store import SinkFeed
from sink.running import Running
from support.cable import cable
from support.servers import wait_until

KEYS = 500


def in_postgres(postgres, schema, topic):
    with psycopg.connect(postgres.url) as connection:
        try:
            return dict(connection.execute(f'SELECT id, n FROM {schema}."{topic}"').fetchall())
        except psycopg.errors.UndefinedTable:
            return {}


def in_redis(redis_server, topic):
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        keys = list(client.scan_iter(f"{topic}:*", 1_000))
        rows = [json.loads(text) for text in client.mget(keys)] if keys else []
    return {row["id"]: row["n"] for row in rows}


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_store_that_falls_silent_is_noticed_and_waited_for(log, postgres, redis_server, kind, caplog):
    caplog.set_level("INFO", "headwater.sink")
    topic, schema = log.create(partitions=2), f"s{uuid.uuid4().hex[:8]}"
    server = postgres if kind == "postgres" else redis_server

    def rows():
        return in_postgres(postgres, schema, topic) if kind == "postgres" else in_redis(redis_server, topic)

    def put(n):
        log.put(topic, {f"k{key}": {"id": f"k{key}", "n": n + key} for key in range(KEYS)})
        return {f"k{key}": n + key for key in range(KEYS)}

    with cable(server.port) as wire:
        url = server.url.replace(f"127.0.0.1:{server.port}", f"{wire.host}:{wire.port}")
        target = Postgres(url, schema=schema) if kind == "postgres" else Redis(url)
        feed = SinkFeed(f"{topic}.out", topic, ("id",), {"id": "STRING", "n": "BIGINT"})
        running = Running(Loop(log.log, feed.sink, topic, target, lambda: feed))
        expected = put(0)
        wait_until(lambda: rows() == expected, 30, "the first rows")
        wire.pull()
        expected = put(10_000)
        wait_until(lambda: running.loop._patience.waiting, 60, "that the store does not answer")
        wire.plug()
        wait_until(lambda: rows() == expected, 60, "the other rows")
        running.stop()

    assert running.error is None
    said = [r.getMessage() for r in caplog.records if r.name.endswith("patience")]
    assert ["is away" in said[0], "is back" in said[-1], len(said)] == [True, True, 2]


class Row(hw.Row):
    id: str
    n: int


def test_a_store_that_hangs_is_reported_once_and_continues_when_it_wakes(
    log, postgres, caplog, monkeypatch, tmp_path
):
    caplog.set_level("INFO", "headwater.sink")
    monkeypatch.setattr(patience, "ANSWER_S", 0.5)
    topic, schema = log.create(partitions=2), f"s{uuid.uuid4().hex[:8]}"
    app = hw.App("hanging")
    app.table(topic, Row, key="id")
    app.sink(topic, Postgres(postgres.url, schema=schema))
    stop = threading.Event()
    sinks = threading.Thread(target=Sinks(log.log, app.graph(), tmp_path).run, args=(stop,))
    sinks.start()
    log.put(topic, {"a": {"id": "a", "n": 1}})
    wait_until(lambda: in_postgres(postgres, schema, topic) == {"a": 1}, 30, "the first row")
    with psycopg.connect(postgres.url) as connection:
        name = f"headwater sink {topic}.postgres"
        ((pid,),) = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name]
        ).fetchall()

    os.kill(pid, signal.SIGSTOP)
    try:
        log.put(topic, {"a": {"id": "a", "n": 2}})
        wait_until(lambda: "has not answered" in caplog.text, 30, "that the store does not answer")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: in_postgres(postgres, schema, topic) == {"a": 2}, 30, "the other row")
    stop.set()
    sinks.join(120)

    said = [r.getMessage().split(": ", 1)[1] for r in caplog.records if r.name.endswith("patience")]
    assert said == ["the store has not answered for 0 s; does it hang?", "the store answers again"]
