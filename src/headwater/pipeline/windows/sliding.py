"""Sliding windows: for an event at ``t``, the aggregates of its key's events after ``t - size`` up to ``t``.

A straggler changes its own row and those of events less than ``size`` after it. So an event is kept as long
as a row less than ``size`` after it may still be added or changed: until the horizon is ``size`` after it.

    k KEY           → TIME [TIMES, PARTIALS]    the events that count for a row that may still change, by time
    t TIME DIGEST   → KEY                       the time at which the first of them is forgotten
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType, TimestampType

from headwater.pipeline.operator import event_rows
from headwater.pipeline.operator.aggregate import Aggregates, Partial
from headwater.pipeline.operator.event_rows import EventRows
from headwater.pipeline.operator.logic import Applied
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.windows.event_logic import EventLogic
from headwater.pipeline.wire.wire import UNTIL

__all__ = ["Sliding"]

Merge = Callable[[Partial, Partial], Partial]
Events = tuple[list[int], list[Partial]]
"""Different times in order, and the partials of the events at each time."""


class Output(NamedTuple):
    """A row of the output: the number of its key, its time, and the partials of its window."""

    key: int
    time: int
    partial: Partial


class Sliding(EventLogic, frozen=True, kw_only=True):
    """One row for each key and each time of one of its events."""

    size_us: int
    aggregates: Aggregates = Aggregates()
    kind: str = "sliding"

    def schema(self, rows: StructType) -> StructType:
        event_rows.check_time(self.kind, rows, self.time)
        hidden = {UNTIL: TimestampType()}
        return event_rows.window_schema(self.kind, rows, self.key, self.aggregates, hidden)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        events = event_rows.sort_events(rows, [*self.key, *self.aggregates.inputs()], self.time)
        fresh = dict(zip(events.keys, self._events(events), strict=True))
        number = {key: n for n, key in enumerate(events.keys)}
        merge = self.aggregates.merger()
        out: list[Output] = []

        def step(key: bytes, old: bytes | None) -> bytes | None:
            held = self._loaded(old)
            if key in fresh:
                held = _merge_events(held, fresh[key], merge)
                changed = _changed_windows(held, fresh[key][0], self.size_us, merge)
                out.extend(Output(number[key], time, partial) for time, partial in changed)
            return self._kept(held, moment.horizon)

        changes, open_us = self.update(state, moment, fresh, step)
        return Applied(self._rows(events, out), Delta.of(changes, state), open_us)

    def _events(self, events: EventRows) -> list[Events]:
        """The events of the batch, for each key in order."""
        key, time = events.key, events.time
        begins = np.ones(len(time), bool)
        begins[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
        starts = np.flatnonzero(begins)
        partials = self.aggregates.partials(events.rows, np.cumsum(begins) - 1, time, len(starts))
        times = time[starts].tolist()
        bounds = np.searchsorted(key[starts], np.arange(len(events.keys) + 1)).tolist()
        return [(times[a:b], partials[a:b]) for a, b in pairwise(bounds)]

    def _loaded(self, kept: bytes | None) -> Events:
        if kept is None:
            return [], []
        times, partials = msgspec.msgpack.decode(kept[8:])
        return times, list(self.aggregates.loaded(partials))

    def _kept(self, events: Events, horizon: int) -> bytes | None:
        """The events that a row at the horizon or later counts: those after horizon - size."""
        times, partials = events
        first = bisect_right(times, horizon - self.size_us)
        if first == len(times):
            return None
        value = (times[first:], self.aggregates.stored(partials[first:]))
        return timers.kept(times[first] + self.size_us, msgspec.msgpack.encode(value))

    def _rows(self, events: EventRows, out: Sequence[Output]) -> pa.Table:
        times = [row.time for row in out]
        windows = event_rows.window_column([time - self.size_us for time in times], times)
        return pa.table(
            event_rows.key_columns(events, self.key, [row.key for row in out])
            | {event_rows.WINDOW: windows}
            | self.aggregates.columns([row.partial for row in out])
            | {UNTIL: event_rows.timestamps([time + 1 for time in times])}
        )


def _merge_events(held: Events, fresh: Events, merge: Merge) -> Events:
    """The held events and the new ones, by time."""
    if not held[0] or held[0][-1] < fresh[0][0]:
        return held[0] + fresh[0], held[1] + fresh[1]
    merged = dict(zip(*held, strict=True))
    for time, partial in zip(*fresh, strict=True):
        merged[time] = merge(merged[time], partial) if time in merged else partial
    times = sorted(merged)
    return times, [merged[time] for time in times]


def _changed_windows(
    events: Events, fresh: Sequence[int], size_us: int, merge: Merge
) -> Iterator[tuple[int, Partial]]:
    """The rows that new events change: those at the same times, and those less than a size later."""
    times, partials = events
    begin = bisect_right(times, fresh[0] - size_us)
    window = _Window(merge)
    last, following = fresh[0], 0
    for n in range(begin, len(times)):
        time = times[n]
        window.add(time, partials[n])
        while following < len(fresh) and fresh[following] <= time:
            last = fresh[following]
            following += 1
        if time >= last + size_us and following == len(fresh):
            break
        if following and time < last + size_us:
            yield time, window.total(time - size_us)


class _Window:
    """The total of the events in a window that moves forward.

    Each event is merged a few times, whatever the size of the window.

    Older events are kept as totals from each of them up to a middle (``_front``), so that the oldest can be
    left out. Events after the middle are added to one total.
    """

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._front: list[tuple[int, Partial]] = []
        self._back: list[tuple[int, Partial]] = []
        self._total: Partial | None = None

    def add(self, time: int, partial: Partial) -> None:
        self._back.append((time, partial))
        self._total = partial if self._total is None else self._merge(self._total, partial)

    def total(self, after: int) -> Partial:
        """The total of all events after a time; the newest event must be after it."""
        while self._front and self._front[-1][0] <= after:
            self._front.pop()
        if not self._front and self._back[0][0] <= after:
            self._turn(after)
        if not self._front:
            return self._total or []
        front = self._front[-1][1]
        return front if self._total is None else self._merge(front, self._total)

    def _turn(self, after: int) -> None:
        """Moves the middle to the newest event: the back becomes the front."""
        for time, partial in reversed(self._back):
            if time <= after:
                break
            before = self._front[-1][1] if self._front else None
            self._front.append((time, partial if before is None else self._merge(partial, before)))
        self._back, self._total = [], None
