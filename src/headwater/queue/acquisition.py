"""Acquisition: what one request of a member gets of one share partition."""

from collections.abc import Iterable
from typing import NamedTuple

from headwater.queue.run import Run
from headwater.queue.runs import join
from headwater.queue.share_config import ShareConfig

__all__ = ["Acquired", "Acquisition", "Span", "Wish", "acquired"]

THROTTLED_DELIVERIES_MIN = 2
"""A record is not suspicious before it was delivered as often as this."""


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
        locked = run.locked(self.wish.member, self.deadline)
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
        return acquired(self.taken)

    def sorted(self) -> list[Acquired]:
        """The same if it was not taken in the order of offsets."""
        return acquired(sorted(self.taken))


def acquired(runs: Iterable[Run]) -> list[Acquired]:
    """Runs in the order of their offsets, neighbours with the same delivery count as one."""
    result: list[Acquired] = []
    for run in runs:
        if result and result[-1].last + 1 == run.first and result[-1].deliveries == run.deliveries:
            result[-1] = result[-1]._replace(last=run.last)
        else:
            result.append(Acquired(run.first, run.last, run.deliveries))
    return result
