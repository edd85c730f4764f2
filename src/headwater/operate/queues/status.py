"""Status of queues: how much waits, is in work, is delayed, and has become dead letters."""

from collections.abc import Collection, Iterable
from contextlib import closing
from itertools import islice

import msgspec

from headwater.access import Log
from headwater.client.client import Client
from headwater.client.share.queue_state import QueueState
from headwater.clock import Clock, SystemClock
from headwater.operate.queues.contents import contents, places_of
from headwater.operate.queues.groups import Place, members, queues
from headwater.operate.queues.spans import STATES
from headwater.worker.letter import SUFFIX

__all__ = ["PartitionStatus", "QueueStatus", "statuses"]

LETTERS_MAX = 10_000
"""So many dead letters are counted one by one; of more, offsets are counted, which markers have too."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition of a queue. What the log does not say is None; Apache Kafka says ``unsettled`` alone."""

    topic: str
    partition: int
    members: int
    unsettled: int | None
    """All that is left: the next four together. Markers of transactions count until they are passed."""
    waiting: int | None
    held: int | None
    delayed: int | None
    scheduled: int | None
    expired: int | None
    exhausted: int | None
    duplicate: int | None
    invalid: int | None
    oldest_s: float | None
    """The age of the oldest message that waits."""
    start_offset: int | None
    end_offset: int


class QueueStatus(msgspec.Struct, frozen=True):
    """A queue: a share group with all partitions that it has used."""

    queue: str
    members: int
    unsettled: int | None
    waiting: int | None
    held: int | None
    delayed: int | None
    scheduled: int | None
    dead: int
    """Dead letters that wait for a decision."""
    expired: int | None
    oldest_s: float | None
    settled_per_s: float | None
    """Since the last look; None at the first one."""
    partitions: tuple[PartitionStatus, ...]

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(part.topic for part in self.partitions))

    def since(self, last: "QueueStatus", seconds: float) -> "QueueStatus":
        """The same with the rate since an earlier look."""
        starts = {(part.topic, part.partition): part for part in last.partitions}
        settled = sum(
            _settled(part) - _settled(starts[part.topic, part.partition])
            for part in self.partitions
            if (part.topic, part.partition) in starts
        )
        return msgspec.structs.replace(self, settled_per_s=max(settled, 0) / seconds)


def statuses(log: Log, name: str | None = None, clock: Clock | None = None) -> list[QueueStatus]:
    """The status of one queue, or of all but those of dead letters, which are counted with their queue.

    UsageError if there is no such queue, MachineError if the log does not answer.
    """
    names = [name] if name is not None else _without_letters(queues(log))
    look = _Look(log, (clock or SystemClock()).now_ms())
    with closing(look.client):
        return [look.queue(each) for each in names]


def _without_letters(names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in names)]


TOTALS = ("unsettled", "waiting", "held", "delayed", "scheduled", "expired")


class _Look:
    """One look at the queues of a log."""

    def __init__(self, log: Log, now_ms: int) -> None:
        self.client = Client(log)
        self._log = log
        self._now_ms = now_ms
        self._topics = self.client.partitions()

    def queue(self, name: str) -> QueueStatus:
        group = members(self._log, name)
        parts = tuple(
            self._partition(name, place, state, group.by_place.get(place, 0))
            for place, state in sorted(places_of(self._log, name).items())
        )
        ages = [part.oldest_s for part in parts if part.oldest_s is not None]
        return QueueStatus(
            queue=name,
            members=group.total,
            dead=self._letters(f"{name}{SUFFIX}"),
            oldest_s=max(ages, default=None),
            settled_per_s=None,
            partitions=parts,
            **{key: _sum(getattr(part, key) for part in parts) for key in TOTALS},
        )

    def _partition(self, name: str, place: Place, state: QueueState | None, count: int) -> PartitionStatus:
        if state is None:
            waiting = self._counted(name, place, None)
            state = QueueState(0, waiting, waiting, 0, 0, 0, 0, 0, 0, 0)
        elif name.endswith(SUFFIX) and state.waiting:  # every letter was written in a transaction
            state = state._replace(waiting=self._counted(name, place, state, ("waiting",)))
        oldest = None
        if state.waiting:
            for content in islice(contents(self._log, name, ("waiting",), {place: state}), 1):
                oldest = max(self._now_ms - content.record.timestamp, 0) / 1000
        return PartitionStatus(
            *place,
            count,
            unsettled=None if state.lag < 0 else state.lag,
            waiting=state.waiting,
            held=state.in_flight,
            delayed=state.delayed,
            scheduled=state.scheduled,
            expired=state.expired,
            exhausted=state.exhausted,
            duplicate=state.duplicate,
            invalid=state.invalid,
            oldest_s=oldest,
            start_offset=None if state.start_offset < 0 else state.start_offset,
            end_offset=self.client.bounds(place[0])[place[1]][1],
        )

    def _letters(self, name: str) -> int:
        """Dead letters that are not settled in their own queue."""
        if name not in self._topics:
            return 0
        return sum(self._counted(name, *known) for known in places_of(self._log, name).items())

    def _counted(
        self, name: str, place: Place, state: QueueState | None, states: Collection[str] = STATES
    ) -> int:
        """The messages of a partition, one by one as far as that is quick."""
        if state is None or state.waiting is not None:
            letters = contents(self._log, name, states, {place: state})
            count = sum(1 for _ in islice(letters, LETTERS_MAX + 1))
            if count <= LETTERS_MAX:
                return count
        start, end = self.client.bounds(place[0])[place[1]]
        return end - start if state is None else state.lag


def _settled(part: PartitionStatus) -> int:
    """How many offsets are done, from the log's first one on."""
    return part.end_offset - (part.unsettled or 0)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
