"""Journal: the effects of a sink, kept in the log so that any process on any machine can continue.

``<sink>.effects`` is compacted and has a partition for each partition of the source topic. A single one
would be read by every claim, and one open transaction in it would block the claims of all others. A
partition holds its unfinished effects by id, and one `SourceMark`. An effect that has ended gets a
tombstone, in the transaction that records its outcome.

Each partition has one transactional producer, ``headwater.sink.<sink>.<partition>``. To claim is to
initialise it: the log itself then refuses the next transaction of the previous holder.

Before all else the first partition gets the `StartOffsets`: where the source ended when the sink first
ran, for all partitions at once. So it does not matter when each of them is claimed, or whether it was
added later.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions

from headwater.access import Log
from headwater.client.client import FENCED, READING, Client, acquaint, admin, consumer, producer
from headwater.client.poll import poll_batch
from headwater.client.topic_defaults import STATE
from headwater.client.topic_watch import ask, known_as
from headwater.decoders import from_json
from headwater.errors import HeadwaterError, MachineError, UnavailableError
from headwater.formats import JOURNAL
from headwater.sink.effects.effect import JournalEntry
from headwater.sink.log_consumer import Messages
from headwater.sink.store import Superseded

__all__ = ["Journal", "JournalPartition", "JournalRecord", "SourceMark", "StartOffsets", "unfinished"]

TRANSACTION_MS = 60_000
"""After this time the log aborts a transaction whose writer is gone; a claim aborts it at once."""
INIT_SECONDS = 30.0
FLUSH_SECONDS = 5.0
COMMIT_SECONDS = 5.0
COMMITS = 3
"""How often a commit is tried; one that the log does not answer may be repeated, and happens once."""
READ_SECONDS = 30.0
REQUEST_SECONDS = 10.0
LOOKS, LOOK_SECONDS = 100, 0.1
BATCH_RECORDS = 10_000
CLAIMS_AT_ONCE = 8
ENDING = ".effects"
MARK = "mark"
BIRTH = "birth"
SETTINGS: dict[str, Any] = {
    "transaction.timeout.ms": TRANSACTION_MS,
    "message.timeout.ms": TRANSACTION_MS,
    "linger.ms": 0,
    "compression.type": "lz4",
}
CONFIG = STATE | {"segment.bytes": str(16 << 20)}
"""Small segments, so that ended effects are compacted away soon: a claim reads a partition from its start."""
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}
NEW = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "LEADER_NOT_AVAILABLE", "_TRANSPORT"}
"""Errors of a reader while a topic is being created; it continues by itself."""


class SourceMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Up to where a partition of the source is taken over."""

    taken: int | None = None
    """The effects of all records before it are in the journal or have ended. None after a reset."""
    reached: int = 0
    """The greatest offset that was ever taken: records before it are repeated ones."""
    origin: str = ""
    """The id of the topic to which these offsets belong."""
    failing_since_ms: int | None = None
    """Since when the receiver has accepted nothing."""
    born: int = 0
    """The records before it are older than the sink."""
    format: int = 1
    """The format of the partition."""


