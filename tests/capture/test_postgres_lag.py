"""How far a PostgreSQL capture is behind, in bytes of the server's log."""

import uuid

import pytest

from captured import execute, running, streaming
from headwater.capture.control import Command, send
from headwater.capture.feed import Feed
from headwater.capture.ledger import last_state
from headwater.capture.postgres import PostgresSource, slot_name
from servers import wait_until

FILL = "INSERT INTO {} SELECT i, repeat(md5(i::text), 30) FROM generate_series({}, {}) i"


@pytest.fixture
def name(monkeypatch) -> str:
    for each in ("ALIVE_S", "LAG_S", "HEARTBEAT_S"):
        monkeypatch.setattr(f"headwater.capture.postgres.{each}", 0.1)
    monkeypatch.setattr("headwater.capture.alarm.LOOK_S", 0.1)
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
