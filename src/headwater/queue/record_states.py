"""Record states: what an administrator sees of a share partition, record by record."""

import enum
import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_partition import SharePartition

__all__ = ["RecordState", "StatePage", "StateRun", "state_page"]


class RecordState(enum.IntEnum):
    """As requests say it."""

    AVAILABLE = 0
    """Again, after a delivery."""
    ACQUIRED = 1
    SETTLED = 2
    DELAYED = 3
    """After a delivery."""
    PLEDGED = 4
    """Held by a transaction."""
    SCHEDULED = 5
    """For its first delivery."""


class StateRun(NamedTuple):
    """Consecutive records in one state."""

    first: int
    last: int
    state: RecordState
    deliveries: int
    until: float
    """When its lock or delay ends; infinity if that has no time."""


class StatePage(NamedTuple):
    """Some runs, and from which offset on there are more."""

    runs: list[StateRun]
    next_offset: int | None


def state_page(share: SharePartition, offset: int, runs_max: int) -> StatePage:
    """The runs from an offset on, but for what is available and has never been delivered."""
    runs = list(islice(_states(share, offset), runs_max + 1))
    if len(runs) <= runs_max:
        return StatePage(runs, None)
    return StatePage(runs[:runs_max], runs[runs_max].first)


def _states(share: SharePartition, offset: int) -> Iterator[StateRun]:
    if offset < share.end:
        for run in share.between(max(offset, share.start), share.end - 1):
            state = _state(run)
            if state is not None:
                yield StateRun(run.first, run.last, state, run.deliveries, run.deadline)
    for first, last in share.settled_ahead:
        if last >= offset:
            yield StateRun(max(first, offset), last, RecordState.SETTLED, 0, 0.0)


def _state(run: Run) -> RecordState | None:
    if run.state is DeliveryState.ACQUIRED:
        return RecordState.ACQUIRED if run.deadline < math.inf else RecordState.PLEDGED
    if run.is_scheduled:
        return RecordState.SCHEDULED
    if run.state is DeliveryState.AVAILABLE and not run.deliveries:
        return None
    return RecordState(run.state)
