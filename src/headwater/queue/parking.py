"""Parking: records of a share partition that wait without a run of their own, however many there are.

    scheduled    not due yet, and never delivered
    deferred     of a key that is blocked, after as many of its records as the index holds

Among the runs they count as settled. They are found again by reading the log: a scheduled record is one that
is due after ``due_to``, up to which all have runs; a deferred one is at or after the first deferred offset of
its key. Those of them that were settled meanwhile are in ``cancelled``. So what is stored of
millions is a few numbers.

Keys are named by a hash of 64 bits. Two keys with the same one are deferred together, which keeps the order.
"""

import hashlib
from array import array
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import NamedTuple

from headwater.queue.ranges import Range, Ranges
from headwater.queue.schedule import NEVER_DUE, Due, Schedule
from headwater.queue.share_facts import Counts, ShareFacts

__all__ = ["CANCELLED_RANGES_MAX", "PARKED_MAX", "Parked", "Parking", "ParkingCopy", "hash_of"]

PARKED_MAX = 4_000_000
"""Of a share partition: with so many, no further records are opened."""
CANCELLED_RANGES_MAX = 10_000
"""How many ranges of offsets may be cancelled that a scan would bring back."""
KEYS_MAX = 20_000
"""With so many keys that have deferred records, no further records are opened."""


