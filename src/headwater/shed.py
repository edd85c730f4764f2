"""Shed: what is left out when there is no room, the least important first, and named.

A shed record has its name in ``<topic>.shed``: key, priority, reason and time. Its call ends only when the name is acknowledged, so
every record is in one of the two topics, or its call raises.
"""

import threading
from collections import deque
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Producer

from headwater.client import Client
from headwater.clock import Clock
from headwater.outgoing import POLL_S, Line, Record, Sending, no_room

__all__ = ["ENDING", "Shed", "Shedding", "Waiting"]

ENDING = ".shed"
PRIORITIES = range(10)
"""0 goes first."""
NAMES_MAX = 10_000
"""Names that are on their way; with so many, records wait for room."""
NAMES_BATCH = 500
NAMES_LINGER_MS = 20
NAMING: dict[str, Any] = {"linger.ms": NAMES_LINGER_MS, "batch.num.messages": NAMES_BATCH}
"""Of the producer of names: they leave in batches of at most so many."""
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}


class Shed(msgspec.Struct, frozen=True):
    """The name of a record that was shed, as ``<topic>.shed`` has it; the record's key is the key of the name too."""

    key: str | None
    priority: int
    reason: str
    """``full``: there was no room, and the others were no less important; ``old``: it has waited for as long as was to be waited."""
    at_ms: int


class Item(NamedTuple):
    """A record that waits, since when, and who wants to know."""

    number: int
    record: Record
    sending: Sending
    since: float


class Waiting:
    """Records that wait, at most ``bound``. They leave in the order in which they came; of too many, the newest of the lowest priority goes."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._lines: dict[int, deque[Item]] = {}
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    def offer(self, record: Record, sending: Sending, now: float) -> Item | None:
        """Takes a record in; what has to go for it, perhaps the record itself."""
        self._number += 1
        self._lines.setdefault(record.priority, deque()).append(Item(self._number, record, sending, now))
        self._count += 1
        if self._count <= self._bound:
            return None
        return self._out(min(priority for priority, line in self._lines.items() if line), newest=True)

    def first(self) -> Item | None:
        """The one that has waited for longest."""
        return min((line[0] for line in self._lines.values() if line), default=None)

    def take(self, item: Item) -> None:
        """The first one leaves."""
        self._out(item.record.priority, newest=False)

    def withdraw(self, sending: Sending) -> None:
        """The records of a call that has ended are not sent any more."""
        for priority, line in self._lines.items():
            self._lines[priority] = deque(item for item in line if item.sending is not sending)
        self._count = sum(map(len, self._lines.values()))

    def _out(self, priority: int, *, newest: bool) -> Item:
        self._count -= 1
        line = self._lines[priority]
        return line.pop() if newest else line.popleft()


class Shedding:
    """Records wait in a bounded queue; what does not fit, or waits too long, is shed by priority."""

    def __init__(
        self, line: Line, names: Producer, client: Client, *, queue_max: int, wait_s: float, clock: Clock
    ) -> None:
        self._line = line
        self._names = names
        self._client = client
        self._clock = clock
        self._wait_s = wait_s
        self._waiting = Waiting(queue_max)
        self._topics: set[str] = set()
        self._lock = threading.Lock()

    def give(self, record: Record, sending: Sending) -> None:
        self._make_room_for_names(record.topic)
        with self._lock:
            out = self._waiting.offer(record, sending, self._clock.monotonic())
            if out is not None:
                self._shed(out, "full")
            self._move()

    def settle(self, sending: Sending, limit: float) -> None:
        """A record may wait in the queue before its time on the way begins."""
        try:
            while sending.waiting and self._clock.monotonic() < limit + self._wait_s:
                with self._lock:
                    self._move()
                self._names.poll(0)
                self._line.rest()
        finally:
            if sending.waiting:
                with self._lock:
                    self._waiting.withdraw(sending)

    def close(self) -> None:
        """Nothing is held: a call has ended with all its names."""

    def _move(self) -> None:
        """Sends what there is room for; sheds what has waited too long."""
        while (item := self._waiting.first()) is not None:
            try:
                sent = self._line.send(item.record, item.sending.done)
            except Exception as error:  # noqa: BLE001  it may be another call's record
                item.sending.fail(str(error))
                sent = True
            if not sent:
                if self._clock.monotonic() < item.since + self._wait_s:
                    return
                self._shed(item, "old")
            self._waiting.take(item)

    def _shed(self, item: Item, reason: str) -> None:
        record = item.record
        key = record.key.decode(errors="replace") if isinstance(record.key, bytes) else record.key
        name = Shed(key, record.priority, reason, self._clock.now_ms())
        topic = record.topic + ENDING
        try:
            if topic not in self._topics:
                self._client.ensure_topics([topic], 1, KEPT)
                self._topics.add(topic)
            self._names.produce(topic, msgspec.json.encode(name), record.key, on_delivery=item.sending.named)
        except Exception as error:  # noqa: BLE001  it may be another call's record
            item.sending.fail(str(error))

    def _make_room_for_names(self, topic: str) -> None:
        """What cannot be named is not shed."""
        limit = self._clock.monotonic() + self._wait_s
        while len(self._names) >= NAMES_MAX:
            if self._clock.monotonic() >= limit:
                raise no_room(topic, self._wait_s)
            self._names.poll(POLL_S)
