"""Replays into a topic of their own."""

import time

import pytest
from confluent_kafka import Producer

from headwater import testing
from headwater.client.client import Client
from headwater.operate.log.replay import replay
from support.servers import wait_until

MONTH_MS = 30 * 86_400_000


@pytest.fixture
def log():
    """A log whose retention comes round every moment."""
    with testing.broker(retention_interval_s=0.05) as running:
        yield running.bootstrap


def test_a_replay_keeps_records_that_are_older_than_retention_by_default(log):
    client, writer = Client(log), Producer({"bootstrap.servers": log})
    client.ensure_topics(["kept"], 1, {"retention.ms": "-1"})
    for number in range(10):
        writer.produce("kept", b"%d" % number, timestamp=time.time_ns() // 1_000_000 - MONTH_MS)
    assert writer.flush(60) == 0
    assert replay(log, "kept", "again", "earliest", "latest") == 10

    client.ensure_topics(["passing"], 1)
    writer.produce("passing", b"old", timestamp=time.time_ns() // 1_000_000 - MONTH_MS)
    assert writer.flush(60) == 0
    wait_until(lambda: client.bounds("passing")[0] == (1, 1), what="a round of retention after the replay")
    assert client.bounds("again")[0] == (0, 10)
