"""Record states: what an administrator sees of a share partition, record by record."""

import enum
import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from headwater.queue.parking import Parked
from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_partition import SharePartition

__all__ = ["RecordState", "StatePage", "StateRun", "state_page"]


CHUNK_OFFSETS = 1 << 16


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
    """All of them, neighbours in the same state as one."""
    last: StateRun | None = None
    for run in _pieces(share, offset):
        if last is not None and last.last + 1 == run.first and last[2:] == run[2:]:
            last = last._replace(last=run.last)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _pieces(share: SharePartition, offset: int) -> Iterator[StateRun]:
    at = max(offset, share.needed_from)
    while at < share.end:
        last = min(at + CHUNK_OFFSETS, share.end) - 1
        parked = share.parking.within(at, last) if share.parking.is_complete else []
        offsets = [record.offset for record in parked]
        pieces = [Run(at, min(last, share.start - 1), DeliveryState.SETTLED)] if at < share.start else []
        pieces += share.between(max(at, share.start), last) if last >= share.start else []
        for run in pieces:
            state = _state(run)
            if state is RecordState.SETTLED:
                among = parked[bisect_left(offsets, run.first) : bisect_left(offsets, run.last + 1)]
                yield from _settled(share, run, among)
            elif state is not None:
                yield StateRun(run.first, run.last, state, run.deliveries, run.deadline)
        at = last + 1
    for first, last in share.settled_ahead:
        if last >= offset:
            yield StateRun(max(first, offset), last, RecordState.SETTLED, 0, 0.0)


def _settled(share: SharePartition, run: Run, parked: list[Parked]) -> Iterator[StateRun]:
    """What is settled of a run that counts as settled, and what is parked in it.

    While it is not known what is parked, nothing is said of where it may be.
    """
    at, end = run.first, run.last + 1
    if not share.parking.is_complete:
        end = min(end, share.needed_from)
    for record in parked:
        if at < record.offset:
            yield StateRun(at, record.offset - 1, RecordState.SETTLED, 0, 0.0)
        if record.due_ms:
            until = (record.due_ms - share.parking.started_ms) / 1000
            yield StateRun(record.offset, record.offset, RecordState.SCHEDULED, 0, until)
        at = record.offset + 1
    if at < end:
        yield StateRun(at, end - 1, RecordState.SETTLED, 0, 0.0)


def _state(run: Run) -> RecordState | None:
    if run.state is DeliveryState.ACQUIRED:
        return RecordState.ACQUIRED if run.deadline < math.inf else RecordState.PLEDGED
    if run.is_scheduled:
        return RecordState.SCHEDULED
    if run.state is DeliveryState.AVAILABLE and not run.deliveries:
        return None
    return RecordState(run.state)
