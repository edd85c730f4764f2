"""Kafka: a topic of another cluster, or of this one, that follows ours record by record.

Each partition has a transactional producer of its own there, with an id of sink and partition. To claim a
partition is to initialise its producer, and Kafka itself fences the previous holder. The records of a batch
and the offset after them are one transaction; the offset is in the compacted topic
``headwater.sink.SINK.position`` of the same cluster, by partition.

A reset has a producer too, which every claim initialises: so a slow reset is refused its next transaction,
and never removes what was written after a claim.
"""

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headwater.access import Log, access
from headwater.change import Change
from headwater.client.client import FENCED, Client, admin, producer
from headwater.client.topic_defaults import FULL, ROWS, STATE
from headwater.clock import SystemClock
from headwater.errors import MachineError, UnavailableError, UsageError
from headwater.formats import KAFKA_SINK
from headwater.sink.claims import NOTHING, Claims, PartitionState, superseded
from headwater.sink.store import Batch, Poison, SinkFeed, Store, Superseded, partition_count

__all__ = ["Kafka"]

TIMEOUT_S = 30.0
MESSAGE_MS = 30_000
RETRY_S = 0.05
TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}
REFUSED = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}
OWN, POSITION = "headwater.sink.", ".position"
"""The prefix and the suffix of a topic of positions."""
RESET = "reset"
"""The producer of a reset, as part of its transactional id."""
RESETTING = "resetting"
"""The key in the topic of positions that marks a reset in progress."""
FORMAT = "format"
"""The key there for its format. Format 1 is not written: its first readers take any other key for a
partition."""


class Kafka:
    """A topic of another log: ``hw.sink.Kafka("other:9092")``.

    It has the same name, or ``topic``, and is created with ``partitions`` if it is missing. Kafka's own
    partitioner chooses the partitions of records, so their number may differ.
    """

    kind = "kafka"
    typed = False

    def __init__(self, log: Log, *, topic: str = "", partitions: int = 4) -> None:
        self._log = access(log)
        self._topic = topic
        self._partitions = partitions

    def __repr__(self) -> str:
        return f"Kafka({str(self._log)!r})"

    def place(self, topic: str) -> str:
        return f"{self._log}, topic {self._topic or topic}"

    def check(self, feed: SinkFeed) -> None:
        name = self._topic or feed.topic
        if name.startswith(OWN) and name.endswith(POSITION):
            raise UsageError(
                f"sink {feed.sink}: topics of such a name hold the positions of sinks",
                got=repr(name),
                hint="give the topic another name with topic=",
            )
        if "://" in self._log.bootstrap or "?" in self._log.bootstrap:
            raise UsageError(
                f"sink {feed.sink}: the address of a Kafka cluster names its brokers only",
                expected="host:port[,host:port]",
                hint="give TLS, user and options with headwater.access.Access",
            )
        if self._partitions < 1:
            raise UsageError(
                f"sink {feed.sink}: a topic needs partitions", got=str(self._partitions), expected="1 or more"
            )

    def open(self, feed: SinkFeed) -> Store:
        self.check(feed)
        return _KafkaStore(self._log, feed, self._topic or feed.topic, self._partitions)


