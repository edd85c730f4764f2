"""Journal: what a sink remembers of its effects, in the log itself, so that any process on any machine can go on with a partition.

``<sink>.effects`` is compacted and has a partition for each of the source topic. One partition for all would be read by every claim, and
one transaction left open would keep the claims of all others waiting. A partition holds its unfinished effects by id and one `Mark`; an
effect that has ended gets a tombstone in the transaction that says so, since the mark passed it when it was taken over.

A partition has one transactional producer, ``headwater.sink.<sink>.<partition>``. To claim is to initialise it: whoever held it before is
refused its next transaction, by the log and not by us.

Before all else the first partition gets a `Birth`: where the source ended when the sink was first run, for all partitions at once. So it
does not matter when each of them is claimed, or whether it was added later.
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
from headwater.client import FENCED, READING, Client, acquaint, admin, consumer, producer
from headwater.decoders import from_json
from headwater.errors import Away, HeadwaterError, MachineError
from headwater.formats import JOURNAL
from headwater.keep import STATE
from headwater.sink.effect import Entry
from headwater.sink.store import Superseded
from headwater.sink.topics import ask, known_as

__all__ = ["Birth", "Journal", "Mark", "Page", "Record", "unfinished"]

TRANSACTION_MS = 60_000
"""A transaction that its writer has left is ended by the log after that; a claim ends it at once."""
INIT_SECONDS = 30.0
FLUSH_SECONDS = 5.0
COMMIT_SECONDS = 5.0
COMMITS = 3
"""How often a commit is asked for; one that the log does not answer may be asked for again, and happens once."""
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
"""What has ended goes soon: a claim reads the partition from its start."""
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}
NEW = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "LEADER_NOT_AVAILABLE", "_TRANSPORT"}
"""What a reader is told while a topic is being made; it goes on by itself."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a partition of the source is taken over."""

    taken: int | None = None
    """Effects of all records before it are in the journal or have ended. None after a reset."""
    reached: int = 0
    """The greatest offset that was ever taken: what comes from before it comes again."""
    origin: str = ""
    """The id of the topic that these offsets are of."""
    failing_since_ms: int | None = None
    """The receiver has taken nothing since then."""
    born: int = 0
    """What lies before it was there before the sink."""
    format: int = 1
    """Of all that the partition holds."""


