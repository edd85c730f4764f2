"""Producers, consumers and admin calls for any Kafka address: the embedded log or Apache Kafka.

Every caller outside Spark gets its client here, so that the settings that decide about correctness
stand in one place: how a log is reached, idempotent producers, and the partitioner that Java clients use.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from headwater.access import Log, access
from headwater.clock import SystemClock
from headwater.errors import MachineError
from headwater.partition import Choice, Partitioner, chooser

__all__ = ["FENCED", "TIMEOUT_S", "Client", "acquaint", "admin", "consumer", "producer"]

TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_MS = 300_000
"""How long a record waits for a broker that is away before it counts as lost."""
READ_TIMEOUT_S = 30.0
BATCH_RECORDS = 10_000
FEW_RECORDS = 100
READING: dict[str, Any] = {"fetch.wait.max.ms": 10}
"""The end of a partition may be a transaction's marker; then only an empty fetch tells that it is reached, and the default takes half a second."""
RETRY_S = 0.2
ASK_S = 1.0
"""One try of a question; between two of them a refusal is noticed."""
COUNT_AGE_S = 60.0
"""How old the number of a topic's partitions may be for a partitioner of ours."""
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
"""What a log says that is away, has just come back or has another leader, and our own library of a broker that it has given up: asking again helps."""
NEW = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT"})
"""What a log and our own library say of a topic that has just been made and is not known everywhere yet."""
FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}
"""What a log says to a transactional producer whose id another has taken over."""
REFUSED = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"}
"""What a log says that will not let us in, however often it is asked."""

logger = logging.getLogger("headwater.librdkafka")
logger.addHandler(logging.NullHandler())
logger.propagate = False


def producer(log: Log, *, partitioner: Partitioner = "key", **settings: Any) -> Producer:
    """A producer that neither doubles nor reorders, and spreads keys as Java clients do or as ``partitioner`` says."""
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
    return Producer(options, logger=logger) if make is None else _Spreading(options, make)


class _Spreading(Producer):  # type: ignore[misc]  # the library has no types
    """A producer whose partitions are chosen here. For one thread; a partition that the caller names stays."""

    def __init__(self, options: dict[str, Any], make: Callable[[], Choice]) -> None:
        super().__init__(options, logger=logger)
        self._make = make
        self._clock = SystemClock()
        self._choices: dict[str, Choice] = {}
        self._counts: dict[str, tuple[int, float]] = {}

    def produce(
        self, topic: str, value: Any = None, key: Any = None, partition: int = -1, *more: Any, **named: Any
    ) -> None:
        if partition < 0:
            choose = self._choices.setdefault(topic, self._make())
            partition = choose(_bytes(key), _bytes(value), self._count(topic))
        super().produce(topic, value, key, partition, *more, **named)

    def _count(self, topic: str) -> int:
        known, at = self._counts.get(topic, (0, 0.0))
        now = self._clock.monotonic()
        if known and now < at + COUNT_AGE_S:
            return known
        found = known
        try:
            found = len(self.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) or known
        except KafkaException as error:
            if not known:
                raise MachineError(
                    f"the partitions of topic {topic!r} are not known", got=error.args[0].str()
                ) from error
        if not found:
            raise MachineError(f"topic {topic!r} has no partitions", hint="does it exist?")
        self._counts[topic] = (found, now)
        return found


def consumer(log: Log, *, group: str = READER, **settings: Any) -> Consumer:
    """A consumer for looking: it commits nothing by itself, sees no open transaction, and says where a partition ends."""
    options = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    return Consumer(access(log).librdkafka() | options | settings, logger=logger)


def admin(log: Log, *, offsets: bool = True) -> AdminClient:
    """An admin client that survives the restart of a broker; without ``offsets`` it is not asked for those of groups.

    librdkafka 2.16 drops every broker that it knows when all are away, but goes on asking the dropped one for
    coordinators: offset calls then time out for ever, so one for them keeps its brokers. But while those are away, a question that is
    open takes a whole core.
    """
    options = {"metadata.recovery.strategy": "none" if offsets else "rebootstrap"}
    return AdminClient(access(log).librdkafka() | options | {"reconnect.backoff.max.ms": 500}, logger=logger)


def acquaint(reader: Consumer) -> None:
    """Tells a consumer where partitions are now; a new one that does not know looks for their first offset after half a second."""
    with contextlib.suppress(KafkaException):
        reader.list_topics(timeout=ASK_S)


