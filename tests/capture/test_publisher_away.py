"""A log that is killed in the middle of a capture's transaction, and one that asks who is there."""

import os
import signal
import threading
import uuid

from headwater.access import Access
from headwater.capture.publisher import Publisher
from headwater.capture.source import Record
from headwater.client import Client
from headwater.config import Settings
from servers import BrokerProcess


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
