"""Outlet: the producer through which a Writer's records leave, and the count of what became of them.

Every record takes a token of the rate limit, and a bounded number of records is in flight. A policy decides
what becomes of a record for which there is no room: `Blocking` here, `Shedding` in ``shedding.py``,
`Spilling` in ``spilling.py``.
"""

import threading
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, Producer

from headwater.clock import Clock
from headwater.errors import MachineError, OverloadedError
from headwater.write.rate_limit import Bucket

__all__ = ["POLL_S", "Blocking", "CallTally", "FullPolicy", "Outlet", "ProducerRecord", "no_room"]

POLL_S = 0.02


class ProducerRecord(NamedTuple):
    """A record to be sent."""

    topic: str
    key: str | bytes | None
    value: bytes | None
    priority: int = 0
    at_ms: int = 0
    """When the writer got it, if it is sent later than that; 0: now."""
    headers: tuple[tuple[str, str | bytes | None], ...] = ()


class CallTally:
    """What became of the records of one call. Acknowledgements may come in any thread."""

    def __init__(self) -> None:
        self.begun = 0
        self.next: dict[int, int] = {}
        """The next offset of each partition; 0 if an acknowledgement had no offset."""
        self.sent = 0
        self.shed = 0
        self.spilled = 0
        self.failed = 0
        self._reason = ""
        self._without_offset: set[int] = set()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return self.begun - self.sent - self.shed - self.spilled - self.failed

    def count_sent(self, error: KafkaError | None, message: Any) -> None:
        """Delivery callback of a record: it is acknowledged, or has failed."""
        if error is not None:
            self.fail(error.str())
            return
        with self._lock:
            self.sent += 1
            partition, offset = message.partition(), message.offset()
            if offset is None or offset < 0:
                self._without_offset.add(partition)
            has_offset = partition not in self._without_offset
            self.next[partition] = max(self.next.get(partition, 0), offset + 1) if has_offset else 0

    def count_shed(self, error: KafkaError | None, _: Any) -> None:
        """Delivery callback of the notice of a shed record: it is acknowledged, or has failed."""
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
        """Raises MachineError if a record was not acknowledged."""
        lost = self.failed + self.waiting
        if lost:
            got = self._reason or "no answer"
            raise MachineError(f"{lost} of {self.begun} records for {topic!r} were not acknowledged", got=got)


class Outlet:
    """A producer with a rate limit, and a bound of records in flight. Any thread may call."""

    def __init__(self, producer: Producer, bucket: Bucket | None, in_flight_max: int) -> None:
        self.producer = producer
        self.bucket = bucket
        self._in_flight_max = in_flight_max
        # Our own partitioners keep counters, so only one thread at a time may use them.
        self._choosing = threading.Lock()

    def send(self, record: ProducerRecord, on_delivery: Any) -> bool:
        """Sends a record; returns False if there is no room for it now."""
        if len(self.producer) >= self._in_flight_max or (self.bucket and not self.bucket.take()):
            return False
        options: dict[str, Any] = {"timestamp": record.at_ms} if record.at_ms else {}
        if record.headers:
            options["headers"] = list(record.headers)
        try:
            with self._choosing:
                self.producer.produce(
                    record.topic, record.value, record.key, on_delivery=on_delivery, **options
                )
        except BufferError:  # the bytes reached their bound before the records did
            if self.bucket:
                self.bucket.give_back()
            return False
        return True

    def rest(self) -> None:
        """Takes acknowledgements until there may be room."""
        wait_s = self.bucket.wait_s() if self.bucket else 0.0
        self.producer.poll(min(wait_s or POLL_S, POLL_S))


class FullPolicy(Protocol):
    """Decides what becomes of records for which there is no room. Any thread may call."""

    def give(self, record: ProducerRecord, tally: CallTally) -> None:
        """Takes a record and counts in ``tally`` what becomes of it.

        Raises OverloadedError if it cannot be taken in time.
        """
        ...

    def settle(self, tally: CallTally, limit: float) -> None:
        """Waits until it is known what became of all records, or until the time ``limit``."""
        ...

    def close(self) -> None: ...


class Blocking:
    """A record waits until there is room, for a bounded time."""

    def __init__(self, outlet: Outlet, wait_s: float, clock: Clock) -> None:
        self._outlet = outlet
        self._wait_s = wait_s
        self._clock = clock

    def give(self, record: ProducerRecord, tally: CallTally) -> None:
        if self._outlet.send(record, tally.count_sent):
            return
        limit = self._clock.monotonic() + self._wait_s
        while not self._outlet.send(record, tally.count_sent):
            if self._clock.monotonic() >= limit:
                raise no_room(record.topic, self._wait_s)
            self._outlet.rest()

    def settle(self, tally: CallTally, limit: float) -> None:
        while tally.waiting and self._clock.monotonic() < limit:
            self._outlet.producer.poll(POLL_S)

    def close(self) -> None:
        """Does nothing: no record is kept."""


def no_room(topic: str, wait_s: float) -> OverloadedError:
    """The error for a record that has waited for as long as it may."""
    return OverloadedError(
        f"there was no room for a record for {topic!r} within {wait_s:g} s",
        hint="the log is slow or away, or the limit is low: send less, or give a larger queue, limit or wait",
    )
