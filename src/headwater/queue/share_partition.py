"""The state machine of a share partition (KIP-932): who holds which record of a partition, in one group.

                  acquire                       accept, reject, gap
    AVAILABLE ───────────────► ACQUIRED ─────────────────────────────► SETTLED
      ▲   ▲                     │  │ │                                    ▲
      │   │ release, lock over, │  │ │  the same at the delivery limit    │
      │   │ member gone         │  │ └────────────────────────────────────┘
      │   └─────────────────────┘  │    renew: the lock begins again
      └──────── DELAYED ◄──────────┘    release with a delay

Offsets before ``start`` are settled, those from ``end`` on have never been delivered. A record that has been
delivered half as often as is allowed may be the one on which its members fail, so it is delivered with fewer
and fewer others, and at last alone: then a bad record does not take good ones with it.

It does no I/O and has no clock: calls carry the time and the group's settings.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from headwater.queue.acknowledgement import AckBatch, AckType, check_held, check_pledge
from headwater.queue.acquisition import Acquisition
from headwater.queue.parking import Parking, ParkingCopy
from headwater.queue.ranges import Ranges
from headwater.queue.run import DeliveryState, Run
from headwater.queue.runs import Runs, Snapshot, Watcher, join
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_facts import Counts, ShareFacts

__all__ = ["Copy", "SharePartition"]

EXHAUSTED_NAMED_MAX = 20
_NONE: Mapping[str, Sequence[Run]] = {}


class Copy(NamedTuple):
    """A share partition as it was."""

    runs: Snapshot
    changes: list[Run]
    deadline: float | None
    settled_ahead: Ranges
    counts: Counts
    parking: ParkingCopy


class SharePartition:
    """One partition in one group.

    Raises RequestError where Kafka answers with an error, and has changed nothing then.
    """

    def __init__(self, start: int, runs: Iterable[Run] = ()) -> None:
        self._runs = Runs(start, runs)
        self._changes: list[Run] = []
        self.settled_ahead = Ranges()
        """Offsets from ``end`` on that were settled before they came up."""
        self.counts = Counts()
        self.parking = Parking()
        """Records that count as settled among the runs, and are not."""
        self.exhausted: list[Run] = []
        """The first ones that were delivered as often as is allowed, until they are named."""
        self._deadline: float | None = None
        """No lock and no delay ends before this; None if there are none."""

    @classmethod
    def recover(
        cls,
        start: int,
        runs: Iterable[Run],
        config: ShareConfig,
        pledged: Mapping[str, Sequence[Run]] = _NONE,
    ) -> "SharePartition":
        """As it was stored, without locks: the members that held records then are unknown.

        What open transactions are to settle is held by them.
        """
        share = cls(start, runs)
        for holder, parts in pledged.items():
            for part in parts:
                share.hold(part.first, part.last, holder)
        for run in share.runs:
            if run.state is DeliveryState.ACQUIRED and run.member not in pledged:
                share._change(run, config)
        share._changes = []
        share._expect_next()
        return share

    @property
    def start(self) -> int:
        return self._runs.start

    @property
    def end(self) -> int:
        return self._runs.end

    @property
    def unsettled(self) -> int:
        """Records that were delivered and are not settled."""
        return self._runs.unsettled

    @property
    def delayed(self) -> int:
        """Records among these that are available later."""
        return self._runs.count(DeliveryState.DELAYED)

    @property
    def scheduled(self) -> int:
        """Records that have never been delivered, and are available later."""
        with_runs = sum(run.length for run in self._runs if run.is_scheduled) if self.delayed else 0
        return self.parking.scheduled + with_runs

    @property
    def in_flight(self) -> int:
        """Records that members hold."""
        return self._runs.count(DeliveryState.ACQUIRED)

    @property
    def settled(self) -> int:
        """Settled offsets after the first one that is not."""
        return self.end - self.start - self.unsettled

    @property
    def deadline(self) -> float | None:
        """When ``expire`` is to be called, at the earliest."""
        ends = (end for end in (self._deadline, self.parking.alarm_s()) if end is not None)
        return min(ends, default=None)

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)

    @property
    def facts(self) -> ShareFacts:
        return self.parking.facts(self.settled_ahead, self.counts)

    @property
    def needed_from(self) -> int:
        """The first offset that is not settled."""
        return min(self.start, self.parking.lowest_offset(self.start))

    def first_available(self) -> int | None:
        """The first offset that is available again."""
        return self._runs.first_available()

    def locks_left(self, config: ShareConfig) -> int:
        """How many more records members may hold."""
        return max(config.partition_max_record_locks - self.in_flight, 0)

    # ---- records that are known one by one (``record_index.py``) -----------------------------------------

    def watch(self, watcher: Watcher | None) -> None:
        """Tells this one what changes, and no other."""
        self._runs.watcher = watcher

    def next_unsettled(self, offset: int) -> int:
        return self._runs.next_unsettled(offset)

    def reach(self, offset: int) -> Run | None:
        """What is known of the record at an offset; from then on all before it is known."""
        if offset > self.end:
            self._skip(self.end, offset - 1)
        self.absorb()
        run = self._runs.at(offset)
        if run is None:
            return Run(offset, offset, DeliveryState.SETTLED) if offset < self.start else None
        return run.cut(offset, offset)

    def appear(self, offset: int) -> Run:
        """A record that was opened and is available from now on, also if it was parked."""
        run = Run(offset, offset, DeliveryState.AVAILABLE)
        if offset >= self.end:
            self._runs.append(run)  # no change: of what is not known, records are available
            return run
        if offset < self.start:
            self._runs.reopen(run)
        else:
            self._runs.replace(offset, offset, lambda _: run)
        self._changes.append(run)
        return run

    def delay(self, offset: int, until: float) -> Run:
        """A record that was opened, has not been delivered, and waits in a run of its own."""
        run = Run(offset, offset, DeliveryState.DELAYED, deadline=until)
        if offset >= self.end:
            self._runs.append(run)
        else:
            self._runs.replace(offset, offset, lambda _: run)
        self._expect(until)
        return run

    def drop(self, offset: int, **counts: int) -> None:
        """Settles a record that no member is to get; it is parked, or counted."""
        if offset >= self.end:
            self._skip(offset, offset)
        elif offset >= self.start:
            self.change(offset, offset, Run.settled)
        self.counts = self.counts.plus(**counts)

    def skip(self, first: int, last: int) -> None:
        """Settles offsets that are not for members."""
        if first <= last:
            self._skip(first, last)

    def is_available(self, offset: int) -> bool:
        run = self._runs.at(offset)
        return run is not None and run.state is DeliveryState.AVAILABLE

    def lock(self, acquisition: Acquisition, offset: int) -> bool:
        """Locks one record for a member; returns False if that is not the moment for it."""
        if acquisition.is_full or not self.is_available(offset):
            return False
        run = self._runs.at(offset)
        if run is None or not acquisition.share_of(run.cut(offset, offset)):
            return False
        self._changes += self._runs.replace(offset, offset, acquisition.lock)
        return True

    def note_acquired(self, acquisition: Acquisition) -> None:
        """After ``lock``: the locks of an acquisition are complete."""
        self.note_new(acquisition)
        if acquisition.taken:
            self._expect(acquisition.deadline)

    def note_new(self, acquisition: Acquisition) -> None:
        """Records how many were delivered together for the first time, as one change."""
        for batch in acquisition.take_new():
            whole = batch._replace(batch_size=batch.length)
            self._changes += self._runs.replace(batch.first, batch.last, partial(_part_of, whole))

    def between(self, first: int, last: int) -> Iterator[Run]:
        """What is known of the offsets of a range; it may change meanwhile."""
        return self._runs.between(first, last)

    def change(self, first: int, last: int, to: Callable[[Run], Run]) -> int:
        """Changes what is known of a range; returns how many offsets have changed."""
        changed = self._runs.replace(first, last, to)
        self._changes += changed
        return sum(run.length for run in changed)

    def append(self, run: Run) -> None:
        """A run of offsets of which nothing was known, which ``note_acquired`` records as a change."""
        self._runs.append(run)
        self.absorb()

    def absorb(self) -> None:
        """What was settled ahead is settled as the other offsets are, once it is not ahead any more."""
        while self.settled_ahead and self.settled_ahead[0].first <= self.end:
            first, last = self.settled_ahead[0]
            self.settled_ahead = Ranges(self.settled_ahead[1:])
            if last >= self.end:
                self._skip(self.end, last)
                self.parking.exclude(first, last)

    def hold(self, first: int, last: int, holder: str) -> list[Run]:
        """Gives a range to a transaction, which a restart forgets; returns what has changed."""
        return (
            self._runs.replace(first, last, partial(Run.pledged, holder=holder)) if first < self.end else []
        )

    # ---- requests of members ---------------------------------------------------------------------------

    def acknowledge(self, member: str, batches: Sequence[AckBatch], config: ShareConfig, now: float) -> None:
        """Settles, releases or renews what a member holds: all of it, or nothing if there is an error."""
        self.check(member, batches, config)
        deadline = now + config.record_lock_duration_ms / 1000
        for batch in batches:
            until = now + batch.delay_s if batch.delay_s else 0.0
            for first, last, kind in batch.parts():
                begin = max(first, self.start)
                if begin > last:
                    continue
                if kind is AckType.RELEASE:
                    self._release(begin, last, until, config, counted=not batch.uncounted)
                else:
                    self._apply(kind, begin, last, deadline)

    def check(
        self, member: str, batches: Iterable[AckBatch], config: ShareConfig, *, pledges: bool = False
    ) -> None:
        """Raises RequestError unless a member may say that, or have a transaction settle it."""
        for batch in batches:
            (check_pledge if pledges else check_held)(self._runs, member, batch, config)

    def release(self, member: str, config: ShareConfig) -> bool:
        """Releases all that a member holds; returns whether it held anything."""
        held = [run for run in self._runs if run.member == member and run.state is DeliveryState.ACQUIRED]
        for run in held:
            self._change(run, config)
        return bool(held)

    # ---- time, and the log -----------------------------------------------------------------------------

    def expire(self, now: float, config: ShareConfig) -> bool:
        """Makes records available whose lock or delay is over.

        Returns whether there were any, or a parked one is due since the last call.
        """
        is_due = self.parking.announce(now)
        if self._deadline is None or self._deadline > now:
            return is_due
        over = [run for run in self._timed() if run.deadline <= now]
        for run in sorted(over, key=lambda run: run.deadline):
            if run.state is DeliveryState.DELAYED:
                self._runs.replace(run.first, run.last, Run.due)
            else:
                self._change(run, config)
        self._expect_next()
        return is_due or bool(over)

    def drop_before(self, log_start: int) -> int:
        """Forgets offsets before the log's start, which were deleted. Returns how many were not settled."""
        unsettled, end = self.unsettled, self.end
        self._runs.drop_before(log_start)
        self.absorb()
        parked = self.parking.drop_before(log_start)
        return unsettled - self.unsettled + max(log_start - end, 0) + parked

    def drop_from(self, log_end: int) -> bool:
        """Forgets offsets after the log's end, lost in a power cut; returns whether there were any."""
        lost = self.end > log_end
        self._runs.drop_from(log_end)
        self.settled_ahead = self.settled_ahead.within(self.end, log_end - 1)
        return lost

    # ---- storing ---------------------------------------------------------------------------------------

    def take_changes(self) -> list[Run]:
        """What has changed since the last call, in the order in which it did."""
        changes, self._changes = self._changes, []
        return changes

    def copy(self) -> Copy:
        """For ``restore``, if the changes after this cannot be stored."""
        parking = self.parking.copy()
        changes = self._changes.copy()
        return Copy(self._runs.copy(), changes, self._deadline, self.settled_ahead, self.counts, parking)

    def restore(self, copy: Copy) -> None:
        runs, changes, self._deadline, self.settled_ahead, self.counts, parking = copy
        self._runs.restore(runs)
        self.parking.restore(parking)
        self._changes, self.exhausted = changes.copy(), []

    # ---- parts -----------------------------------------------------------------------------------------

    def _skip(self, first: int, last: int) -> None:
        """Settles offsets that are not for members."""
        if first < self.end:
            skipped = self._runs.replace(
                first, min(last, self.end - 1), lambda run: run if run.member else run.settled()
            )
            self._changes += skipped
        if last >= self.end:
            skipped_run = Run(max(first, self.end), last, DeliveryState.SETTLED)
            self._runs.append(skipped_run)
            join(self._changes, skipped_run)

    def _apply(self, kind: AckType, first: int, last: int, deadline: float) -> None:
        if kind is AckType.RENEW:
            self._runs.replace(first, last, lambda run: run._replace(deadline=deadline))
            self._expect(deadline)
        else:
            self._changes += self._runs.replace(first, last, Run.settled)

    def _release(self, first: int, last: int, until: float, config: ShareConfig, *, counted: bool) -> None:
        release = partial(self._released, config, until) if counted else partial(Run.returned, until=until)
        self._changes += self._runs.replace(first, last, release)
        if until:
            self._expect(until)

    def _change(self, run: Run, config: ShareConfig) -> None:
        self._changes += self._runs.replace(run.first, run.last, partial(self._released, config, 0.0))

    def _released(self, config: ShareConfig, until: float, run: Run) -> Run:
        after = run.released(config.delivery_count_limit, until)
        if after.state is DeliveryState.SETTLED:
            self.counts = self.counts.plus(exhausted=run.length)
            if len(self.exhausted) < EXHAUSTED_NAMED_MAX:
                self.exhausted.append(run)
        return after

    def _timed(self) -> list[Run]:
        """The runs with a lock or a delay."""
        return [run for run in self._runs if run.state in {DeliveryState.ACQUIRED, DeliveryState.DELAYED}]

    def _expect_next(self) -> None:
        ends = (run.deadline for run in self._timed() if run.deadline < math.inf)
        self._deadline = min(ends, default=None)

    def _expect(self, deadline: float) -> None:
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)


def _part_of(whole: Run, part: Run) -> Run:
    return whole.cut(part.first, part.last)
