"""Clients that write while the broker is being killed, and note what the broker promised them.

Each is one thread. It ends when ``stop`` is set and everything that it began is decided.
"""

import contextlib
import random
import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from crash.promises import Place, Promised, Sent

__all__ = ["LEDGER", "SOURCE", "TARGET", "Committer", "Load", "Transactional", "Transformer", "Writer"]

LEDGER, SOURCE, TARGET = "ledger", "source", "target"
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "log_level": 0,
    # librdkafka 2.16 forgets a coordinator's waiting requests when it bootstraps again.
    "metadata.recovery.strategy": "none",
}
QUICK_READER = {"fetch.error.backoff.ms": 10, "fetch.wait.max.ms": 50, "enable.auto.commit": False}
PATIENCE_S = 60
STUCK_MS = 5000
"""Batches expire early: in about one life of ten, an abort after a kill has waited for a minute, and why is not known yet."""


@dataclass
class Load:
    """What the clients of one life share."""

    bootstrap: str
    partitions: int
    promised: Promised = field(default_factory=Promised)
    stop: threading.Event = field(default_factory=threading.Event)
    transformed: int = 0
    """How many transactions of the transformer have ended."""

    def client(self, **settings: object) -> dict[str, object]:
        return {"bootstrap.servers": self.bootstrap, **QUICK, **settings}


class Writer:
    """An idempotent producer. A hasty one gives up on records soon: those may be there, but not twice.

    It sends one record at a time to one partition. A client that gives up on one of several batches under way continues with
    a new producer id, under which no broker could recognise the others.
    """

    def __init__(self, load: Load, name: str, topic: str, seed: int, codec: str, *, hasty: bool = False):
        self._load, self._name, self._topic = load, name, topic
        self._chance = random.Random(seed)
        self._settings = {
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": self._chance.choice([0, 1, 5]),
            "message.timeout.ms": PATIENCE_S * 1000,
        }
        if hasty:
            self._settings |= {"message.timeout.ms": 300, "max.in.flight": 1, "batch.num.messages": 1}
        self._hasty = hasty
        self.failed = 0

    def run(self) -> None:
        producer = Producer(self._load.client(**self._settings))
        number, pause = 0, self._chance.uniform(0.002, 0.01)
        while not self._load.stop.is_set():
            for _ in range(self._chance.randint(1, 5)):
                value = f"{self._name}:{number}"
                number += 1
                self._load.promised.sent.add(value)
                partition = 0 if self._hasty else self._chance.randrange(self._load.partitions)
                producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            producer.poll(0)
            time.sleep(pause)
        assert producer.flush(PATIENCE_S) == 0

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            assert self._hasty, f"{message.value()!r} failed: {error}"
            self.failed += 1
            return
        place = (message.topic(), message.partition())
        acknowledged = self._load.promised.acknowledged.setdefault(place, [])
        acknowledged.append((message.offset(), message.value().decode()))