class Client:
    """Questions to a log, answered within ``timeout_s`` or with a MachineError. Any thread may call.

    A log that is away is asked again until then; one that refuses us, for its certificate or our password, ends the
    question at once. Only ``ensure_topics`` and ``config`` are admin requests: librdkafka may abort the process when the
    log goes away under one.
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
        """Creates the topics that do not exist yet, and returns when they are known; an existing one is left as it is."""
        known = self.partitions()
        replicas = self.log.replication
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
            for name in dict.fromkeys(names)
            if name not in known
        ]
        if not wanted:
            return
        asked = admin(self.log)  # kept until the last answer: a client without owner ends its requests
        for name, answer in asked.create_topics(wanted, request_timeout=self._timeout_s).items():
            try:
                answer.result(self._timeout_s)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise MachineError(
                        f"topic {name!r} cannot be created", got=error.args[0].str()
                    ) from error
            except TimeoutError as error:
                raise self._unreachable(f"no answer within {self._timeout_s:.0f} s") from error
        self.await_topics({each.topic for each in wanted})

    def await_topics(self, names: set[str]) -> None:
        """Returns when new topics are known: the broker that is asked next may hear of one a moment later than who confirmed it."""
        limit = self._clock.monotonic() + self._timeout_s
        while missing := names - self.partitions().keys():
            if self._clock.monotonic() >= limit:
                raise self._unreachable(f"topic {min(missing)!r} was created and is not known")
            self._pause.wait(RETRY_S)

    def config(self, topic: str) -> dict[str, str]:
        """The settings of a topic by Kafka's names."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = admin(self.log)  # kept until the answer: a client without owner ends its requests
        try:
            found = asked.describe_configs([resource])[resource].result(self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            raise self._unreachable(str(error)) from error
        return {name: str(entry.value) for name, entry in found.items()}

    def end_offsets(self, topics: Iterable[str], *, uncommitted: bool = False) -> dict[tuple[str, int], int]:
        """The offset behind the last record of every partition; a topic that does not exist has none."""
        known, group = self.partitions(), UNCOMMITTED if uncommitted else READER
        return {
            (topic, partition): self._end(TopicPartition(topic, partition), group)
            for topic in topics
            for partition in range(known.get(topic, 0))
        }

    def open_ends(self, topic: str, partitions: int) -> dict[int, int]:
        """The offset behind the last record of each partition, those of open transactions included."""
        return {number: self._end(TopicPartition(topic, number), UNCOMMITTED) for number in range(partitions)}

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """For each partition, the offset of the first record that the log still holds, and the one behind the last, whether committed or not."""
        numbers = range(self.partitions().get(topic, 0))
        return {number: self._bounds(TopicPartition(topic, number), UNCOMMITTED) for number in numbers}

    def committed(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed; a partition without one is left out."""
        asked = [TopicPartition(topic, partition) for topic, partition in partitions]
        if not asked:
            return {}
        answer = self._ask(lambda reader, seconds: reader.committed(asked, timeout=seconds), group)
        return {(entry.topic, entry.partition): entry.offset for entry in answer if entry.offset >= 0}

    def read(
        self,
        topics: Iterable[str],
        upto: Mapping[str, Mapping[int, int]] | None = None,
        *,
        since: Mapping[str, Mapping[int, int]] | None = None,
        uncommitted: bool = False,
        ahead_bytes: int | None = None,
    ) -> Iterator[Message]:
        """Every record of the topics that is there at the time of the call, partition by partition; with ``upto`` only those before it.

        With ``since`` only those from there on, where that says anything; with ``uncommitted`` those of open and aborted transactions too.
        ``ahead_bytes`` bounds what is read before it is asked for, where records are large and memory is not.
        """
        there = self.end_offsets(topics, uncommitted=uncommitted)
        if upto is not None:
            there = {place: min(end, upto.get(place[0], {}).get(place[1], 0)) for place, end in there.items()}
        starts = {
            (topic, partition): (since or {}).get(topic, {}).get(partition, OFFSET_BEGINNING)
            for topic, partition in there
        }
        wanted = {place: end for place, end in there.items() if end > max(starts[place], 0)}
        ends = dict(wanted)
        level = {"isolation.level": "read_uncommitted"} if uncommitted else {}
        most = BATCH_RECORDS if ahead_bytes is None else FEW_RECORDS
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
                first = reader.poll(READ_TIMEOUT_S)
                if first is None:
                    raise MachineError(f"log {self.log} sent nothing for {READ_TIMEOUT_S:.0f} s")
                # consume alone would wait for a full batch; with no time to wait it takes what is there.
                messages = [first, *reader.consume(most, 0)]
                for message in messages:
                    for sound in _sound(message, ends):
                        if upto is None or sound.offset() < wanted[sound.topic(), sound.partition()]:
                            yield sound
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
        """One connection for all questions about a group."""
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
        """Asks again while the log is away, or says one of ``also``: a client that has just lost its connection answers at once that it is down.

        One that asks in vain may be asking a broker that has died for a partition that another leads now, or
        remember of a new topic for a quarter of an hour that nobody leads it: it is told anew before each try.
        """
        reader = self._reader(group)
        limit = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                return question(reader, min(ASK_S, max(0.1, limit - self._clock.monotonic())))
            except KafkaException as error:
                reader.poll(0)  # calls _note with what the library has met meanwhile
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


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


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
