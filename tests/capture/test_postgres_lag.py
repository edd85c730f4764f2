"""The lag of a PostgreSQL capture, in bytes of the server's log."""

import uuid

import pytest

from headwater.capture.loop.control import send
from headwater.capture.loop.feed import Feed
from headwater.capture.messages import Command
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.state import last_state
from support.captured import execute, running, streaming
from support.servers import wait_until

FILL = "INSERT INTO {} SELECT i, repeat(md5(i::text), 30) FROM generate_series({}, {}) i"


@pytest.fixture
def name(monkeypatch) -> str:
    monkeypatch.setattr("headwater.capture.postgres.source.LAG_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.stream.ALIVE_S", 0.1)
    monkeypatch.setattr("headwater.capture.postgres.stream.HEARTBEAT_S", 0.1)
    monkeypatch.setattr("headwater.capture.loop.retention_alarm.CHECK_S", 0.1)
    return f"lag{uuid.uuid4().hex[:8]}"


def test_a_capture_that_reads_slowly_shows_bytes_that_grow_and_fall_again(name, url):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, x text)")
    source = PostgresSource(name, url, ("t",))
    try:
        parts = source.read(None)
        wait_until(lambda: next(parts).position)
        wait_until(lambda: next(parts).records == [])
        execute(url, FILL.format("t", 1, 1_000))
        wait_until(lambda: source.lag_bytes > 500_000)
        execute(url, FILL.format("t", 1_001, 3_000))
        wait_until(lambda: source.lag_bytes > 1_500_000)
        wait_until(lambda: (next(parts), source.lag_bytes < 100_000)[1])
    finally:
        source.close()


def test_a_paused_capture_shows_bytes_that_grow(name, url, broker):
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, x text)")
    log = broker.bootstrap
    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        streaming(url, slot_name(name))
        send(log, name, Command("pause"))
        wait_until(lambda: last_state(log, name).paused)
        execute(url, FILL.format("t", 1, 1_000))
        wait_until(lambda: last_state(log, name).lag_bytes > 500_000)
        execute(url, FILL.format("t", 1_001, 3_000))
        wait_until(lambda: last_state(log, name).lag_bytes > 1_500_000)