class _KafkaStore:
    """A topic of the other log and its positions.

    A batch's partitions are committed one after the other, each with its offset.
    """

    def __init__(self, log: Log, feed: SinkFeed, topic: str, partitions: int) -> None:
        self._log = access(log)
        self._feed = feed
        self._topic = topic
        self._positions = f"{OWN}{feed.sink}{POSITION}"
        self._client = Client(self._log, timeout_s=TIMEOUT_S)
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._producers: dict[int, Any] = {}
        self._claims = Claims(feed.sink)
        with self._translated():
            self._client.ensure_topics([topic], partitions, FULL if feed.append else ROWS)
            self._client.ensure_topics([self._positions], 1, STATE)

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        with self._translated():
            for number in numbers:
                self._take(number)
            resetter = self._initialised(RESET)
            stored = self._read_positions()
            if RESETTING in stored:
                self._remove_records(resetter)
        states = {number: PartitionState(offset=stored.get(str(number), NOTHING)) for number in numbers}
        return self._claims.take(states)

    def apply(self, batch: Batch) -> None:
        offsets = self._claims.new_offsets(batch)
        changes: dict[int, list[Change]] = {number: [] for number in offsets}
        for change in self._claims.new_changes(batch):
            changes[change.partition].append(change)
        for number in batch.upto:
            if number not in self._producers:
                raise self._superseded(number)
        begun: list[int] = []
        try:
            for number, offset in offsets.items():
                self._fill(number, changes[number], offset, begun)
            for number in offsets:
                with self._of(number):
                    self._producers[number].commit_transaction(TIMEOUT_S)
                begun.remove(number)
        except BaseException:
            self._abort(begun)
            raise
        self._claims.advance(offsets)

    def reset(self) -> None:
        with self._translated():
            resetter = self._initialised(RESET)
            stored = {int(name) for name in self._read_positions() if name != RESETTING}
            numbers = stored | self._producers.keys()
            for number in sorted(numbers | self._sources()):
                self._take(number)
            self._transact(resetter, {RESETTING: 1} | dict.fromkeys(map(str, sorted(numbers))))
            self._remove_records(resetter)
        self._producers.clear()
        self._claims.clear()

    def close(self) -> None:
        self._producers.clear()
        self._client.close()

    def _take(self, number: int) -> None:
        """Opens a producer, which fences the one before; a client can be initialised only once."""
        self._producers.pop(number, None)
        self._producers[number] = self._initialised(str(number))

    def _sources(self) -> set[int]:
        """The partitions of the source: one that was claimed but never written has no position."""
        return set(range(partition_count(self._feed)))

    def _fill(self, number: int, changes: list[Change], upto: int, begun: list[int]) -> None:
        """Sends a partition's part of a batch in a transaction, which stays open."""
        writer = self._producers[number]
        failed: list[tuple[Change | None, KafkaError]] = []

        def note(change: Change | None) -> Any:
            return lambda error, _: failed.append((change, error)) if error is not None else None

        with self._of(number):
            writer.begin_transaction()
            begun.append(number)
            for change in changes:
                self._send(writer, change, note(change), failed)
            position = msgspec.json.encode(upto)
            writer.produce(self._positions, position, str(number).encode(), on_delivery=note(None))
            waiting = writer.flush(TIMEOUT_S)
        for refused, error in failed:
            if refused is not None and error.name() in TOO_LARGE:
                raise Poison(
                    refused.partition, refused.offset, f"{self._log} refuses the record: {error.str()}"
                )
        if failed:
            with self._of(number):
                writer.commit_transaction(TIMEOUT_S)  # refused, with the reason
        if failed or waiting:
            raise UnavailableError(
                f"the log at {self._log} does not take records", got=f"{waiting} records without an answer"
            )

    def _send(self, writer: Any, change: Change, noted: Any, failed: list[Any]) -> None:
        value = None if change.value is None else change.value.encode()
        while True:
            try:
                writer.produce(
                    self._topic, value, change.wire_key, timestamp=change.timestamp_ms, on_delivery=noted
                )
            except BufferError:
                writer.poll(RETRY_S)  # until the client has room again
            except KafkaException as error:
                if error.args[0].name() not in TOO_LARGE:
                    raise
                failed.append((change, error.args[0]))
                return
            else:
                return

    def _abort(self, begun: list[int]) -> None:
        """Aborts open transactions and drops their producers.

        Whether a transaction took effect is only known after the next claim.
        """
        for number in begun:
            writer = self._producers.pop(number, None)
            with contextlib.suppress(KafkaException):
                if writer is not None:
                    writer.abort_transaction(TIMEOUT_S)

    def _read_positions(self) -> dict[str, int]:
        """The newest position of each partition, after another holder's open transaction has ended."""
        ends = self._client.open_ends(self._positions, 1)
        limit = self._clock.monotonic() + TIMEOUT_S
        while self._client.end_offsets([self._positions]).get((self._positions, 0), 0) < ends[0]:
            if self._clock.monotonic() > limit:
                raise UnavailableError(
                    f"topic {self._positions!r} at {self._log} has a transaction that does not end",
                    hint="the log aborts it when its time-out has passed",
                )
            self._pause.wait(RETRY_S)
        newest = {message.key().decode(): message.value() for message in self._client.read([self._positions])}
        KAFKA_SINK.check(int(newest.pop(FORMAT, None) or 1), f"topic {self._positions} at {self._log}")
        return {
            name: msgspec.json.decode(value, type=int) for name, value in newest.items() if value is not None
        }

    def _remove_records(self, resetter: Any) -> None:
        """Deletes every key, or all records of an append feed, and ends the reset.

        It finds out first what to delete. A transaction then proves that no process has claimed anything
        since: so all of it is old.
        """
        if self._feed.append:
            bounds = self._client.bounds(self._topic)
            self._transact(resetter, {RESETTING: 1})
            places = [TopicPartition(self._topic, number, end) for number, (_, end) in bounds.items()]
            client = admin(self._log)  # kept until the answers: a client without owner ends its requests
            for answer in client.delete_records(places).values():
                answer.result(TIMEOUT_S)
            self._transact(resetter, {RESETTING: None})
            return
        has_value = {m.key(): m.value() is not None for m in self._client.read([self._topic])}
        self._transact(resetter, {RESETTING: None}, [key for key, stays in has_value.items() if stays])

    def _transact(
        self, writer: Any, positions: Mapping[str, int | None], deleted: Collection[bytes] = ()
    ) -> None:
        """Writes positions and deletions in one transaction."""
        writer.begin_transaction()
        for key in deleted:
            writer.produce(self._topic, None, key)
            writer.poll(0)
        for name, value in positions.items():
            writer.produce(
                self._positions, None if value is None else msgspec.json.encode(value), name.encode()
            )
        writer.commit_transaction(TIMEOUT_S)

    def _initialised(self, part: str) -> Any:
        """A producer with an id of the sink; the producer that had the id before is fenced from now on."""
        settings: dict[str, Any] = {
            "transactional.id": f"headwater.sink.{self._feed.sink}.{part}",
            "transaction.timeout.ms": 2 * MESSAGE_MS,
            "message.timeout.ms": MESSAGE_MS,
        }
        initialised = producer(self._log, **settings)
        initialised.init_transactions(TIMEOUT_S)
        return initialised

    @contextmanager
    def _of(self, number: int) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._failure(error.args[0], number) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._failure(error.args[0], -1) from error
        except MachineError as error:
            raise UnavailableError(error.what, got=error.got) from error

    def _failure(self, error: KafkaError, number: int) -> Exception:
        if error.name() in FENCED:
            return self._superseded(number)
        if error.name() in REFUSED:
            return UsageError(f"the log at {self._log} refuses us", got=error.str())
        return UnavailableError(f"the log at {self._log} does not take records", got=error.str())

    def _superseded(self, number: int) -> Superseded:
        self._producers.pop(number, None)
        if number >= 0:
            return superseded(self._feed.sink, number)
        return Superseded(f"sink {self._feed.sink}: a partition was taken over by another process")
