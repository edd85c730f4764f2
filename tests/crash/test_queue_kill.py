"""A queue on a broker that is killed with SIGKILL while members work: what was confirmed as accepted is not delivered again, and nothing is lost."""

import contextlib
import random
import signal
import threading
import time
from collections import Counter

from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient

from support.servers import PATIENCE, BrokerProcess, create_topic

COUNT = 2000
KILLS = 3
WAIT_S = 60 * PATIENCE
DELIVERIES_MAX = 5


class Work:
    """What the members were answered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.accepted: set[bytes] = set()
        """Confirmed by the broker."""
        self.again: list[bytes] = []
        """Delivered after that."""
        self.deliveries = Counter[bytes]()
        self.ended = threading.Event()

    def run(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "killed",
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
        with contextlib.closing(ShareConsumer(settings)) as consumer:
            consumer.subscribe(["work"])
            while not self.ended.is_set():
                with contextlib.suppress(KafkaException):
                    self.step(consumer)

    def step(self, consumer: ShareConsumer) -> None:
        messages = [message for message in consumer.poll(0.2) if message.error() is None]
        with self.lock:
            for message in messages:
                self.deliveries[message.value()] += 1
                if message.value() in self.accepted:
                    self.again.append(message.value())
        for message in messages:
            consumer.acknowledge(message)
        answers = consumer.commit_sync(10)
        accepted = {(place.topic, place.partition) for place, error in answers.items() if error is None}
        with self.lock:
            self.accepted |= {m.value() for m in messages if (m.topic(), m.partition()) in accepted}


def wait(condition) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_what_is_accepted_stays_accepted_and_the_rest_comes_again(tmp_path):
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), "work", 2)
    work = Work()
    members = [threading.Thread(target=work.run, args=(broker.bootstrap,)) for _ in range(3)]
    for member in members:
        member.start()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "enable.idempotence": True})
    try:
        begun = threading.Event()

        def begin() -> bool:
            for partition in (0, 1):
                producer.produce("work", b"begin %d" % partition, partition=partition)
            producer.flush(10)
            with work.lock:
                return {b"begin 0", b"begin 1"} <= work.accepted or begun.wait(0.2)

        wait(begin)
        expected = {b"%d" % number for number in range(COUNT)}
        for number, value in enumerate(sorted(expected)):
            producer.produce("work", value, partition=number % 2)
            if number % (COUNT // KILLS) == COUNT // KILLS - 1:
                producer.flush(WAIT_S)
                time.sleep(random.random() * 0.2)
                broker.end(signal.SIGKILL)
                broker.start()
        assert producer.flush(WAIT_S) == 0
        wait(lambda: expected <= work.accepted)
    finally:
        work.ended.set()
        for member in members:
            member.join(WAIT_S)
        broker.end()
    again = Counter(value for value in work.again if not value.startswith(b"begin"))
    assert not again
    assert max(work.deliveries[value] for value in expected) <= DELIVERIES_MAX