class Birth(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the source ended when the sink was first run; a partition that is missing did not exist, or had nothing."""

    ends: dict[int, int] = {}
    origin: str = ""
    """The id of the topic; empty where there was none yet."""
    format: int = 1


class Record(msgspec.Struct, frozen=True):
    """Something to be written in a transaction; without partition it goes where its key belongs."""

    topic: str
    key: str
    value: bytes | None
    partition: int = -1
    headers: tuple[tuple[str, str], ...] = ()


class Page:
    """A claimed partition of the journal: the only way to write to it. One transaction at a time; its callers see to that.

    After an error `broken` says whether it can be used further: if so nothing of the transaction was written, otherwise nobody knows and
    only a new claim tells.
    """

    def __init__(self, log: Log, sink: str, topic: str, partition: int, writer: str = "") -> None:
        self.partition = partition
        self.broken = False
        self._aborting = False
        self._topic = topic
        self._name = f"partition {partition} of sink {sink!r}"
        self._producer = producer(
            log, **SETTINGS, **{"transactional.id": f"headwater.sink.{sink}.{writer or partition}"}
        )

    def take_over(self) -> None:
        """Refuses whoever held the partition; ends what it had open."""
        self._until(lambda: self._producer.init_transactions(INIT_SECONDS))

    def mark(self, mark: Mark) -> Record:
        return Record(self._topic, MARK, msgspec.json.encode(mark), self.partition)

    def entry(self, entry: Entry) -> Record:
        return Record(self._topic, entry.effect.id, msgspec.json.encode(entry), self.partition)

    def ended(self, effect: str) -> Record:
        """The tombstone of an effect."""
        return Record(self._topic, effect, None, self.partition)

    def write(self, records: Iterable[Record], times: int = COMMITS) -> None:
        """All of them or none. Raises Superseded or Away."""
        self.prepare(records)
        self.commit(times)

    def prepare(self, records: Iterable[Record]) -> None:
        """Brings records to the log; nobody sees them before `commit`. After an error nothing of them is ever seen."""
        if self._aborting:
            self.abort()
        if self._aborting:
            raise Away(f"{self._name}: the log does not answer")
        self._until(self._producer.begin_transaction)
        try:
            for record in records:
                self._produce(record)
            if self._producer.flush(FLUSH_SECONDS):
                raise Away(f"{self._name}: the log does not answer")
        except KafkaException as error:
            self.abort()
            raise self._failed(error) from error
        except BaseException:
            self.abort()
            raise

    def commit(self, times: int = COMMITS) -> None:
        self._until(lambda: self._producer.commit_transaction(COMMIT_SECONDS), retries=times - 1)

    def abort(self) -> None:
        """Gives a prepared transaction up, at the next one if the log is away now; a page that cannot even do that is broken."""
        try:
            self._producer.abort_transaction(COMMIT_SECONDS)
        except KafkaException as error:
            self._aborting = error.args[0].retriable()
            self.broken = not self._aborting
        else:
            self._aborting = False

    def _produce(self, record: Record) -> None:
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
        return Away(f"{self._name}: the log does not take the journal", got=failure.str())


class Journal:
    """The journal of one sink: claims pages and reads what stands there. Belongs to the thread that calls the store."""

    def __init__(self, log: Log, sink: str, topic: str) -> None:
        self.topic = f"{sink}{ENDING}"
        self._log = log
        self._sink = sink
        self._source = topic
        self._client = Client(log)
        self._pause = threading.Event()
        self._birth: Birth | None = None

    def ensure(self, others: Iterable[str], partitions: int = 1) -> None:
        """Creates the journal, as wide as the source topic and at least so wide, and the other topics that effects go to."""
        with _translated():
            known = self._client.partitions()
            wide = max(partitions, known.get(self._source, 1))
            self._client.ensure_topics([self.topic], wide, CONFIG)
            self._client.ensure_topics(others, 1, KEPT)
            if known.get(self.topic, wide) < wide:
                asked = admin(self._log)
                asked.create_partitions([NewPartitions(self.topic, wide)])[self.topic].result(REQUEST_SECONDS)
            self._wait_for(wide)

    def _wait_for(self, partitions: int) -> None:
        """A Kafka of several brokers says that a topic is made before all of them know it."""
        for _ in range(LOOKS):
            if self._client.partitions().get(self.topic, 0) >= partitions:
                return
            self._pause.wait(LOOK_SECONDS)
        raise Away(f"topic {self.topic!r} was made, but the log does not show it")

    def birth(self) -> Birth:
        """Where the sink began, noted now if it never was. Of several that would note it, one does; the others are Superseded."""
        if self._birth is None:
            self.ensure([])
            self._birth = self._noted() or self._note()
        return self._birth

    def _noted(self) -> Birth | None:
        with _translated():
            ends = self._client.end_offsets([self.topic])
        for (_, partition), end in sorted(ends.items()):
            found = self._read(partition) if end > 0 else {}
            if BIRTH in found:
                return JOURNAL.decode(found[BIRTH], Birth, f"journal {self.topic}")
            if found:  # a journal that is older than this note: its sink began with the topic
                return Birth()
        return None

    def _note(self) -> Birth:
        page = Page(self._log, self._sink, self.topic, 0, BIRTH)
        page.take_over()
        found = self._noted()
        if found is None:
            found = Birth(dict(self.ends()), self.origin())
            page.write([Record(self.topic, BIRTH, msgspec.json.encode(found), 0)])
        return found

    def claim(self, partitions: Collection[int]) -> dict[int, tuple[Page, Mark | None, list[Entry]]]:
        """Takes partitions over; of each its page, its mark if it has one, and its unfinished effects in their order."""
        if not partitions:
            return {}
        self.ensure([], max(partitions) + 1)
        with ThreadPoolExecutor(min(CLAIMS_AT_ONCE, len(partitions))) as pool:
            return dict(zip(partitions, pool.map(self._claim, partitions), strict=True))

    def origin(self) -> str:
        """The id of the source topic; empty where it does not exist or the log has none."""
        try:
            return known_as(ask(admin(self._log), [self._source])[self._source].result(REQUEST_SECONDS))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""
            raise Away(f"log {self._log} does not answer", got=error.args[0].str()) from error
        except TimeoutError as error:
            raise Away(f"log {self._log} does not answer", got=str(error)) from error

    def ends(self) -> Mapping[int, int]:
        """The offset behind the last record of each partition of the source."""
        with _translated():
            return {place[1]: end for place, end in self._client.end_offsets([self._source]).items()}

    def close(self) -> None:
        self._client.close()

    def _claim(self, partition: int) -> tuple[Page, Mark | None, list[Entry]]:
        page = Page(self._log, self._sink, self.topic, partition)
        page.take_over()
        found = self._read(partition)
        found.pop(BIRTH, None)
        stored = found.pop(MARK, None)
        mark = None if stored is None else JOURNAL.decode(stored, Mark, f"journal {self.topic}")
        entries = [from_json(value, Entry) for value in found.values()]
        return page, mark, sorted(entries, key=lambda entry: entry.effect.offset)

    def _read(self, partition: int) -> dict[str, bytes]:
        """The newest value of each key; complete, since the claim has ended what was open."""
        found: dict[str, bytes] = {}
        reader = consumer(self._log, **READING)
        try:
            acquaint(reader)
            reader.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING)])
            while True:
                first = reader.poll(READ_SECONDS)
                if first is None:
                    raise Away(
                        f"journal {self.topic} of log {self._log} sent nothing for {READ_SECONDS:.0f} s"
                    )
                for message in (first, *reader.consume(BATCH_RECORDS, 0)):
                    error = message.error()
                    if error is None:
                        key, value = message.key().decode(), message.value()
                        found.pop(key, None)
                        if value is not None:
                            found[key] = value
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
                        return found
                    elif error.name() not in NEW:
                        raise Away(f"journal {self.topic} cannot be read", got=error.str())
        finally:
            reader.close()


def unfinished(client: Client, sink: str) -> set[tuple[int, int]]:
    """Partition and offset of the records whose effects a sink has taken over and not ended; none for a sink without effects."""
    found: dict[tuple[int, str], bytes | None] = {}
    for message in client.read([f"{sink}{ENDING}"]):
        found[message.partition(), message.key().decode()] = message.value()
    for (_, name), value in found.items():
        if name == MARK and value is not None:
            JOURNAL.verify(value, f"journal {sink}{ENDING}")
    entries = (
        from_json(value, Entry)
        for (_, name), value in found.items()
        if value is not None and name not in {MARK, BIRTH}
    )
    return {(entry.effect.partition, entry.effect.offset) for entry in entries}


@contextmanager
def _translated() -> Iterator[None]:
    """What the client calls a fault of the machine is, for a sink, a log that may come back."""
    try:
        yield
    except MachineError as error:
        raise Away(error.what, got=error.got, hint=error.hint) from error
    except KafkaException as error:
        raise Away("the log does not answer", got=error.args[0].str()) from error
