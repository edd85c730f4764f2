"""Sessions: runs of a key's events with no more than a gap between one and the next, live and with corrections.

A session's window is from its first event to a gap after its last one. An event exactly a gap after the last one still belongs to
it, as in Spark's ``session_window``: so a session is complete when the watermark is behind its window's end, and nothing can
change it any more when the horizon is.

    k KEY           → TIME [FIRSTS, LASTS, PARTIALS]    the sessions that a row may still change, in order
    t TIME DIGEST   → KEY                               when the first of them is forgotten
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.pipeline import timers, windowed
from headwater.pipeline.aggregate import Aggregates, Partial
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Moment, State, Staying
from headwater.pipeline.windowed import Ordered
from headwater.pipeline.wire import GONE, UNTIL

__all__ = ["Sessions"]


class Session(NamedTuple):
    """Some events of a session, or all. ``fresh``: a row of this batch is among them."""

    first: int
    last: int
    partial: Partial
    fresh: bool


class Sessions(Staying, frozen=True, kw_only=True):
    """The sessions of each key that a batch has changed. One that became part of another comes out as gone."""

    key: tuple[str, ...]
    time: str
    gap_us: int
    aggregates: Aggregates = Aggregates()
    kind: str = "sessions"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        windowed.check_time(self.kind, rows, self.time)
        return windowed.fields(self.kind, rows, self.key, self.aggregates, windowed.HIDDEN)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        found = windowed.ordered(rows, [*self.key, *self.aggregates.inputs()], self.time)
        fresh = dict(zip(found.keys, self._runs(found), strict=True))
        due = {key for _, key in timers.due(state, moment.horizon)}
        keys = sorted(due.union(fresh))
        known = state.get([timers.place(key) for key in keys])
        merge = self.aggregates.merger()
        out: list[tuple[int, Session, bool]] = []
        changes: dict[bytes, bytes | None] = {}
        number = {key: n for n, key in enumerate(found.keys)}
        for key in keys:
            old = known.get(timers.place(key))
            held = self._loaded(old)
            runs = fresh.get(key)
            now = _joined(held, runs, self.gap_us, merge) if runs else held
            if runs:
                firsts = {each.first for each in now}
                out.extend((number[key], each, False) for each in now if each.fresh)
                out.extend((number[key], each, True) for each in held if each.first not in firsts)
            after = self._kept(now, moment.horizon)
            if after != old:
                changes |= timers.changed(key, old, after)
        open_us = timers.open_at(state, changes, moment)
        return Applied(self._rows(found, out), dict(sorted(changes.items())), open_us)

    def _runs(self, found: Ordered) -> list[list[Session]]:
        """The runs of the batch's own rows, for each key in order."""
        key, time = found.key, found.time
        if not len(time):
            return []
        begins = np.ones(len(time), bool)
        begins[1:] = (key[1:] != key[:-1]) | (time[1:] - time[:-1] > self.gap_us)
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(time)) - 1
        partials = self.aggregates.partials(found.rows, np.cumsum(begins) - 1, time, len(starts))
        runs = [
            Session(first, last, partial, fresh=True)
            for first, last, partial in zip(time[starts].tolist(), time[ends].tolist(), partials, strict=True)
        ]
        bounds = np.searchsorted(key[starts], np.arange(len(found.keys) + 1)).tolist()
        return [runs[a:b] for a, b in pairwise(bounds)]

    def _loaded(self, kept: bytes | None) -> list[Session]:
        if kept is None:
            return []
        firsts, lasts, partials = msgspec.msgpack.decode(kept[8:])
        loaded = self.aggregates.loaded(partials)
        return [
            Session(first, last, partial, fresh=False)
            for first, last, partial in zip(firsts, lasts, loaded, strict=True)
        ]

    def _kept(self, sessions: Sequence[Session], horizon: int) -> bytes | None:
        """What a row from the horizon on may still touch; up to a gap behind the last event one belongs to the session."""
        since = horizon - self.gap_us
        still = [each for each in sessions if each.last >= since]
        if not still:
            return None
        firsts, lasts, partials, _ = zip(*still, strict=True)
        held = (firsts, lasts, self.aggregates.stored(partials))
        return timers.kept(min(lasts) + self.gap_us + 1, msgspec.msgpack.encode(held))

    def _rows(self, found: Ordered, out: list[tuple[int, Session, bool]]) -> pa.Table:
        out.sort(key=lambda each: (each[0], each[1].first))
        ends = [session.last + self.gap_us for _, session, _ in out]
        none: Partial = [None] * len(self.aggregates.each)
        columns = self.aggregates.columns([none if gone else session.partial for _, session, gone in out])
        return pa.table(
            windowed.keys(found, self.key, [number for number, _, _ in out])
            | {windowed.WINDOW: windowed.windows([session.first for _, session, _ in out], ends)}
            | columns
            | {GONE: pa.array([gone for _, _, gone in out], pa.bool_())}
            | {UNTIL: windowed.stamps([end + 1 for end in ends])}
        )


def _joined(
    held: Sequence[Session],
    runs: Sequence[Session],
    gap_us: int,
    merge: Callable[[Partial, Partial], Partial],
) -> list[Session]:
    """All sessions of a key: what is no more than a gap apart is one."""
    joined: list[Session] = []
    for each in sorted([*held, *runs], key=lambda each: each.first) if held else runs:
        before = joined[-1] if joined else None
        if before is None or each.first - before.last > gap_us:
            joined.append(each)
        else:
            partial, last = merge(before.partial, each.partial), max(before.last, each.last)
            joined[-1] = Session(before.first, last, partial, before.fresh or each.fresh)
    return joined
