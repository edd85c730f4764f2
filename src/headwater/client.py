"""Producers, consumers and admin calls for any Kafka address: the embedded log or Apache Kafka.

Every caller outside Spark gets its client here, so that the settings that decide about correctness
stand in one place: idempotent producers, and the partitioner that Java clients use.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.errors import MachineError

__all__ = ["TIMEOUT_S", "Client", "admin", "consumer", "producer"]

TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_MS = 300_000
"""How long a record waits for a broker that is away before it counts as lost."""
READ_TIMEOUT_S = 30.0
BATCH_RECORDS = 10_000
READER = "headwater.reader"

logger = logging.getLogger("headwater.librdkafka")
logger.addHandler(logging.NullHandler())
logger.propagate = False


def producer(bootstrap: str, **settings: Any) -> Producer:
    """A producer that neither doubles nor reorders, and spreads keys as Java clients do."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 1_000,
        }
        | settings,
        logger=logger,
    )


def consumer(bootstrap: str, *, group: str = READER) -> Consumer:
    """A consumer for looking: it commits nothing by itself, sees no open transaction, and says where a partition ends."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        },
        logger=logger,
    )


def admin(bootstrap: str) -> AdminClient:
    """An admin client that survives the restart of a broker.

    librdkafka 2.16 drops every broker that it knows when all are away, but goes on asking the dropped one for
    coordinators: offset calls then time out for ever. It must keep its brokers.
    """
    settings = {
        "bootstrap.servers": bootstrap,
        "metadata.recovery.strategy": "none",
        "reconnect.backoff.max.ms": 500,
    }
    return AdminClient(settings, logger=logger)


class Client:
    """Questions to a log, answered within ``TIMEOUT_S`` or with a MachineError. For one thread.

    Only ``ensure_topics`` is an admin request: librdkafka may abort the process when the log goes away under one.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._readers: dict[str, Consumer] = {}

    def is_reachable(self, timeout_s: float = 1.0) -> bool:
        """Whether a broker answers at the address."""
        try:
            self._reader().list_topics(timeout=timeout_s)
        except KafkaException:
            return False
        return True

    def partitions(self) -> dict[str, int]:
        """All topics with their number of partitions."""
        try:
            topics = self._reader().list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            raise self._unreachable(error) from error
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def ensure_topics(self, names: Iterable[str], partitions: int) -> None:
        """Creates the topics that do not exist yet; an existing one is left as it is."""
        wanted = [NewTopic(name, num_partitions=partitions, replication_factor=-1) for name in names]
        asked = admin(self.bootstrap)  # kept until the last answer: a client without owner ends its requests
        for name, answer in asked.create_topics(wanted, request_timeout=TIMEOUT_S).items():
            try:
                answer.result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise MachineError(
                        f"topic {name!r} cannot be created", got=error.args[0].str()
                    ) from error
            except TimeoutError as error:
                raise self._unreachable(error) from error

    def end_offsets(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """The offset behind the last record of every partition; a topic that does not exist has none."""
        known = self.partitions()
        places = [
            TopicPartition(topic, partition) for topic in topics for partition in range(known.get(topic, 0))
        ]
        reader = self._reader()
        try:
            return {
                (place.topic, place.partition): reader.get_watermark_offsets(place, timeout=TIMEOUT_S)[1]
                for place in places
            }
        except KafkaException as error:
            raise self._unreachable(error) from error

    def committed(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed; a partition without one is left out."""
        asked = [TopicPartition(topic, partition) for topic, partition in partitions]
        try:
            answer = self._reader(group).committed(asked, timeout=TIMEOUT_S) if asked else []
        except KafkaException as error:
            raise self._unreachable(error) from error
        return {(entry.topic, entry.partition): entry.offset for entry in answer if entry.offset >= 0}

    def read(self, topics: Iterable[str]) -> Iterator[Message]:
        """Every record of the topics that is there at the time of the call, partition by partition."""
        ends = {place: end for place, end in self.end_offsets(topics).items() if end > 0}
        reader = consumer(self.bootstrap)
        try:
            reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in ends])
            while ends:
                first = reader.poll(READ_TIMEOUT_S)
                if first is None:
                    raise MachineError(f"log {self.bootstrap} sent nothing for {READ_TIMEOUT_S:.0f} s")
                # consume alone would wait for a full batch; with no time to wait it takes what is there.
                messages = [first, *reader.consume(BATCH_RECORDS, 0)]
                for message in messages:
                    yield from _sound(message, ends)
        finally:
            reader.close()

    def _reader(self, group: str = READER) -> Consumer:
        """One connection for all questions about a group."""
        if group not in self._readers:
            self._readers[group] = consumer(self.bootstrap, group=group)
        return self._readers[group]

    def _unreachable(self, error: Exception) -> MachineError:
        known = bool(error.args) and isinstance(error.args[0], KafkaError)
        reason = error.args[0].str() if known else f"no answer within {TIMEOUT_S:.0f} s"
        return MachineError(
            f"log {self.bootstrap} does not answer", got=reason, hint="is the broker running?"
        )


def _sound(message: Message, ends: dict[tuple[str, int], int]) -> Iterator[Message]:
    """Passes a record on, and takes its partition out of ``ends`` when that was the last one."""
    place = (message.topic(), message.partition())
    error = message.error()
    if error is None:
        if message.offset() + 1 >= ends.get(place, 0):
            ends.pop(place, None)
        yield message
    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
        ends.pop(place, None)
    else:
        raise MachineError(f"log cannot be read: {error.str()}")
