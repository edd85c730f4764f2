"""A log that is killed in the middle of a capture's transaction, and one that asks who is there."""

import contextlib
import os
import signal
import sqlite3
import threading
import time
import uuid
from pathlib import Path

from headwater.access import Access
from headwater.capture.loop.publisher import Publisher
from headwater.capture.source import Record
from headwater.client.client import Client
from headwater.config import Settings
from support.captured import CaptureProcess, committed, events
from support.servers import BrokerProcess, wait_until

ENDING_S = 20
"""Far less than a log is waited for."""


def keys(log: str | Access, topic: str) -> list[bytes | None]:
    client = Client(log)
    try:
        return [message.key() for message in client.read([topic])]
    finally:
        client.close()


def numbered(topic: str, numbers: range) -> list[Record]:
    return [Record(topic, b"%d" % number, b"%0200d" % number, 0) for number in numbers]


def made_topic(log: str | Access, name: str) -> str:
    client = Client(log)
    client.ensure_topics([name], 1)
    client.close()
    return name


def test_a_transaction_survives_kills_of_the_log_once_and_in_order(own_broker: BrokerProcess):
    topic = made_topic(own_broker.bootstrap, "orders")
    made = Publisher(own_broker.bootstrap, uuid.uuid4().hex)
    made.claim()
    sent: list[bytes | None] = []

    def send(count: int) -> None:
        records = numbered(topic, range(len(sent), len(sent) + count))
        made.send(records)
        sent.extend(record.key for record in records)

    for _ in range(4):
        made.begin()
        send(15_000)
        os.kill(own_broker.pid, signal.SIGSTOP)  # what is on its way has no answer
        killing = threading.Thread(target=lambda: (own_broker.end(signal.SIGKILL), own_broker.start()))
        killing.start()
        send(60_000)
        killing.join()
        made.commit()
    made.close()
    assert keys(own_broker.bootstrap, topic) == sent


def test_a_log_with_tls_and_a_user_is_written_to(guarded_broker: tuple[BrokerProcess, Settings]):
    log = guarded_broker[1].access
    topic = made_topic(log, "orders")
    made = Publisher(log, "shop")
    made.claim()
    made.begin()
    made.send(numbered(topic, range(100)))
    made.commit()
    made.close()
    assert len(keys(log, topic)) == 100


def test_a_log_that_is_away_is_reported_and_does_not_keep_a_capture_from_ending(
    own_broker: BrokerProcess, tmp_path: Path
):
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
        declared = f"Sqlite({str(tmp_path / 'shop.db')!r}, ['item'])"
        capture = CaptureProcess(tmp_path, "shop", declared, own_broker.bootstrap)
        capture.start()
        database.execute("INSERT INTO item VALUES (1, 10)")

        def rows() -> int:
            state = committed(own_broker.bootstrap, "shop")
            return 0 if state is None else state.rows

        wait_until(lambda: rows() > 0, 30, "the first row")
        before = rows()
        own_broker.end(signal.SIGKILL)
        database.execute("INSERT INTO item VALUES (2, 20)")
        wait_until(lambda: "the log does not answer" in capture.log.read_text(), 30, "that it is said")

        begun = time.monotonic()
        assert capture.end(signal.SIGTERM) == 0
        assert time.monotonic() - begun < ENDING_S

        own_broker.start()
        capture.start()
        wait_until(lambda: rows() > before, 30, "the other row")
        capture.end(signal.SIGKILL)
    assert [event.key for event in events(own_broker.bootstrap, "shop")] == [{"id": 1}, {"id": 2}]