class StartOffsets(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the source ended when the sink first ran; a missing partition did not exist, or was empty."""

    ends: dict[int, int] = {}
    origin: str = ""
    """The id of the topic; empty if it did not exist yet."""
    format: int = 1


class JournalRecord(msgspec.Struct, frozen=True):
    """A record to write in a transaction; without a partition, its key decides."""

    topic: str
    key: str
    value: bytes | None
    partition: int = -1
    headers: tuple[tuple[str, str], ...] = ()


class JournalPartition:
    """A claimed partition of the journal: the only way to write to it.

    Its callers run one transaction at a time.

    After an error that leaves `broken` false, nothing of the transaction was written. If it is true, the
    outcome is unknown until a new claim.
    """

    def __init__(self, log: Log, sink: str, topic: str, number: int, writer: str = "") -> None:
        self.number = number
        self.broken = False
        self._aborting = False
        self._topic = topic
        self._name = f"partition {number} of sink {sink!r}"
        self._producer = producer(
            log, **SETTINGS, **{"transactional.id": f"headwater.sink.{sink}.{writer or number}"}
        )

    def take_over(self) -> None:
        """Fences the previous holder of the partition, and aborts its open transaction."""
        self._until(lambda: self._producer.init_transactions(INIT_SECONDS))

    def mark(self, mark: SourceMark) -> JournalRecord:
        return JournalRecord(self._topic, MARK, msgspec.json.encode(mark), self.number)

    def entry(self, entry: JournalEntry) -> JournalRecord:
        return JournalRecord(self._topic, entry.effect.id, msgspec.json.encode(entry), self.number)

    def ended(self, effect_id: str) -> JournalRecord:
        """The tombstone of an effect."""
        return JournalRecord(self._topic, effect_id, None, self.number)

    def write(self, records: Iterable[JournalRecord], times: int = COMMITS) -> None:
        """Writes all records or none. Raises Superseded or UnavailableError."""
        self.prepare(records)
        self.commit(times)

    def prepare(self, records: Iterable[JournalRecord]) -> None:
        """Sends records to the log; they are visible after `commit`, and never if this call fails."""
        if self._aborting:
            self.abort()
        if self._aborting:
            raise UnavailableError(f"{self._name}: the log does not answer")
        self._until(self._producer.begin_transaction)
        try:
            for record in records:
                self._produce(record)
            if self._producer.flush(FLUSH_SECONDS):
                raise UnavailableError(f"{self._name}: the log does not answer")
        except KafkaException as error:
            self.abort()
            raise self._failed(error) from error
        except BaseException:
            self.abort()
            raise

    def commit(self, times: int = COMMITS) -> None:
        self._until(lambda: self._producer.commit_transaction(COMMIT_SECONDS), retries=times - 1)

    def abort(self) -> None:
        """Aborts a prepared transaction.

        If the log is away now, the next transaction does it; if that is impossible, the partition is broken.
        """
        try:
            self._producer.abort_transaction(COMMIT_SECONDS)
        except KafkaException as error:
            self._aborting = error.args[0].retriable()
            self.broken = not self._aborting
        else:
            self._aborting = False

    def _produce(self, record: JournalRecord) -> None:
        headers = [(name, value.encode()) for name, value in record.headers]
        while True:
            try:
                self._producer.produce(
                    record.topic, record.value, record.key, record.partition, headers=headers or None
                )
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _until(self, act: Callable[[], None], retries: int = 0) -> None:
        while True:
            try:
                act()
            except KafkaException as error:
                failure = error.args[0]
                if failure.retriable() and retries > 0:
                    retries -= 1
                    continue
                if failure.txn_requires_abort():
                    self.abort()
                else:
                    self.broken = True
                raise self._failed(error) from error
            return

    def _failed(self, error: KafkaException) -> HeadwaterError:
        failure = error.args[0]
        if failure.fatal():
            self.broken = True
        if failure.name() in FENCED:
            return Superseded(f"{self._name} was claimed by another process")
        return UnavailableError(f"{self._name}: the log does not take the journal", got=failure.str())


Claimed = tuple[JournalPartition, SourceMark | None, list[JournalEntry]]


class Journal:
    """The journal of one sink: claims its partitions and reads them.

    It belongs to the thread that calls the store.
    """

    def __init__(self, log: Log, sink: str, topic: str) -> None:
        self.topic = f"{sink}{ENDING}"
        self._log = log
        self._sink = sink
        self._source = topic
        self._client = Client(log)
        self._pause = threading.Event()
        self._start: StartOffsets | None = None

    def ensure(self, others: Iterable[str], partitions: int = 1) -> None:
        """Creates the journal, and the other topics that effects go to.

        The journal has as many partitions as the source topic, and at least ``partitions``.
        """
        with _translated():
            existing = self._client.partitions()
            count = max(partitions, existing.get(self._source, 1))
            self._client.ensure_topics([self.topic], count, CONFIG)
            self._client.ensure_topics(others, 1, KEPT)
            if existing.get(self.topic, count) < count:
                client = admin(self._log)
                answers = client.create_partitions([NewPartitions(self.topic, count)])
                answers[self.topic].result(REQUEST_SECONDS)
            self._wait_for(count)

    def _wait_for(self, partitions: int) -> None:
        """Returns when the new partitions are visible: in a cluster, not all brokers know them at once."""
        for _ in range(LOOKS):
            if self._client.partitions().get(self.topic, 0) >= partitions:
                return
            self._pause.wait(LOOK_SECONDS)
        raise UnavailableError(f"topic {self.topic!r} was created, but the log does not show it")

    def start_offsets(self, ends: StartOffsets | None = None) -> StartOffsets:
        """Where the sink began; recorded now if it never was: ``ends``, or where the source ends now.

        If several processes try to record it, one does; the others are Superseded.
        """
        if self._start is None:
            self.ensure([])
            self._start = self._recorded_start() or self._record_start(ends)
        return self._start

    def ends_now(self) -> StartOffsets:
        """Where the source ends; nothing is recorded."""
        return StartOffsets(dict(self.ends()), self.origin())

    def _recorded_start(self) -> StartOffsets | None:
        with _translated():
            ends = self._client.end_offsets([self.topic])
        for (_, partition), end in sorted(ends.items()):
            values = self._read(partition) if end > 0 else {}
            if BIRTH in values:
                return JOURNAL.decode(values[BIRTH], StartOffsets, f"journal {self.topic}")
            if values:  # a journal from before these records: its sink began at the start of the topic
                return StartOffsets()
        return None

    def _record_start(self, ends: StartOffsets | None) -> StartOffsets:
        first = JournalPartition(self._log, self._sink, self.topic, 0, BIRTH)
        first.take_over()
        start = self._recorded_start()
        if start is None:
            start = ends or self.ends_now()
            first.write([JournalRecord(self.topic, BIRTH, msgspec.json.encode(start), 0)])
        return start

    def claim(self, partitions: Collection[int]) -> dict[int, Claimed]:
        """Takes partitions over.

        Returns each with its mark, if it has one, and its unfinished effects in order.
        """
        if not partitions:
            return {}
        self.ensure([], max(partitions) + 1)
        with ThreadPoolExecutor(min(CLAIMS_AT_ONCE, len(partitions))) as pool:
            return dict(zip(partitions, pool.map(self._claim, partitions), strict=True))

    def origin(self) -> str:
        """The id of the source topic; empty if it does not exist, or if the log has no topic ids."""
        try:
            return known_as(ask(admin(self._log), [self._source])[self._source].result(REQUEST_SECONDS))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""
            raise UnavailableError(f"log {self._log} does not answer", got=error.args[0].str()) from error
        except TimeoutError as error:
            raise UnavailableError(f"log {self._log} does not answer", got=str(error)) from error

    def ends(self) -> Mapping[int, int]:
        """The offset after the last record of each partition of the source."""
        with _translated():
            return {place[1]: end for place, end in self._client.end_offsets([self._source]).items()}

    def close(self) -> None:
        self._client.close()

    def _claim(self, number: int) -> Claimed:
        partition = JournalPartition(self._log, self._sink, self.topic, number)
        partition.take_over()
        values = self._read(number)
        values.pop(BIRTH, None)
        stored = values.pop(MARK, None)
        mark = None if stored is None else JOURNAL.decode(stored, SourceMark, f"journal {self.topic}")
        entries = [from_json(value, JournalEntry) for value in values.values()]
        return partition, mark, sorted(entries, key=lambda entry: entry.effect.offset)

    def _read(self, partition: int) -> dict[str, bytes]:
        """The newest value of each key; complete, since a claim has aborted open transactions."""
        values: dict[str, bytes] = {}
        reader = consumer(self._log, **READING)
        try:
            acquaint(reader)
            reader.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING)])
            while True:
                messages = Messages.of(poll_batch(reader, READ_SECONDS, BATCH_RECORDS))
                if messages.is_empty:
                    raise UnavailableError(
                        f"journal {self.topic} of log {self._log} sent nothing for {READ_SECONDS:.0f} s"
                    )
                for message in messages.records:
                    key, value = message.key().decode(), message.value()
                    values.pop(key, None)
                    if value is not None:
                        values[key] = value
                for message in messages.errors:
                    error = message.error()
                    if error.name() not in NEW:
                        raise UnavailableError(f"journal {self.topic} cannot be read", got=error.str())
                if messages.ends:
                    return values
        finally:
            reader.close()


def unfinished(client: Client, sink: str) -> set[tuple[int, int]]:
    """Partition and offset of the records whose effects a sink has taken over, and which have not ended.

    Empty for a sink without effects.
    """
    values: dict[tuple[int, str], bytes | None] = {}
    for message in client.read([f"{sink}{ENDING}"]):
        values[message.partition(), message.key().decode()] = message.value()
    for (_, name), value in values.items():
        if name == MARK and value is not None:
            JOURNAL.verify(value, f"journal {sink}{ENDING}")
    entries = (
        from_json(value, JournalEntry)
        for (_, name), value in values.items()
        if value is not None and name not in {MARK, BIRTH}
    )
    return {(entry.effect.partition, entry.effect.offset) for entry in entries}


@contextmanager
def _translated() -> Iterator[None]:
    """Turns faults of the machine into UnavailableError: for a sink, the log may come back."""
    try:
        yield
    except MachineError as error:
        raise UnavailableError(error.what, got=error.got, hint=error.hint) from error
    except KafkaException as error:
        raise UnavailableError("the log does not answer", got=error.args[0].str()) from error