class Transactional:
    """A transactional producer that commits, aborts, and now and then is replaced by a new one while its commit is in doubt."""

    def __init__(self, load: Load, name: str, seed: int, codec: str) -> None:
        self._load, self._name = load, name
        self._chance = random.Random(seed)
        self._codec = codec
        self._number = 0

    def run(self) -> None:
        producer = self._new_producer()
        while not self._load.stop.is_set():
            sent = Sent(set())
            self._load.promised.transactions.append(sent)
            try:
                self._write(producer, sent)
                sent.outcome = self._end(producer, commit=self._chance.random() < 0.7)
            except KafkaException as error:
                if _is_abortable(error) and self._abort(producer):
                    sent.outcome = "aborted"
                else:
                    producer = self._new_producer()
                self._after_doubt()
        self._new_producer()  # ends what its predecessor has left open

    def _new_producer(self) -> Producer:
        settings = {
            "transactional.id": self._name,
            "compression.type": self._codec,
            "linger.ms": 1,
            "message.timeout.ms": STUCK_MS,
            "transaction.timeout.ms": PATIENCE_S * 1000,
        }
        producer = Producer(self._load.client(**settings))
        producer.init_transactions(PATIENCE_S)
        return producer

    def _write(self, producer: Producer, sent: Sent) -> None:
        producer.begin_transaction()
        for _ in range(self._chance.randint(1, 12)):
            self._produce(producer, sent, (LEDGER, self._chance.randrange(self._load.partitions)))

    def _produce(self, producer: Producer, sent: Sent, place: Place, value: str | None = None) -> None:
        if value is None:
            value = f"{self._name}:{self._number}"
            self._number += 1
        self._load.promised.sent.add(value)
        sent.values.add((place, value))
        producer.produce(place[0], value, partition=place[1])

    def _end(self, producer: Producer, *, commit: bool) -> str:
        if not commit:
            producer.abort_transaction(PATIENCE_S)
            return "aborted"
        try:
            producer.commit_transaction(0.3)
        except KafkaException as error:
            if not error.args[0].retriable() or self._chance.random() < 0.3:
                raise
            producer.commit_transaction(PATIENCE_S)
        return "committed"

    def _abort(self, producer: Producer) -> bool:
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(PATIENCE_S)
            return True
        return False

    def _after_doubt(self) -> None:
        """What a subclass has to read again when a transaction did not end as it should."""


class Transformer(Transactional):
    """Consume, transform, produce: each record of the source once in the target, with the group's offset in the same transaction."""

    GROUP = "transformer"

    def run(self) -> None:
        settings = {"group.id": self.GROUP, "isolation.level": "read_committed", **QUICK_READER}
        self._consumer = Consumer(self._load.client(**settings))
        self._places = [TopicPartition(SOURCE, p) for p in range(self._load.partitions)]
        self._after_doubt()
        super().run()
        self._consumer.close()

    def _write(self, producer: Producer, sent: Sent) -> None:
        messages = []
        while not messages and not self._load.stop.is_set():
            messages = [m for m in self._consumer.consume(self._chance.randint(1, 40), 0.05) if not m.error()]
        producer.begin_transaction()
        positions = {}
        self._number += 1
        for message in messages:
            value = f"{SOURCE}{message.partition()}:{message.offset()}.{self._number}"
            self._produce(producer, sent, (TARGET, message.partition()), value)
            positions[message.partition()] = message.offset() + 1
        if positions:
            offsets = [TopicPartition(SOURCE, partition, offset) for partition, offset in positions.items()]
            group = self._consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, group, PATIENCE_S)

    def _end(self, producer: Producer, *, commit: bool) -> str:
        outcome = super()._end(producer, commit=commit)
        self._load.transformed += 1
        if outcome == "aborted":
            self._after_doubt()
        return outcome

    def _after_doubt(self) -> None:
        """The group's offsets say how far the last committed transaction has come."""
        stored = self._consumer.committed(self._places, PATIENCE_S)
        self._consumer.assign(
            [TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in stored]
        )


class Committer:
    """A consumer that commits a growing offset, one at a time."""

    GROUP = "committer"

    def __init__(self, load: Load) -> None:
        self._load = load

    def run(self) -> None:
        consumer = Consumer(self._load.client(**{"group.id": self.GROUP}, **QUICK_READER))
        offset = 0
        allowed = self._load.promised.commits.setdefault((LEDGER, 0), [-1001])
        while not self._load.stop.is_set():
            offset += 1
            allowed.append(offset)
            with contextlib.suppress(KafkaException):
                consumer.commit(offsets=[TopicPartition(LEDGER, 0, offset)], asynchronous=False)
                del allowed[:-1]
            time.sleep(0.005)
        consumer.close()


def _is_abortable(error: KafkaException) -> bool:
    return bool(error.args[0].txn_requires_abort())
