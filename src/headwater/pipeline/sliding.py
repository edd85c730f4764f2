"""Sliding: at each event, what its key's events of the last while come to: those after ``t - size``, up to and with ``t``.

A straggler changes its own row and those of events less than ``size`` after it. So an event is needed as long as one may come, or be
changed, that is less than ``size`` after it: until the horizon is ``size`` behind it.

    k KEY           → TIME [TIMES, PARTIALS]    the events that count for a row which may still change, by time
    t TIME DIGEST   → KEY                       when the first of them is forgotten
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType, TimestampType

from headwater.pipeline import timers, windowed
from headwater.pipeline.aggregate import Aggregates, Partial
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Moment, State, Staying
from headwater.pipeline.windowed import Ordered
from headwater.pipeline.wire import UNTIL

__all__ = ["Sliding"]

Merge = Callable[[Partial, Partial], Partial]
Events = tuple[list[int], list[Partial]]
"""Different times in order, and what the rows of each come to."""


class Sliding(Staying, frozen=True, kw_only=True):
    """One row for each key and time at which it has an event. Equal times are one row."""

    key: tuple[str, ...]
    time: str
    size_us: int
    aggregates: Aggregates = Aggregates()
    kind: str = "sliding"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        windowed.check_time(self.kind, rows, self.time)
        hidden = {UNTIL: TimestampType()}
        return windowed.fields(self.kind, rows, self.key, self.aggregates, hidden)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        found = windowed.ordered(rows, [*self.key, *self.aggregates.inputs()], self.time)
        fresh = dict(zip(found.keys, self._events(found), strict=True))
        number = {key: n for n, key in enumerate(found.keys)}
        due = {key for _, key in timers.due(state, moment.horizon)}
        keys = sorted(due.union(fresh))
        known = state.get([timers.place(key) for key in keys])
        merge = self.aggregates.merger()
        out: list[tuple[int, int, Partial]] = []
        changes: dict[bytes, bytes | None] = {}
        for key in keys:
            old = known.get(timers.place(key))
            now = self._loaded(old)
            if key in fresh:
                new = fresh[key]
                now = _together(now, new, merge)
                out.extend(
                    (number[key], time, partial) for time, partial in _slid(now, new[0], self.size_us, merge)
                )
            after = self._kept(now, moment.horizon)
            if after != old:
                changes |= timers.changed(key, old, after)
        open_us = timers.open_at(state, changes, moment)
        return Applied(self._rows(found, out), dict(sorted(changes.items())), open_us)

    def _events(self, found: Ordered) -> list[Events]:
        """The times of the batch's own rows, for each key in order."""
        key, time = found.key, found.time
        begins = np.ones(len(time), bool)
        begins[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
        starts = np.flatnonzero(begins)
        partials = self.aggregates.partials(found.rows, np.cumsum(begins) - 1, time, len(starts))
        times = time[starts].tolist()
        bounds = np.searchsorted(key[starts], np.arange(len(found.keys) + 1)).tolist()
        return [(times[a:b], partials[a:b]) for a, b in pairwise(bounds)]

    def _loaded(self, kept: bytes | None) -> Events:
        if kept is None:
            return [], []
        times, partials = msgspec.msgpack.decode(kept[8:])
        return times, list(self.aggregates.loaded(partials))

    def _kept(self, events: Events, horizon: int) -> bytes | None:
        """A row exactly at the horizon counts what is after horizon - size, so what is exactly there goes."""
        times, partials = events
        first = bisect_right(times, horizon - self.size_us)
        if first == len(times):
            return None
        held = (times[first:], self.aggregates.stored(partials[first:]))
        return timers.kept(times[first] + self.size_us, msgspec.msgpack.encode(held))

    def _rows(self, found: Ordered, out: Sequence[tuple[int, int, Partial]]) -> pa.Table:
        times = [time for _, time, _ in out]
        spans = windowed.windows([time - self.size_us for time in times], times)
        return pa.table(
            windowed.keys(found, self.key, [number for number, _, _ in out])
            | {windowed.WINDOW: spans}
            | self.aggregates.columns([partial for _, _, partial in out])
            | {UNTIL: windowed.stamps([time + 1 for time in times])}
        )


def _together(held: Events, fresh: Events, merge: Merge) -> Events:
    """All events of a key that are known."""
    if not held[0] or held[0][-1] < fresh[0][0]:
        return held[0] + fresh[0], held[1] + fresh[1]
    together = dict(zip(*held, strict=True))
    for time, partial in zip(*fresh, strict=True):
        together[time] = merge(together[time], partial) if time in together else partial
    times = sorted(together)
    return times, [together[time] for time in times]


def _slid(events: Events, fresh: Sequence[int], size_us: int, merge: Merge) -> Iterator[tuple[int, Partial]]:
    """The rows that the fresh times change: their own, and those less than a size after one of them."""
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
    """What the events of a window come to, while it goes on. Each is merged a few times, however many the window has.

    What came first is kept as totals up to a middle (``_front``), so that the oldest can be left out; behind it one total grows.
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
        """Of the events after a time, of which the newest is one."""
        while self._front and self._front[-1][0] <= after:
            self._front.pop()
        if not self._front and self._back[0][0] <= after:
            self._turn(after)
        if not self._front:
            return self._total or []
        front = self._front[-1][1]
        return front if self._total is None else self._merge(front, self._total)

    def _turn(self, after: int) -> None:
        """The back becomes the front."""
        for time, partial in reversed(self._back):
            if time <= after:
                break
            before = self._front[-1][1] if self._front else None
            self._front.append((time, partial if before is None else self._merge(partial, before)))
        self._back, self._total = [], None
