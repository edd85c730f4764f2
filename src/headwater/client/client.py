"""Producers, consumers and questions for any log: the embedded one or Apache Kafka.

All code outside Spark gets its Kafka clients here, so that the settings on which correctness depends are in
one place: how a log is reached, idempotent producers, and the partitioner that Java clients use.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
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
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headwater.access import Log, access
from headwater.client.partitioner import Partitioner, chooser
from headwater.client.partitioning_producer import PartitioningProducer
from headwater.client.poll import poll_batch
from headwater.clock import SystemClock
from headwater.errors import MachineError

__all__ = ["FENCED", "TIMEOUT_S", "Client", "acquaint", "admin", "consumer", "producer"]

TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_MS = 300_000
"""How long a record waits for a broker that is away before it is given up."""
READ_TIMEOUT_S = 30.0
BATCH_RECORDS = 10_000
FEW_RECORDS = 100
READING: dict[str, Any] = {"fetch.wait.max.ms": 10}
"""A partition may end with a transaction marker, which is only noticed by an empty fetch.

The default would wait 500 ms.
"""
RETRY_S = 0.2
ASK_S = 1.0
"""One attempt of a question; a refusal is noticed between two attempts."""
READER = "headwater.reader"
UNCOMMITTED = "headwater.reader.uncommitted"
AWAY = {
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_WAIT_COORD",
    "_DESTROY_BROKER",
    "LEADER_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
}
"""Errors of a log that is away, or has just come back or got another leader.

