"""Sessions: events of a key with no more than a gap between one and the next, live and corrected.

The window of a session is from its first event to a gap after its last one. An event exactly a gap after the
last one still belongs to the session, as in Spark's ``session_window``. So a session is complete once the
watermark has passed the end of its window, and cannot change any more once the horizon has.

    k KEY           → TIME [FIRSTS, LASTS, PARTIALS]    the sessions that a row may still change, in order
    t TIME DIGEST   → KEY                               the time at which the first of them is forgotten
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.pipeline.operator import event_rows
from headwater.pipeline.operator.aggregate import Aggregates, Partial
from headwater.pipeline.operator.event_rows import EventRows
from headwater.pipeline.operator.logic import Applied
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.windows.event_logic import EventLogic
from headwater.pipeline.wire.wire import GONE, UNTIL

__all__ = ["Sessions"]


class Session(NamedTuple):
    """All events of a session, or some of them. ``fresh``: this batch has brought one of them."""

    first: int
    last: int
    partial: Partial
    fresh: bool


class Output(NamedTuple):
    """A row of the output: the number of its key, the session, and whether another one has absorbed it."""

    key: int
    session: Session
    gone: bool


class Sessions(EventLogic, frozen=True, kw_only=True):
    """The sessions of each key that a batch has changed.

    A session that another one has absorbed is emitted as gone.
    """

    gap_us: int
    aggregates: Aggregates = Aggregates()
    kind: str = "sessions"

    def schema(self, rows: StructType) -> StructType:
        event_rows.check_time(self.kind, rows, self.time)
        return event_rows.window_schema(self.kind, rows, self.key, self.aggregates, event_rows.HIDDEN)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        events = event_rows.sort_events(rows, [*self.key, *self.aggregates.inputs()], self.time)
        fresh = dict(zip(events.keys, self._runs(events), strict=True))
        number = {key: n for n, key in enumerate(events.keys)}
        merge = self.aggregates.merger()
        out: list[Output] = []

        def step(key: bytes, old: bytes | None) -> bytes | None:
            held = self._loaded(old)
            runs = fresh.get(key)
            sessions = _merge_sessions(held, runs, self.gap_us, merge) if runs else held
            if runs:
                firsts = {session.first for session in sessions}
                out.extend(Output(number[key], session, gone=False) for session in sessions if session.fresh)
                out.extend(
                    Output(number[key], session, gone=True) for session in held if session.first not in firsts
                )
            return self._kept(sessions, moment.horizon)

        changes, open_us = self.update(state, moment, fresh, step)
        return Applied(self._rows(events, out), Delta.of(changes, state), open_us)

    def _runs(self, events: EventRows) -> list[list[Session]]:
        """The sessions that the rows of the batch make by themselves, for each key in order."""
        key, time = events.key, events.time
        if not len(time):
            return []
        begins = np.ones(len(time), bool)
        begins[1:] = (key[1:] != key[:-1]) | (time[1:] - time[:-1] > self.gap_us)
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(time)) - 1
        partials = self.aggregates.partials(events.rows, np.cumsum(begins) - 1, time, len(starts))
        runs = [
            Session(first, last, partial, fresh=True)
            for first, last, partial in zip(time[starts].tolist(), time[ends].tolist(), partials, strict=True)
        ]
        bounds = np.searchsorted(key[starts], np.arange(len(events.keys) + 1)).tolist()
        return [runs[a:b] for a, b in pairwise(bounds)]

    def _loaded(self, kept: bytes | None) -> list[Session]:
        if kept is None:
            return []
        firsts, lasts, partials = msgspec.msgpack.decode(kept[8:])
        return [
            Session(first, last, partial, fresh=False)
            for first, last, partial in zip(firsts, lasts, self.aggregates.loaded(partials), strict=True)
        ]

    def _kept(self, sessions: Sequence[Session], horizon: int) -> bytes | None:
        """The sessions that a row at the horizon or later may still extend."""
        since = horizon - self.gap_us
        open_sessions = [session for session in sessions if session.last >= since]
        if not open_sessions:
            return None
        firsts, lasts, partials, _ = zip(*open_sessions, strict=True)
        value = (firsts, lasts, self.aggregates.stored(partials))
        return timers.kept(min(lasts) + self.gap_us + 1, msgspec.msgpack.encode(value))

    def _rows(self, events: EventRows, out: list[Output]) -> pa.Table:
        out.sort(key=lambda row: (row.key, row.session.first))
        starts = [row.session.first for row in out]
        ends = [row.session.last + self.gap_us for row in out]
        nulls: Partial = [None] * len(self.aggregates.each)
        columns = self.aggregates.columns([nulls if row.gone else row.session.partial for row in out])
        return pa.table(
            event_rows.key_columns(events, self.key, [row.key for row in out])
            | {event_rows.WINDOW: event_rows.window_column(starts, ends)}
            | columns
            | {GONE: pa.array([row.gone for row in out], pa.bool_())}
            | {UNTIL: event_rows.timestamps([end + 1 for end in ends])}
        )


def _merge_sessions(
    held: Sequence[Session],
    runs: Sequence[Session],
    gap_us: int,
    merge: Callable[[Partial, Partial], Partial],
) -> list[Session]:
    """All sessions of a key: those at most a gap apart become one."""
    merged: list[Session] = []
    for session in sorted([*held, *runs], key=lambda session: session.first) if held else runs:
        before = merged[-1] if merged else None
        if before is None or session.first - before.last > gap_us:
            merged.append(session)
        else:
            partial, last = merge(before.partial, session.partial), max(before.last, session.last)
            merged[-1] = Session(before.first, last, partial, before.fresh or session.fresh)
    return merged
