"""The state machine of a share partition (KIP-932): who holds which record of a partition, in one group.

                  acquire                       accept, reject, gap
    AVAILABLE ───────────────► ACQUIRED ─────────────────────────────► SETTLED
        ▲                       │    │                                    ▲
        │  release, lock over,  │    │  the same at the delivery limit    │
        │  member gone          │    └────────────────────────────────────┘
        └───────────────────────┘   renew: the lock begins again

Offsets before ``start`` are settled, those from ``end`` on have never been delivered. A record that has been
delivered half as often as is allowed may be the one on which its members fail, so it is delivered with fewer
and fewer others, and at last alone: then a bad record does not take good ones with it.

It does no I/O and has no clock: calls carry the time and the group's settings.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from headwater.errors import ErrorCode, RequestError
from headwater.queue.acknowledgement import AckBatch, AckType
from headwater.queue.run import DeliveryState, Run
from headwater.queue.runs import Runs, Snapshot, join
from headwater.queue.share_config import ShareConfig

__all__ = ["Acquired", "Acquisition", "Copy", "SharePartition", "Span", "Wish"]

THROTTLED_DELIVERIES_MIN = 2
"""A record is not suspicious before it was delivered as often as this."""


Copy = tuple[Snapshot, float | None]
"""A share partition as it was."""


class Span(NamedTuple):
    """Offsets of one batch of the log, and whether its records are for members.

    Markers of transactions and records of aborted ones are not.
    """

    first: int
    last: int
    deliver: bool


class Wish(NamedTuple):
    """What a member asks for."""

    member: str
    records_max: int
    strict: bool = False
    """Whether a batch of the log may be split to keep to ``records_max``."""


class Acquired(NamedTuple):
    """Records that a member got with one delivery count."""

    first: int
    last: int
    deliveries: int


class SharePartition:
    """One partition in one group.

    Raises RequestError where Kafka answers with an error, and has changed nothing then.
    """

    def __init__(self, start: int, runs: Iterable[Run] = ()) -> None:
        self._runs = Runs(start, runs)
        self._changes: list[Run] = []
        self._deadline: float | None = None
        """No lock ends before this; None if there are no locks."""

    @classmethod
    def recover(cls, start: int, runs: Iterable[Run], config: ShareConfig) -> "SharePartition":
        """As it was stored, without locks: the members that held records then are unknown."""
        limit = config.delivery_count_limit
        return cls(start, (_unlocked(run, limit) for run in runs))

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
    def settled(self) -> int:
        """Settled offsets after the first one that is not."""
        return self.end - self.start - self.unsettled

    @property
    def deadline(self) -> float | None:
        """When ``expire`` is to be called, at the earliest."""
        return self._deadline

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)

    def next_offset(self, config: ShareConfig) -> int | None:
        """Where to read for the next delivery; None while members hold as many records as they may."""
        available = self._runs.first_available()
        if available is not None:
            return available
        return self.end if self.unsettled < config.partition_max_record_locks else None

    # ---- requests of members ---------------------------------------------------------------------------

    def acquire(self, acquisition: "Acquisition", first: int, spans: Sequence[Span]) -> bool:
        """Locks records for a member; returns whether it may get more of those that follow.

        ``spans`` is what the log has from ``first`` on. Offsets between them are gaps: nothing is there, and
        nothing will be.
        """
        at, more = max(first, self.start), True
        for span in spans:
            if at < span.first:
                self._skip(at, span.first - 1, acquisition)
            begin = max(span.first, at)
            if begin > span.last:
                continue
            if not span.deliver:
                self._skip(begin, span.last, acquisition)
            elif not self._take(begin, span.last, acquisition):
                more = False
                break
            at = span.last + 1
        self._note_new(acquisition)
        if acquisition.taken:
            self._expect(acquisition.deadline)
        return more and not acquisition.is_full

    def acknowledge(self, member: str, batches: Sequence[AckBatch], config: ShareConfig, now: float) -> None:
        """Settles, releases or renews what a member holds: all of it, or nothing if there is an error."""
        for batch in batches:
            self._check(member, batch, config)
        deadline = now + config.record_lock_duration_ms / 1000
        for batch in batches:
            for first, last, kind in batch.parts():
                if last >= self.start:
                    self._apply(kind, max(first, self.start), last, deadline, config)

    def held(self, member: str, acquired: Iterable[Acquired]) -> list[Acquired]:
        """Of what a member has acquired, what it holds still, with the same delivery."""
        return _acquired(
            run
            for a in acquired
            for run in self._runs.between(a.first, a.last)
            if (run.state, run.member, run.deliveries) == (DeliveryState.ACQUIRED, member, a.deliveries)
        )

    def release(self, member: str, config: ShareConfig) -> bool:
        """Releases all that a member holds; returns whether it held anything."""
        held = [run for run in self._runs if run.member == member and run.state is DeliveryState.ACQUIRED]
        for run in held:
            self._change(run, config)
        return bool(held)

    # ---- time, and the log -----------------------------------------------------------------------------

    def expire(self, now: float, config: ShareConfig) -> bool:
        """Releases records whose lock is over; returns whether there were any."""
        if self._deadline is None or self._deadline > now:
            return False
        held = [run for run in self._runs if run.state is DeliveryState.ACQUIRED]
        for run in held:
            if run.deadline <= now:
                self._change(run, config)
        self._deadline = min((run.deadline for run in held if run.deadline > now), default=None)
        return any(run.deadline <= now for run in held)

    def drop_before(self, log_start: int) -> None:
        """Forgets offsets before the log's start: what was there has been deleted."""
        self._runs.drop_before(log_start)

    def drop_from(self, log_end: int) -> bool:
        """Forgets offsets after the log's end, lost in a power cut; returns whether there were any."""
        lost = self.end > log_end
        self._runs.drop_from(log_end)
        return lost

    # ---- storing ---------------------------------------------------------------------------------------

    def take_changes(self) -> list[Run]:
        """What has changed since the last call, in the order in which it did."""
        changes, self._changes = self._changes, []
        return changes

    def copy(self) -> Copy:
        """For ``restore``, if the changes after this cannot be stored."""
        return self._runs.copy(), self._deadline

    def restore(self, copy: Copy) -> None:
        snapshot, self._deadline = copy
        self._runs.restore(snapshot)
        self._changes = []

    # ---- parts of an acquisition -----------------------------------------------------------------------

    def _note_new(self, acquisition: "Acquisition") -> None:
        """Records how many were delivered together for the first time, as one change."""
        for batch in acquisition.take_new():
            whole = batch._replace(batch_size=batch.length)
            self._changes += self._runs.replace(batch.first, batch.last, partial(_part_of, whole))

    def _skip(self, first: int, last: int, acquisition: "Acquisition") -> None:
        """Settles offsets that are not for members."""
        if first < self.end:
            skipped = self._runs.replace(
                first, min(last, self.end - 1), lambda run: run if run.member else run.settled()
            )
            self._changes += skipped
        if last >= self.end:
            self._note_new(acquisition)
            skipped_run = Run(max(first, self.end), last, DeliveryState.SETTLED)
            self._runs.append(skipped_run)
            self._changes.append(skipped_run)

    def _take(self, first: int, last: int, acquisition: "Acquisition") -> bool:
        """Locks what is available of one batch of the log; returns whether there may be more."""
        if acquisition.is_full:
            return False
        if first < self.end and not self._take_known(first, min(last, self.end - 1), acquisition):
            return False
        first = max(first, self.end)
        return first > last or self._take_new(first, last, acquisition)

    def _take_known(self, first: int, last: int, acquisition: "Acquisition") -> bool:
        """Locks records that were delivered before."""
        for run in self._runs.between(first, last):
            if run.state is not DeliveryState.AVAILABLE:
                continue
            count = acquisition.share_of(run)
            if count:
                part = run.cut(run.first, run.first + count - 1)
                self._changes += self._runs.replace(part.first, part.last, acquisition.lock)
            if count < run.length or acquisition.is_closed:
                return False
        return True

    def _take_new(self, first: int, last: int, acquisition: "Acquisition") -> bool:
        """Locks records that were never delivered."""
        room = acquisition.config.partition_max_record_locks - self.unsettled
        if room <= 0:
            return False
        count = min(last - first + 1, room)
        if acquisition.wish.strict:
            count = min(count, acquisition.left)
        if count > 0:
            self._runs.append(acquisition.lock(Run(first, first + count - 1, DeliveryState.AVAILABLE)))
        return first + count > last

    # ---- parts of an acknowledgement -------------------------------------------------------------------

    def _check(self, member: str, batch: AckBatch, config: ShareConfig) -> None:
        if not config.renew_acknowledge_enable and AckType.RENEW in batch.types:
            what = "locks of this group cannot be renewed, see share.renew.acknowledge.enable"
            raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)
        if batch.last < self.start:
            return
        if not len(self._runs):
            what = f"offsets {batch.first} to {batch.last} were not acquired"
            raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)
        if batch.last >= self.end:
            what = f"offset {batch.last} is after the last one that was delivered, {self.end - 1}"
            raise RequestError(ErrorCode.INVALID_REQUEST, what)
        for first, last, kind in batch.parts():
            if last < self.start:
                continue
            for run in self._runs.between(max(first, self.start), last):
                if run.state is DeliveryState.SETTLED and kind is AckType.GAP:
                    continue
                if run.state is not DeliveryState.ACQUIRED or run.member != member:
                    holder = "another member" if run.member else "no member"
                    what = f"offsets {run.first} to {run.last} are held by {holder}"
                    raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)

    def _apply(self, kind: AckType, first: int, last: int, deadline: float, config: ShareConfig) -> None:
        if kind is AckType.RENEW:
            self._runs.replace(first, last, lambda run: run._replace(deadline=deadline))
            self._expect(deadline)
        elif kind is AckType.RELEASE:
            limit = config.delivery_count_limit
            self._changes += self._runs.replace(first, last, lambda run: run.released(limit))
        else:
            self._changes += self._runs.replace(first, last, Run.settled)

    def _change(self, run: Run, config: ShareConfig) -> None:
        limit = config.delivery_count_limit
        self._changes += self._runs.replace(run.first, run.last, lambda part: part.released(limit))

    def _expect(self, deadline: float) -> None:
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)


