"""Outgoing: what a Writer's records leave through, and what became of them.

Every record takes a token of the limit, and a bounded number of them is on its way. What becomes of a record for which there is no
room is decided by a way: `Blocking` here, `Shedding` in ``shed.py``, `Spilling` in ``drain.py``.
"""

import threading
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, Producer

from headwater.clock import Clock
from headwater.errors import MachineError, Overloaded
from headwater.limit import Bucket

__all__ = ["POLL_S", "Blocking", "Line", "Record", "Sending", "Way", "no_room"]

POLL_S = 0.02


class Record(NamedTuple):
    """A record on its way out."""

    topic: str
    key: str | bytes | None
    value: bytes | None
    priority: int = 0
    at_ms: int = 0
    """When it was given, where that was earlier than it is sent; 0: now."""
    headers: list[tuple[str, str]] | None = None


class Sending:
    """The records of one call, and what became of them; acknowledgements may come in any thread."""

    def __init__(self) -> None:
        self.begun = 0
        self.next: dict[int, int] = {}
        """By partition; 0 where the log did not tell."""
        self.sent = 0
        self.shed = 0
        self.spilled = 0
        self.failed = 0
        self._reason = ""
        self._untold: set[int] = set()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return self.begun - self.sent - self.shed - self.spilled - self.failed

    def done(self, error: KafkaError | None, message: Any) -> None:
        """A record was acknowledged, or never will be."""
        if error is not None:
            self.fail(error.str())
            return
        with self._lock:
            self.sent += 1
            partition, offset = message.partition(), message.offset()
            if offset is None or offset < 0:
                self._untold.add(partition)
            told = partition not in self._untold
            self.next[partition] = max(self.next.get(partition, 0), offset + 1) if told else 0

    def named(self, error: KafkaError | None, _: Any) -> None:
        """A record was shed, and its name is in the log, or never will be."""
        if error is not None:
            self.fail(error.str())
            return
        with self._lock:
            self.shed += 1

    def fail(self, reason: str) -> None:
        with self._lock:
            self.failed += 1
            self._reason = self._reason or reason

    def check(self, topic: str) -> None:
        lost = self.failed + self.waiting
        if lost:
            got = self._reason or "no answer"
            raise MachineError(f"{lost} of {self.begun} records for {topic!r} were not acknowledged", got=got)


class Line:
    """A producer behind a limit and a bound. Any thread may call."""

    def __init__(self, producer: Producer, bucket: Bucket | None, in_flight_max: int) -> None:
        self.producer = producer
        self.bucket = bucket
        self._in_flight_max = in_flight_max
        # A partitioner of ours counts, and so belongs to one thread at a time.
        self._choosing = threading.Lock()

    def send(self, record: Record, done: Any) -> bool:
        """Sends a record; False if there is no room for it now."""
        if len(self.producer) >= self._in_flight_max or (self.bucket and not self.bucket.take()):
            return False
        more = {"timestamp": record.at_ms, "headers": record.headers} if record.at_ms else {}
        try:
            with self._choosing:
                self.producer.produce(record.topic, record.value, record.key, on_delivery=done, **more)
        except BufferError:  # full of bytes before it is full of records
            if self.bucket:
                self.bucket.give_back()
            return False
        return True

    def rest(self) -> None:
        """Takes in acknowledgements until there may be room."""
        wait_s = self.bucket.wait_s() if self.bucket else 0.0
        self.producer.poll(min(wait_s or POLL_S, POLL_S))


class Way(Protocol):
    """What becomes of records for which there is no room. Any thread may call."""

    def give(self, record: Record, sending: Sending) -> None:
        """Takes a record over; what becomes of it, ``sending`` is told. Raises Overloaded if it cannot be taken in time."""
        ...

    def settle(self, sending: Sending, limit: float) -> None:
        """Returns when it is known of all records what became of them, or the time ``limit`` is reached."""
        ...

    def close(self) -> None: ...


class Blocking:
    """A record waits until there is room, for a bounded time."""

    def __init__(self, line: Line, wait_s: float, clock: Clock) -> None:
        self._line = line
        self._wait_s = wait_s
        self._clock = clock

    def give(self, record: Record, sending: Sending) -> None:
        if self._line.send(record, sending.done):
            return
        limit = self._clock.monotonic() + self._wait_s
        while not self._line.send(record, sending.done):
            if self._clock.monotonic() >= limit:
                raise no_room(record.topic, self._wait_s)
            self._line.rest()

    def settle(self, sending: Sending, limit: float) -> None:
        while sending.waiting and self._clock.monotonic() < limit:
            self._line.producer.poll(POLL_S)

    def close(self) -> None:
        """Nothing is held."""


def no_room(topic: str, wait_s: float) -> Overloaded:
    """What is said when a record has waited for long enough."""
    return Overloaded(
        f"there was no room for a record for {topic!r} within {wait_s:g} s",
        hint="the log is slow or away, or the limit is low: send less, or give a larger queue, limit or wait",
    )
