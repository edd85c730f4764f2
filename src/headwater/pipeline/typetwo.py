"""TypeTwo: a table with a row for each version of a key: from when it holds, and until when.

A version that comes between two others ends the one before it earlier: that row is taken out and comes in again. What a straggler can still
touch is kept, all older rows are only in the view.

    k KEY           → TIME VERSIONS     those that a version may still come beside (``timeline.py``)
    t TIME DIGEST   → KEY               when the first of them is forgotten
"""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from headwater.errors import UsageError
from headwater.pipeline import asof, history, timeline, timers, weights, windowed
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Moment, Spec, State, run
from headwater.pipeline.plan import DELAY
from headwater.pipeline.rowbytes import stacked, unpack
from headwater.pipeline.timeline import FAR, Held
from headwater.pipeline.wire import WEIGHT

__all__ = ["VALID_FROM", "VALID_TO", "TypeTwo", "versions"]

VALID_FROM, VALID_TO, VERSION = "valid_from", "valid_to", "version"


class Span(NamedTuple):
    """A version, and until when it holds; None: until now."""

    valid: int
    until: int | None
    order: int
    row: bytes


class TypeTwo(Spec, frozen=True, kw_only=True):
    """Weighted rows: what was given, with ``valid_from``, ``valid_to`` and ``version``."""

    key: tuple[str, ...]
    time: str
    columns: tuple[str, ...]
    of_rows: bool = False
    endless: bool = False
    """Nothing is late, so nothing can be forgotten."""
    kind: str = "versions"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        own = [rows[name] for name in self.columns]
        start = [] if VALID_FROM in self.columns else [StructField(VALID_FROM, TimestampType())]
        end = [StructField(VALID_TO, TimestampType()), StructField(VERSION, StringType())]
        return StructType([*own, *start, *end, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        rows = rows.filter(asof.joins(rows, self.key)) if rows.num_rows else rows
        weights = rows.column(WEIGHT).to_pylist() if self.of_rows else None
        keys = rows.column("_key").cast(pa.binary()).to_pylist()
        came = timeline.fresh(rows, keys, self.time, self.columns, weights)
        lag = moment.watermark - moment.horizon
        due = {key for _, key in timers.due(state, moment.watermark)}
        wanted = sorted({*came, *due})
        known = state.get([timers.place(key) for key in wanted])
        out: list[tuple[Span, int]] = []
        changes: dict[bytes, bytes | None] = {}
        for key in wanted:
            old = known.get(timers.place(key))
            before = Held.loaded(old, 8) if old is not None else Held()
            after = self._after(before, came.get(key, ()))
            if after is not before:
                out += _differences(_spans(before), _spans(after))
            kept = after if self.of_rows or self.endless else after.since(moment.horizon)
            first = FAR if kept is after and (self.of_rows or self.endless) else kept.next_us()
            at = first + lag if first != FAR else FAR
            new = timers.kept(at, kept.packed()) if kept.entries else None
            if new != old:
                changes |= asof.looked_at(key, old, new)
        open_us = timers.earliest(state, changes, moment.watermark)
        return Applied(self._rows(out, rows.schema), dict(sorted(changes.items())), open_us)

    def _after(self, before: Held, came: Sequence[timeline.Fresh]) -> Held:
        if not came:
            return before
        return before.with_rows(came) if self.of_rows else before.with_changes(came)

    def _rows(self, out: Sequence[tuple[Span, int]], schema: pa.Schema) -> pa.Table:
        kind = pa.schema([schema.field(name) for name in self.columns])
        table = unpack(*stacked([span.row for span, _ in out]), kind)
        valid, order = [span.valid for span, _ in out], [span.order for span, _ in out]
        if VALID_FROM not in self.columns:
            table = table.append_column(VALID_FROM, windowed.stamps(valid))
        table = table.append_column(VALID_TO, windowed.stamps([span.until for span, _ in out]))
        table = table.append_column(VERSION, timeline.ids(valid, order))
        return table.append_column(WEIGHT, pa.array([weight for _, weight in out], pa.int32()))


def versions(changes: DataFrame, key: tuple[str, ...], time: str) -> DataFrame:
    """Applies it to a stream of changes, or to a table of the application."""
    known = history.offered(changes)
    if known is not None and time not in known.key:
        changes = known.changes()
    changes = weights.carried("versions", changes)
    columns = tuple(name for name in changes.columns if not name.startswith("_"))
    taken = [name for name in (VALID_FROM, VALID_TO, VERSION) if name in columns and name != time]
    if taken:
        raise UsageError(
            f"versions: its input has a column {taken[0]!r} already", hint="rename it with a select"
        )
    windowed.check_time("versions", changes.schema, time)
    judged = any(field.name == time and DELAY in field.metadata for field in changes.schema.fields)
    logic = TypeTwo(
        key=key, time=time, columns=columns, of_rows=WEIGHT in changes.columns, endless=not judged
    )
    return run(logic, changes)


def _spans(held: Held) -> list[Span]:
    """The versions of a timeline, each until the next one. Of several that hold from the same time the last counts."""
    there = [each for each in held.entries if each[2] >= 0]
    ends = [*(each[0] for each in there[1:]), None]
    return [
        Span(valid, end, order, row)
        for (valid, order, weight, row), end in zip(there, ends, strict=False)
        if weight > 0 and end != valid
    ]


def _differences(before: Sequence[Span], after: Sequence[Span]) -> list[tuple[Span, int]]:
    """What goes out and what comes in, in the order of time."""
    gone, new = set(before), set(after)
    out = [(span, -1) for span in gone - new] + [(span, 1) for span in new - gone]
    return sorted(out, key=lambda each: (each[0].valid, each[1], each[0].order, each[0].row))