class Acquisition:
    """What one request of a member gets of one share partition."""

    def __init__(self, wish: Wish, config: ShareConfig, now: float) -> None:
        self.wish = wish
        self.config = config
        self.deadline = now + config.record_lock_duration_ms / 1000
        self.taken: list[Run] = []
        self._new: list[Run] = []
        self.count = 0
        self.is_closed = False
        """Whether it has got a suspicious record, which goes without others."""
        limit = config.delivery_count_limit
        self._throttled = max(THROTTLED_DELIVERIES_MIN, (limit + 1) // 2)
        self._alone = limit - 1 if limit > THROTTLED_DELIVERIES_MIN else limit + 1

    @property
    def left(self) -> int:
        return self.wish.records_max - self.count

    @property
    def is_full(self) -> bool:
        return self.is_closed or self.left <= 0

    def share_of(self, run: Run) -> int:
        """How many records of an available run it gets."""
        count = min(run.length, self.left) if self.wish.strict else run.length
        if run.deliveries < self._throttled:
            return max(count, 0)
        if self.count:
            return 0
        self.is_closed = True
        if run.deliveries >= self._alone:
            return 1
        return max(1, min(count, run.batch_size >> (run.deliveries - self._throttled + 1)))

    def lock(self, run: Run) -> Run:
        locked = run._replace(
            state=DeliveryState.ACQUIRED,
            deliveries=run.deliveries + 1,
            member=self.wish.member,
            deadline=self.deadline,
        )
        self.taken.append(locked)
        if not run.deliveries:
            self._new.append(locked)
        self.count += locked.length
        return locked

    def take_new(self) -> list[Run]:
        """What was locked since the last call and has never been delivered before, as few runs."""
        new, self._new = self._new, []
        joined: list[Run] = []
        for run in new:
            join(joined, run)
        return joined

    def acquired(self) -> list[Acquired]:
        return _acquired(self.taken)


def _acquired(runs: Iterable[Run]) -> list[Acquired]:
    """Runs in the order of their offsets, neighbours with the same delivery count as one."""
    result: list[Acquired] = []
    for run in runs:
        if result and result[-1].last + 1 == run.first and result[-1].deliveries == run.deliveries:
            result[-1] = result[-1]._replace(last=run.last)
        else:
            result.append(Acquired(run.first, run.last, run.deliveries))
    return result


def _part_of(whole: Run, part: Run) -> Run:
    return whole.cut(part.first, part.last)


def _unlocked(run: Run, deliveries_max: int) -> Run:
    if run.state is not DeliveryState.ACQUIRED:
        return run
    return run.released(deliveries_max)