Also of a broker that the library has given up. Asking again helps.
"""
NEW = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT"})
"""Errors for a topic that was just created and is not known everywhere yet."""
FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}
"""Errors for a transactional producer whose id another producer has taken over."""
REFUSED = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"}
"""Errors of a log that will not let us in, however often we ask."""

logger = logging.getLogger("headwater.librdkafka")
logger.addHandler(logging.NullHandler())
logger.propagate = False


def producer(log: Log, *, partitioner: Partitioner = "key", **settings: Any) -> Producer:
    """An idempotent producer, which keeps the order.

    It partitions as Java clients do, or by ``partitioner``.
    """
    options = (
        access(log).librdkafka()
        | {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 1_000,
        }
        | settings
    )
    make = chooser(partitioner)
    return Producer(options, logger=logger) if make is None else PartitioningProducer(options, make, logger)


def consumer(log: Log, *, group: str = READER, **settings: Any) -> Consumer:
    """A consumer that commits nothing by itself, sees no open transaction, and reports ends of partitions."""
    options = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    return Consumer(access(log).librdkafka() | options | settings, logger=logger)


def admin(log: Log, *, offsets: bool = True) -> AdminClient:
    """An admin client that survives the restart of a broker.

    Without ``offsets`` it must not be asked for those of groups. When all brokers are away, librdkafka 2.16
    drops those that it knows, but continues to ask a dropped one for coordinators, so that offset calls time
    out for ever. So a client for offsets keeps its brokers; but while they are away, an open request uses a
    whole core.
    """
    options = {"metadata.recovery.strategy": "none" if offsets else "rebootstrap"}
    return AdminClient(access(log).librdkafka() | options | {"reconnect.backoff.max.ms": 500}, logger=logger)


def acquaint(reader: Consumer) -> None:
    """Lets a consumer look up the partitions' leaders.

    Without this a new one asks for the first offset 500 ms later.
    """
    with contextlib.suppress(KafkaException):
        reader.list_topics(timeout=ASK_S)


class Client:
    """Questions to a log, answered within ``timeout_s`` or with a MachineError.

    Any thread may call. A log that is away is asked again until then; one that refuses us, for its
    certificate or our password, ends the question at once. Only ``ensure_topics`` and ``config`` are admin
    requests: librdkafka may abort the process if the log goes away during one.
    """

    def __init__(self, log: Log, *, timeout_s: float = TIMEOUT_S) -> None:
        self.log = access(log)
        self._timeout_s = timeout_s
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._lock = threading.Lock()
        self._readers: dict[str, Consumer] = {}
        self._refusal: KafkaError | None = None

    def close(self) -> None:
        """Ends the connections; the next question opens new ones."""
        with self._lock:
            readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()

    def is_reachable(self, timeout_s: float = 1.0) -> bool:
        """Whether a broker answers at the address."""
        try:
            self._reader().list_topics(timeout=timeout_s)
        except KafkaException:
            return False
        return True

    def partitions(self) -> dict[str, int]:
        """All topics with their number of partitions."""
        topics = self._ask(lambda reader, seconds: reader.list_topics(timeout=seconds)).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def ensure_topics(
        self, names: Iterable[str], partitions: int, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates the topics that do not exist yet, and returns when they are known.

        Existing ones are not changed.
        """
        existing = self.partitions()
        replicas = self.log.replication
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
            for name in dict.fromkeys(names)
            if name not in existing
        ]
        if not wanted:
            return
        client = admin(self.log)  # kept until the last answer: closing it would drop its requests
        for name, answer in client.create_topics(wanted, request_timeout=self._timeout_s).items():
            try:
                answer.result(self._timeout_s)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise MachineError(
                        f"topic {name!r} cannot be created", got=error.args[0].str()
                    ) from error
            except TimeoutError as error:
                raise self._unreachable(f"no answer within {self._timeout_s:.0f} s") from error
        self.await_topics({topic.topic for topic in wanted})

    def await_topics(self, names: set[str]) -> None:
        """Returns when new topics are known: not every broker learns of one at the same moment."""
        limit = self._clock.monotonic() + self._timeout_s
        while missing := names - self.partitions().keys():
            if self._clock.monotonic() >= limit:
                raise self._unreachable(f"topic {min(missing)!r} was created and is still unknown")
            self._pause.wait(RETRY_S)

    def config(self, topic: str) -> dict[str, str]:
        """The settings of a topic by Kafka's names."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        client = admin(self.log)  # kept until the answer: closing it would drop its request
        try:
            settings = client.describe_configs([resource])[resource].result(self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            raise self._unreachable(str(error)) from error
        return {name: str(entry.value) for name, entry in settings.items()}

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Changes one setting of a topic."""
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        client = admin(self.log)
        try:
            client.incremental_alter_configs([resource])[resource].result(self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            raise self._unreachable(str(error)) from error

    def end_offsets(self, topics: Iterable[str], *, uncommitted: bool = False) -> dict[tuple[str, int], int]:
        """The offset after the last record of every partition; a topic that does not exist has none."""
        counts, group = self.partitions(), UNCOMMITTED if uncommitted else READER
        return {
            (topic, partition): self._end(TopicPartition(topic, partition), group)
            for topic in topics
            for partition in range(counts.get(topic, 0))
        }

    def open_ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The offset after the last record of each partition, including those of open transactions."""
        return {number: self._end(TopicPartition(topic, number), UNCOMMITTED) for number in range(partitions)}

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """For each partition, the offset of its first record and the one after its last, committed or not."""
        numbers = range(self.partitions().get(topic, 0))
        return {number: self._bounds(TopicPartition(topic, number), UNCOMMITTED) for number in numbers}

    def committed(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed; partitions without one are left out."""
        places = [TopicPartition(topic, partition) for topic, partition in partitions]
        if not places:
            return {}
        answer = self._ask(lambda reader, seconds: reader.committed(places, timeout=seconds), group)
        return {(entry.topic, entry.partition): entry.offset for entry in answer if entry.offset >= 0}

    def read(
        self,
        topics: Iterable[str],
        upto: Mapping[str, Mapping[int, int]] | None = None,
        *,
        since: Mapping[str, Mapping[int, int]] | None = None,
        uncommitted: bool = False,
        ahead_bytes: int | None = None,
    ) -> Generator[Message, None, None]:
        """Every record that the topics have at the time of the call, partition by partition.

        ``upto`` and ``since`` restrict it to the offsets before and from theirs on; a partition that
        ``since`` does not name is read from its start, one that ``upto`` does not name not at all. With
        ``uncommitted`` it includes the records of open and aborted transactions. ``ahead_bytes`` bounds what
        is fetched in advance, for large records.
        """
        present = self.end_offsets(topics, uncommitted=uncommitted)
        if upto is not None:
            present = {
                place: min(end, upto.get(place[0], {}).get(place[1], 0)) for place, end in present.items()
            }
        starts = {
            (topic, partition): (since or {}).get(topic, {}).get(partition, OFFSET_BEGINNING)
            for topic, partition in present
        }
        wanted = {place: end for place, end in present.items() if end > max(starts[place], 0)}
        ends = dict(wanted)
        level = {"isolation.level": "read_uncommitted"} if uncommitted else {}
        batch_records = BATCH_RECORDS if ahead_bytes is None else FEW_RECORDS
        ahead: dict[str, Any] = (
            {}
            if ahead_bytes is None
            else {"queued.max.messages.kbytes": ahead_bytes >> 10, "fetch.queue.backoff.ms": 10}
        )
        reader = consumer(self.log, **READING, **level, **ahead)
        try:
            acquaint(reader)
            reader.assign([TopicPartition(*place, starts[place]) for place in ends])
            while ends:
                messages = poll_batch(reader, READ_TIMEOUT_S, batch_records)
                if not messages:
                    raise MachineError(f"log {self.log} sent nothing for {READ_TIMEOUT_S:.0f} s")
                for message in messages:
                    for record in _record(message, ends):
                        if upto is None or record.offset() < wanted[record.topic(), record.partition()]:
                            yield record
        finally:
            reader.close()

    def _end(self, place: TopicPartition, group: str) -> int:
        return self._bounds(place, group)[1]

    def _bounds(self, place: TopicPartition, group: str) -> tuple[int, int]:
        answer = self._ask(
            lambda reader, seconds: reader.get_watermark_offsets(place, timeout=seconds), group, also=NEW
        )
        return int(answer[0]), int(answer[1])

    def _reader(self, group: str = READER) -> Consumer:
        """The consumer for all questions about a group."""
        with self._lock:
            if group not in self._readers:
                level = "read_uncommitted" if group == UNCOMMITTED else "read_committed"
                settings = {"isolation.level": level, "error_cb": self._note}
                self._readers[group] = consumer(self.log, group=group, **settings)
            return self._readers[group]

    def _ask(
        self,
        question: Callable[[Consumer, float], Any],
        group: str = READER,
        *,
        also: frozenset[str] = frozenset(),
    ) -> Any:
        """Repeats a question while the log is away, or answers one of ``also``.

        A client that has just lost its connection reports at once that the log is down. A client may also ask
        a dead broker for a partition that has another leader, or remember for a quarter of an hour that a new
        topic has no leader. So the metadata are loaded again before each attempt.
        """
        reader = self._reader(group)
        limit = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                return question(reader, min(ASK_S, max(0.1, limit - self._clock.monotonic())))
            except KafkaException as error:
                reader.poll(0)  # calls _note with the errors that the library has met since
                failure = self._refusal or error.args[0]
                if failure.name() not in AWAY | also or self._clock.monotonic() >= limit:
                    raise self._unreachable(failure.str(), failure.name()) from error
                acquaint(reader)
            self._pause.wait(RETRY_S)

    def _note(self, error: KafkaError) -> None:
        if error.name() in REFUSED:
            self._refusal = error

    def _unreachable(self, reason: str, name: str = "") -> MachineError:
        if name in REFUSED:
            return MachineError(
                f"log {self.log} refuses the connection",
                got=reason,
                hint="see log_user, log_password and log_ca in the settings",
            )
        return MachineError(f"log {self.log} does not answer", got=reason, hint="is the broker running?")


def _record(message: Message, ends: dict[tuple[str, int], int]) -> Iterator[Message]:
    """The message if it is a record; removes its partition from ``ends`` after the last one."""
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
