"""Shedding: when there is no room, the least important records are left out, and each leaves a notice.

A shed record has a notice in ``<topic>.shed``: key, priority, reason and time. Its call ends only when the
notice is acknowledged, so every record is in one of the two topics, or its call raises.
"""

import threading
from collections import deque
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Producer

from headwater.client.client import Client
from headwater.clock import Clock
from headwater.write.outlet import POLL_S, CallTally, Outlet, ProducerRecord, no_room

__all__ = ["ENDING", "RecordQueue", "Shed", "Shedding"]

ENDING = ".shed"
NOTICES_MAX = 10_000
"""Notices in flight; with this many, records wait for room."""
NOTICES_BATCH = 500
NOTICES_LINGER_MS = 20
NOTICE_SETTINGS: dict[str, Any] = {"linger.ms": NOTICES_LINGER_MS, "batch.num.messages": NOTICES_BATCH}
"""Of the producer of notices, which leave in batches."""
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}


class Shed(msgspec.Struct, frozen=True):
    """The notice of a shed record, as in ``<topic>.shed``; its record has the same key."""

    key: str | None
    priority: int
    reason: str
    """``full``: there was no room, and no record was less important; ``old``: it had waited for too long."""
    at_ms: int


class Item(NamedTuple):
    """A waiting record, its call, and since when it waits."""

    number: int
    record: ProducerRecord
    tally: CallTally
    since: float


class RecordQueue:
    """At most ``bound`` waiting records. They leave in their order of arrival.

    If there are too many, the newest one of the lowest priority is removed.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._lines: dict[int, deque[Item]] = {}
        """By priority."""
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    def offer(self, record: ProducerRecord, tally: CallTally, now: float) -> Item | None:
        """Adds a record; returns the one that is removed for it, perhaps the record itself."""
        self._number += 1
        self._lines.setdefault(record.priority, deque()).append(Item(self._number, record, tally, now))
        self._count += 1
        if self._count <= self._bound:
            return None
        return self._remove(min(priority for priority, line in self._lines.items() if line), newest=True)

    def first(self) -> Item | None:
        """The record that has waited for longest."""
        return min((line[0] for line in self._lines.values() if line), default=None)

    def take(self, item: Item) -> None:
        """Removes the first record."""
        self._remove(item.record.priority, newest=False)

    def withdraw(self, tally: CallTally) -> None:
        """Removes the records of a call that has ended: they are not sent any more."""
        for priority, line in self._lines.items():
            self._lines[priority] = deque(item for item in line if item.tally is not tally)
        self._count = sum(map(len, self._lines.values()))

    def _remove(self, priority: int, *, newest: bool) -> Item:
        self._count -= 1
        line = self._lines[priority]
        return line.pop() if newest else line.popleft()


class Shedding:
    """Records wait in a bounded queue; those that do not fit, or wait too long, are shed by priority."""

    def __init__(
        self,
        outlet: Outlet,
        notices: Producer,
        client: Client,
        *,
        queue_max: int,
        wait_s: float,
        clock: Clock,
    ) -> None:
        self._outlet = outlet
        self._notices = notices
        self._client = client
        self._clock = clock
        self._wait_s = wait_s
        self._queue = RecordQueue(queue_max)
        self._topics: set[str] = set()
        self._lock = threading.Lock()

    def give(self, record: ProducerRecord, tally: CallTally) -> None:
        self._make_room_for_notices(record.topic)
        with self._lock:
            removed = self._queue.offer(record, tally, self._clock.monotonic())
            if removed is not None:
                self._shed(removed, "full")
            self._move()

    def settle(self, tally: CallTally, limit: float) -> None:
        """A record may wait in the queue before the time of its delivery begins."""
        try:
            while tally.waiting and self._clock.monotonic() < limit + self._wait_s:
                with self._lock:
                    self._move()
                self._notices.poll(0)
                self._outlet.rest()
        finally:
            if tally.waiting:
                with self._lock:
                    self._queue.withdraw(tally)

    def close(self) -> None:
        """Does nothing: a call ends only when all its notices are acknowledged."""

    def _move(self) -> None:
        """Sends records while there is room, and sheds those that have waited too long."""
        while (item := self._queue.first()) is not None:
            try:
                sent = self._outlet.send(item.record, item.tally.count_sent)
            except Exception as error:  # noqa: BLE001  it may be a record of another call
                item.tally.fail(str(error))
                sent = True
            if not sent:
                if self._clock.monotonic() < item.since + self._wait_s:
                    return
                self._shed(item, "old")
            self._queue.take(item)

    def _shed(self, item: Item, reason: str) -> None:
        record = item.record
        key = record.key.decode(errors="replace") if isinstance(record.key, bytes) else record.key
        notice = Shed(key, record.priority, reason, self._clock.now_ms())
        topic = record.topic + ENDING
        try:
            if topic not in self._topics:
                self._client.ensure_topics([topic], 1, KEPT)
                self._topics.add(topic)
            value = msgspec.json.encode(notice)
            self._notices.produce(topic, value, record.key, on_delivery=item.tally.count_shed)
        except Exception as error:  # noqa: BLE001  it may be a record of another call
            item.tally.fail(str(error))

    def _make_room_for_notices(self, topic: str) -> None:
        """No record is shed without a notice, so records wait until there is room for one."""
        limit = self._clock.monotonic() + self._wait_s
        while len(self._notices) >= NOTICES_MAX:
            if self._clock.monotonic() >= limit:
                raise no_room(topic, self._wait_s)
            self._notices.poll(POLL_S)
