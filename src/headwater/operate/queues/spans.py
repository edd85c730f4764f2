"""Spans: what has become of the offsets of a queue's partition, from the first one that is not settled on."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headwater.client.share.queue_state import RecordState, StateRun

__all__ = ["STATES", "Span", "spans"]

WAITING, HELD, SETTLED = "waiting", "held", "settled"
NAMES = {
    RecordState.AVAILABLE: WAITING,
    RecordState.ACQUIRED: HELD,
    RecordState.PLEDGED: HELD,
    RecordState.DELAYED: "delayed",
    RecordState.SCHEDULED: "scheduled",
    RecordState.SETTLED: SETTLED,
}
STATES = (WAITING, HELD, "delayed", "scheduled")
"""Of messages that are not settled."""


class Span(NamedTuple):
    """Consecutive offsets in one state, the last one included."""

    first: int
    last: int
    state: str
    deliveries: int = 0
    due_ms: int | None = None


def spans(start: int, end: int, runs: Iterable[StateRun]) -> Iterator[Span]:
    """All offsets from ``start`` up to, not including, ``end``: of what no run says anything, it waits."""
    at = start
    for run in runs:
        if run.last < at:
            continue
        if max(run.first, at) >= end:
            break
        if at < run.first:
            yield Span(at, run.first - 1, WAITING)
        first, last = max(run.first, at), min(run.last, end - 1)
        yield Span(first, last, NAMES[run.state], run.deliveries, run.due_ms)
        at = last + 1
    if at < end:
        yield Span(at, end - 1, WAITING)
