"""RecordIndex: which records of a share partition go out next, where their keys and headers count.

A group with ``headwater.queue`` has the records of its topic opened, once each, some way ahead of those that
are delivered:

    priority    higher ones first, but each tenth delivery is the oldest record
    key         with ``headwater.order.by=key`` one record of a key at a time, in order of offsets

A record that is delayed after a failure blocks the later ones of its key; those that the index does not hold
are deferred (``parking.py``). A scheduled record takes its place among those of its key when it is due, so it
blocks none before.

The index is derived from the log and the runs of the share partition, which tell it what changes. It may be
thrown away at any time: the records are opened again then. No I/O; the event loop owns it.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from headwater.queue.record_headers import PRIORITIES, PRIORITY
from headwater.queue.run import DeliveryState, Run

__all__ = ["IndexedRecord", "RecordIndex"]

LOOK_AHEAD_RECORDS = 2_000
"""How many records that may be delivered are known, if there are as many."""
PRIORITIES_AHEAD_RECORDS = 50_000
"""The same once a record has a priority: among them priorities count. A record takes about 300 bytes."""
INDEXED_RECORDS_MAX = 50_000
"""With so many records, those of keys that are blocked are deferred."""
KEY_RECORDS_MAX = 1_000
"""With so many records of a key, further ones are deferred."""
OLDEST_EVERY = 10
"""Each delivery of this number is the oldest record, whatever its priority: none waits for ever."""


class IndexedRecord(NamedTuple):
    """What counts of one record."""

    offset: int
    key: bytes | None
    """None if the order of its key does not matter."""
    priority: int = PRIORITY
    expires_ms: int = 0


class RecordIndex:
    """The open records of one share partition. ``scanned`` is the first offset that is not open yet."""

    def __init__(self, start: int) -> None:
        self.tells_keys = False
        self.resets = 0
        """How often everything was forgotten."""
        self._clear(start)

    def _clear(self, start: int) -> None:
        self.scanned = start
        self._records: dict[int, IndexedRecord] = {}
        self._scheduled: dict[int, IndexedRecord] = {}
        """Records that are not due yet, and have never been delivered."""
        self._queues: dict[bytes, deque[int]] = {}
        """Of each key its offsets in order. The first one is ready, with a member, or delayed."""
        self._ready: list[list[int]] = [[] for _ in range(PRIORITIES)]
        """By priority, offsets that may be delivered. Some may have changed since: they are passed over."""
        self._is_ready: set[int] = set()
        self._has_priorities = False
        self.thinned_keys: set[bytes] | None = None
        """Keys of which a record has gone, while ``tells_keys``; None if it may be any."""
        self._turns = count(1)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def ready(self) -> int:
        """How many records may be delivered."""
        return len(self._is_ready)

    @property
    def wants_more(self) -> bool:
        """Whether further records are to be opened; past those of blocked keys only if nothing is ready."""
        if self.tells_keys:
            return not self.ready
        return self.ready < (PRIORITIES_AHEAD_RECORDS if self._has_priorities else LOOK_AHEAD_RECORDS)

    @property
    def is_full(self) -> bool:
        return len(self._records) >= INDEXED_RECORDS_MAX

    def queued(self, key: bytes) -> int:
        """How many records of a key are known."""
        return len(self._queues.get(key, ()))

    def is_crowded(self, key: bytes) -> bool:
        """Whether a further record of a key is to be deferred."""
        return self.queued(key) >= (1 if self.is_full else KEY_RECORDS_MAX)

    def tell_keys(self) -> None:
        """From now on names the keys of which a record goes."""
        self.tells_keys, self.thinned_keys = True, set()

    def get(self, offset: int) -> IndexedRecord | None:
        return self._records.get(offset)

    def reset(self, start: int) -> None:
        """Forgets everything; the records are opened again."""
        self.resets += 1
        self._clear(start)

    # ---- what becomes of records -----------------------------------------------------------------------

    def add(self, record: IndexedRecord, run: Run) -> None:
        """A record that was opened, in the order of offsets. Scheduled ones are added when they are due."""
        if run.state is DeliveryState.SETTLED:
            return
        if run.is_scheduled:
            self._scheduled[record.offset] = record
            return
        is_available = run.state is DeliveryState.AVAILABLE
        self._enqueue(record, is_first=not is_available)
        if is_available:
            self._make_ready(record)

    def changed(self, run: Run) -> None:
        """The runs say: these offsets are in another state now."""
        for offset in self._known(run):
            record = self._records.get(offset)
            if record is None:
                scheduled = self._scheduled.pop(offset, None)
                if scheduled is not None:
                    self.add(scheduled, run)
            elif run.state is DeliveryState.AVAILABLE:
                self._make_ready(record)
            else:
                self._is_ready.discard(offset)
                if run.state is DeliveryState.SETTLED:
                    self._remove(record)

    def _known(self, run: Run) -> Iterable[int]:
        """The offsets of a run, or of a long one those of records that are known."""
        if run.length <= len(self._records) + len(self._scheduled):
            return range(run.first, run.last + 1)
        known = [*self._records, *self._scheduled]
        return sorted(offset for offset in known if run.first <= offset <= run.last)

    def drop_before(self, start: int) -> None:
        """Offsets before the start are gone."""
        self.scanned = max(self.scanned, start)
        for offset in [offset for offset in self._scheduled if offset < start]:
            del self._scheduled[offset]
        for record in [record for record in self._records.values() if record.offset < start]:
            self._is_ready.discard(record.offset)
            self._remove(record)

    # ---- what is next ----------------------------------------------------------------------------------

    def take(self, records_max: int) -> list[int]:
        """The offsets that go out next, in the order of their importance. They are no longer ready."""
        taken: list[int] = []
        while len(taken) < records_max and self._is_ready:
            heap = self._oldest() if next(self._turns) % OLDEST_EVERY == 0 else self._highest()
            taken.append(heapq.heappop(heap))
            self._is_ready.discard(taken[-1])
        return taken

    def put_back(self, offsets: Iterable[int]) -> None:
        """Offsets that were taken, and not delivered."""
        for offset in offsets:
            record = self._records.get(offset)
            if record is not None:
                self._make_ready(record)

    # ---- parts -----------------------------------------------------------------------------------------

    def _enqueue(self, record: IndexedRecord, *, is_first: bool) -> None:
        """Puts a record at the end of the queue of its key.

        One that is with a member, or has failed, is the first: when a scheduled one came due meanwhile, it
        has a smaller offset.
        """
        self._records[record.offset] = record
        self._has_priorities |= record.priority != PRIORITY
        if record.key is None:
            return
        queue = self._queues.setdefault(record.key, deque())
        if not is_first:
            queue.append(record.offset)
            return
        if queue:
            self._is_ready.discard(queue[0])
        queue.appendleft(record.offset)

    def _make_ready(self, record: IndexedRecord) -> None:
        if record.offset in self._is_ready:
            return
        if record.key is None or self._queues[record.key][0] == record.offset:
            self._is_ready.add(record.offset)
            heapq.heappush(self._ready[record.priority], record.offset)

    def _remove(self, record: IndexedRecord) -> None:
        del self._records[record.offset]
        queue = self._queues.get(record.key) if record.key is not None else None
        if queue is None or record.key is None:
            return
        if self.tells_keys and self.thinned_keys is not None:
            self.thinned_keys.add(record.key)
        was_first = queue[0] == record.offset
        if was_first:
            queue.popleft()
        else:
            queue.remove(record.offset)
        if not queue:
            del self._queues[record.key]
        elif was_first:
            self._make_ready(self._records[queue[0]])

    def _highest(self) -> list[int]:
        return next(heap for heap in reversed(self._ready) if self._first(heap) is not None)

    def _oldest(self) -> list[int]:
        heaps = [heap for heap in self._ready if self._first(heap) is not None]
        return min(heaps, key=lambda heap: heap[0])

    def _first(self, heap: list[int]) -> int | None:
        """The first offset of a heap that is ready still."""
        while heap and heap[0] not in self._is_ready:
            heapq.heappop(heap)
        return heap[0] if heap else None
