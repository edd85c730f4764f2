"""Kafka: a topic of another cluster, or of this one, that follows ours record by record.

Each partition has a transactional producer of its own there, whose id says sink and partition: to claim a partition is to
initialise it, and Kafka itself refuses the holder before. The records of a batch and the offset behind them are one
transaction; the offset is in the compacted topic ``headwater.sink.SINK.position`` of the same cluster, by partition.

A reset has a producer too. Every claim initialises it: so a reset that was slow is refused its next transaction, and never removes what
came after a claim.
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
from headwater.client import FENCED, Client, admin, producer
from headwater.clock import SystemClock
from headwater.errors import Away, MachineError, UsageError
from headwater.formats import KAFKA_SINK
from headwater.keep import FULL, ROWS, STATE
from headwater.sink.rows import fresh, moved
from headwater.sink.store import Batch, Feed, Poison, Store, Superseded
from headwater.sink.topics import partitions_of

__all__ = ["Kafka"]

TIMEOUT_S = 30.0
MESSAGE_MS = 30_000
RETRY_S = 0.05
TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}
REFUSED = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}
OWN, POSITION = "headwater.sink.", ".position"
"""How the names of the topics begin and end that hold positions."""
RESET = "reset"
"""What the producer of a reset is called, beside those of the partitions."""
RESETTING = "resetting"
"""The key in the topic of positions that says that records are still to be removed."""
FORMAT = "format"
"""The key there that says its format. Format 1 is not written: the first readers of it take other keys for partitions."""


class Kafka:
    """``hw.sink.Kafka("other:9092")``: a topic of the same name there, or ``topic``; it is made with ``partitions`` if it is missing.

    Records go where Kafka's own producers put their keys, so the number of partitions may be another one.
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

    def check(self, feed: Feed) -> None:
        name = self._topic or feed.topic
        if name.startswith(OWN) and name.endswith(POSITION):
            raise UsageError(
                f"sink {feed.sink}: topics of that name hold the positions of sinks",
                got=repr(name),
                hint="give it another with topic=",
            )
        if "://" in self._log.bootstrap or "?" in self._log.bootstrap:
            raise UsageError(
                f"sink {feed.sink}: the address of a Kafka is that of its brokers alone",
                expected="host:port[,host:port]",
                hint="TLS, users and options are those of headwater.access.Access",
            )
        if self._partitions < 1:
            raise UsageError(
                f"sink {feed.sink}: a topic has partitions", got=str(self._partitions), expected="1 or more"
            )

    def open(self, feed: Feed) -> Store:
        self.check(feed)
        return _Store(self._log, feed, self._topic or feed.topic, self._partitions)