def hash_of(key: bytes) -> int:
    """The name of a key here, the same in every process."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big", signed=True)


class Parked(NamedTuple):
    """A record that waits."""

    offset: int
    due_ms: int
    """0 if it waits for its key."""


class Parking:
    """The records that wait. One share partition owns it, which tells it what is settled and deleted."""

    def __init__(self) -> None:
        self.due_to = NEVER_DUE
        """The last scheduled record that was given a run; all that are due before were too."""
        self.first_deferred: dict[int, int] = {}
        """By the hash of a key, the first offset at which its records are deferred."""
        self.cancelled = Ranges()
        self.is_complete = True
        """Whether all that waits is here; if not, a scan of the log looks for it."""
        self.started_ms = 0
        """The wall time at which the clock of locks and delays was 0, or a little before."""
        self._announced_ms = -1
        """Up to which time it was said that records are due."""
        self.version = 0
        """Counts changes, so that it is known whether there are any to undo."""
        self.generation = 0
        """Counts how often a scan is to begin."""
        self._stored = ShareFacts()
        """What was stored, while it is not complete."""
        self._schedule = Schedule()
        self._deferred: dict[int, array[int]] = {}
        self._deferred_count = 0
        self._dropped_to = 0
        self._changed_keys: dict[int, int] = {}
        self._changed_ranges: list[Range] = []

    def __len__(self) -> int:
        return self._stored.parked if not self.is_complete else len(self._schedule) + self._deferred_count

    @property
    def scheduled(self) -> int:
        return self._stored.scheduled if not self.is_complete else len(self._schedule)

    @property
    def has_any(self) -> bool:
        return not self.is_complete or len(self) > 0

    @property
    def is_full(self) -> bool:
        return len(self) >= PARKED_MAX or len(self.first_deferred) >= KEYS_MAX

    def lowest_offset(self, end: int) -> int:
        """The first one that waits, or while that is not known an offset before it; ``end`` if none does."""
        if not self.is_complete:
            return self._stored.scan_from
        lowest = [offsets[0] for offsets in self._deferred.values()]
        scheduled = self._schedule.lowest_offset()
        return min([end, *lowest] if scheduled is None else [end, *lowest, scheduled])

    def facts(self, settled_ahead: Ranges, counts: Counts) -> ShareFacts:
        """What is to be stored beside keys and cancelled ranges."""
        if not self.is_complete:
            parked = self._stored[2:]
            return ShareFacts(settled_ahead, counts, *parked)
        scan_from = self._scan_from()
        return ShareFacts(settled_ahead, counts, self.due_to, scan_from, len(self._schedule), len(self))

    def _scan_from(self) -> int:
        """An offset before the first one that waits, or that; -1 if none does."""
        scheduled = self._schedule.lowest_bound()
        bounds = [] if scheduled is None else [scheduled]
        return min([*bounds, *self.first_deferred.values()], default=-1)

    def within(self, first: int, last: int) -> list[Parked]:
        """What waits at the offsets of a range, in their order."""
        parked = [Parked(due.offset, due.due_ms) for due in self._schedule.within(first, last)]
        for offsets in self._deferred.values():
            at = bisect_left(offsets, first)
            end = bisect_left(offsets, last + 1, at)
            parked += [Parked(offset, 0) for offset in offsets[at:end]]
        return sorted(parked)

    # ---- scheduled -------------------------------------------------------------------------------------

    def may_schedule(self, due: Due) -> bool:
        """Whether a record may wait here: others with an earlier time may have been given runs already."""
        return due > self.due_to

    def schedule(self, due: Due) -> None:
        self.version += 1
        self._schedule.add(due)

    def alarm_s(self) -> float | None:
        """When ``announce`` is to be called: a little late, since the wall time is cut to milliseconds."""
        due = self._schedule.first() if self.is_complete else None
        if due is None or due.due_ms <= self._announced_ms:
            return None
        return (due.due_ms - self.started_ms + 1) / 1000

    def announce(self, now: float) -> bool:
        """Whether records are due that were not due at the last call."""
        due, now_ms = self._schedule.first() if self.is_complete else None, self.now_ms(now)
        is_due = due is not None and self._announced_ms < due.due_ms <= now_ms
        if is_due:
            self._announced_ms = now_ms
        return is_due

    def now_ms(self, now: float) -> int:
        """The wall time, or a little before."""
        return self.started_ms + int(now * 1000)

    def is_due(self, now: float) -> bool:
        """Whether records are due that have no runs yet."""
        due = self._schedule.first() if self.is_complete else None
        return due is not None and due.due_ms <= self.now_ms(now)

    def take_due(self, now_ms: int, records_max: int) -> list[int]:
        """The offsets of records that are due, which are given runs now."""
        offsets: list[int] = []
        while len(offsets) < records_max:
            due = self._schedule.first()
            if due is None or due.due_ms > now_ms:
                break
            self.due_to = self._schedule.pop()
            offsets.append(due.offset)
        self.version += bool(offsets)
        return offsets

    # ---- deferred --------------------------------------------------------------------------------------

    def defers(self, key_hash: int, offset: int) -> bool:
        """Whether the record of a key at an offset waits for earlier ones that are deferred."""
        return self.first_deferred.get(key_hash, offset + 1) <= offset

    def defer(self, key_hash: int, offset: int) -> None:
        """A record of a key waits here; it may be before others of them if it was scheduled."""
        self.version += 1
        self._deferred_count += 1
        if key_hash not in self.first_deferred:
            self._set_first(key_hash, offset)
        offsets = self._deferred.setdefault(key_hash, array("q"))
        if offsets and offsets[-1] > offset:
            insort(offsets, offset)
        else:
            offsets.append(offset)

    def take_deferred(self, key_hash: int, records_max: int) -> list[int]:
        """The next offsets of a key, which are given runs now."""
        offsets = self._deferred.get(key_hash)
        taken = list(offsets[:records_max]) if offsets is not None else []
        if offsets is not None:
            del offsets[:records_max]
        self.version += 1
        self._deferred_count -= len(taken)
        if offsets:
            self._set_first(key_hash, offsets[0])
        else:
            self._deferred.pop(key_hash, None)
            self._drop_key(key_hash)
        return taken

    # ---- settled, deleted, undone ----------------------------------------------------------------------

    def cancel(self, first: int, last: int) -> int:
        """Records that are settled while they are parked. Returns how many are known."""
        removed = self._remove(first, last)
        if removed or not self.is_complete:
            self.exclude(first, last)
        return removed

    def exclude(self, first: int, last: int) -> None:
        """Offsets at which a scan is to find nothing."""
        if self.has_any:
            self.version += 1
            self.cancelled = Ranges.of([*self.cancelled, Range(first, last)])
            self._changed_ranges.append(Range(first, last))

    def drop_before(self, offset: int) -> int:
        """Records that were deleted from the log; returns how many are known."""
        if offset <= self._dropped_to:
            return 0
        self._dropped_to = offset
        return self._remove(0, offset - 1)

    def _remove(self, first: int, last: int) -> int:
        removed = self._schedule.remove(first, last)
        for key_hash, offsets in list(self._deferred.items()):
            at = bisect_left(offsets, first)
            end = bisect_left(offsets, last + 1, at)
            removed += end - at
            self._deferred_count -= end - at
            del offsets[at:end]
            if not offsets:
                del self._deferred[key_hash]
                self._drop_key(key_hash)
        self.version += bool(removed)
        return removed

    def begin(self, facts: ShareFacts, first_deferred: Mapping[int, int], cancelled: Ranges) -> None:
        """As it was stored: the records that wait are to be found again."""
        self.version += 1
        self.due_to, self.first_deferred, self.cancelled = facts.due_to, dict(first_deferred), cancelled
        self._stored, self.is_complete = facts, not facts.parked
        self.restart()

    def restart(self) -> int:
        """Before a scan: what an earlier one has found is found again. Returns the generation."""
        self.generation += 1
        self._schedule = Schedule()
        self._deferred, self._deferred_count = {}, 0
        return self.generation

    def complete(self) -> None:
        """All that waits was found."""
        self.is_complete = True
        self.version += 1
        for key_hash in self.first_deferred.keys() - self._deferred.keys():
            self._drop_key(key_hash)

    # ---- storing ---------------------------------------------------------------------------------------

    def take_changed_keys(self) -> list[tuple[int, int]]:
        """What has changed of the keys' first offsets; -1 for those that have none any more."""
        changed, self._changed_keys = self._changed_keys, {}
        return list(changed.items())

    def take_changed_ranges(self) -> list[Range]:
        """What was cancelled since the last call."""
        changed, self._changed_ranges = self._changed_ranges, []
        return changed

    def forget_cancelled(self) -> None:
        """Drops cancelled ranges before the first record that waits, for a snapshot."""
        if self.is_complete and self.cancelled:
            first, last = self._scan_from(), self.cancelled[-1].last
            self.cancelled = Ranges() if first < 0 else self.cancelled.within(first, last)

    def copy(self) -> "ParkingCopy":
        facts = self.facts(Ranges(), Counts())
        changed = dict(self._changed_keys), list(self._changed_ranges)
        return ParkingCopy(self.version, facts, dict(self.first_deferred), self.cancelled, *changed)

    def restore(self, copy: "ParkingCopy") -> None:
        """As it was; if anything has changed since, the records that wait are found again."""
        if copy.version != self.version:
            self.begin(copy.facts, copy.first_deferred, copy.cancelled)
        self._changed_keys, self._changed_ranges = dict(copy.changed_keys), list(copy.changed_ranges)

    def _set_first(self, key_hash: int, offset: int) -> None:
        self.first_deferred[key_hash] = self._changed_keys[key_hash] = offset

    def _drop_key(self, key_hash: int) -> None:
        if self.first_deferred.pop(key_hash, None) is not None:
            self._changed_keys[key_hash] = -1


class ParkingCopy(NamedTuple):
    """A parking as it was, without the records that wait."""

    version: int
    facts: ShareFacts
    first_deferred: dict[int, int]
    cancelled: Ranges
    changed_keys: dict[int, int]
    changed_ranges: list[Range]