class _Store:
    """A topic over there and its positions. A batch's partitions are committed one after the other, each with its offset."""

    def __init__(self, log: Log, feed: Feed, topic: str, partitions: int) -> None:
        self._log = access(log)
        self._feed = feed
        self._topic = topic
        self._positions = f"{OWN}{feed.sink}{POSITION}"
        self._client = Client(self._log, timeout_s=TIMEOUT_S)
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._producers: dict[int, Any] = {}
        self._offsets: dict[int, int] = {}
        with self._translated():
            self._client.ensure_topics([topic], partitions, FULL if feed.append else ROWS)
            self._client.ensure_topics([self._positions], 1, STATE)

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        with self._translated():
            for number in numbers:
                self._take(number)
            resetter = self._initialised(RESET)
            there = self._read_positions()
            if RESETTING in there:
                self._remove_records(resetter)
        self._offsets = {n: offset for n, offset in self._offsets.items() if n not in partitions}
        found = {number: there[str(number)] for number in numbers if str(number) in there}
        self._offsets |= found
        return found

    def apply(self, batch: Batch) -> None:
        upto = moved(batch, self._offsets)
        changes: dict[int, list[Change]] = {number: [] for number in upto}
        for change in fresh(batch, self._offsets):
            changes[change.partition].append(change)
        for number in batch.upto:
            if number not in self._producers:
                raise self._superseded(number)
        begun: list[int] = []
        try:
            for number, offset in upto.items():
                self._fill(number, changes[number], offset, begun)
            for number in upto:
                with self._of(number):
                    self._producers[number].commit_transaction(TIMEOUT_S)
                begun.remove(number)
        except BaseException:
            self._abort(begun)
            raise
        self._offsets |= upto

    def reset(self) -> None:
        with self._translated():
            resetter = self._initialised(RESET)
            known = {*self._producers, *(int(name) for name in self._read_positions() if name != RESETTING)}
            for number in sorted(known | self._sources()):
                self._take(number)
            self._transact(resetter, {RESETTING: 1} | dict.fromkeys(map(str, sorted(known))))
            self._remove_records(resetter)
        self._producers.clear()
        self._offsets.clear()

    def close(self) -> None:
        self._producers.clear()
        self._client.close()

    def _take(self, number: int) -> None:
        """A producer that fences the one before; a client can be initialised only once."""
        self._producers.pop(number, None)
        self._producers[number] = self._initialised(str(number))

    def _sources(self) -> set[int]:
        """The partitions of the source: one that was claimed and never written has no position."""
        return set(range(partitions_of(self._feed)))

    def _fill(self, number: int, changes: list[Change], upto: int, begun: list[int]) -> None:
        """Sends a partition's part of a batch in a transaction that is still open at the end."""
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
            raise Away(f"the log at {self._log} does not take records", got=f"{waiting} of them unanswered")

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
        """Gives up what is open. The producers too: whether a transaction took effect is only known after the next claim."""
        for number in begun:
            writer = self._producers.pop(number, None)
            with contextlib.suppress(KafkaException):
                if writer is not None:
                    writer.abort_transaction(TIMEOUT_S)

    def _read_positions(self) -> dict[str, int]:
        """The newest position of each partition. Another holder's open transaction may stand before ours: it is waited for."""
        ends = self._client.open_ends(self._positions, 1)
        limit = self._clock.monotonic() + TIMEOUT_S
        while self._client.end_offsets([self._positions]).get((self._positions, 0), 0) < ends[0]:
            if self._clock.monotonic() > limit:
                raise Away(
                    f"topic {self._positions!r} at {self._log} has a transaction that does not end",
                    hint="it is given up when its time-out has passed",
                )
            self._pause.wait(RETRY_S)
        newest = {message.key().decode(): message.value() for message in self._client.read([self._positions])}
        KAFKA_SINK.check(int(newest.pop(FORMAT, None) or 1), f"topic {self._positions} at {self._log}")
        return {
            name: msgspec.json.decode(value, type=int) for name, value in newest.items() if value is not None
        }

    def _remove_records(self, resetter: Any) -> None:
        """Deletes every key or, where records are rows of their own, the records; then the reset is done.

        What is to go is looked for first, and then a transaction proves that nobody has claimed anything since: so all of it is old.
        """
        if self._feed.append:
            bounds = self._client.bounds(self._topic)
            self._transact(resetter, {RESETTING: 1})
            places = [TopicPartition(self._topic, number, end) for number, (_, end) in bounds.items()]
            caretaker = admin(self._log)
            for answer in caretaker.delete_records(places).values():
                answer.result(TIMEOUT_S)
            self._transact(resetter, {RESETTING: None})
            return
        keys = {message.key(): message.value() is not None for message in self._client.read([self._topic])}
        self._transact(resetter, {RESETTING: None}, [key for key, there in keys.items() if there])

    def _transact(
        self, writer: Any, positions: Mapping[str, int | None], deleted: Collection[bytes] = ()
    ) -> None:
        """Positions and deletions in one transaction."""
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
        """A producer with an id of the sink; whoever had it before is refused from now on."""
        settings: dict[str, Any] = {
            "transactional.id": f"headwater.sink.{self._feed.sink}.{part}",
            "transaction.timeout.ms": 2 * MESSAGE_MS,
            "message.timeout.ms": MESSAGE_MS,
        }
        made = producer(self._log, **settings)
        made.init_transactions(TIMEOUT_S)
        return made

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
            raise Away(error.what, got=error.got) from error

    def _failure(self, error: KafkaError, number: int) -> Exception:
        if error.name() in FENCED:
            return self._superseded(number)
        if error.name() in REFUSED:
            return UsageError(f"the log at {self._log} refuses us", got=error.str())
        return Away(f"the log at {self._log} does not take records", got=error.str())

    def _superseded(self, number: int) -> Superseded:
        self._producers.pop(number, None)
        which = f"partition {number}" if number >= 0 else "a partition"
        return Superseded(f"sink {self._feed.sink}: {which} was taken over by another process")
