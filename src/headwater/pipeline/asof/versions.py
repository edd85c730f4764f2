"""A table with one row for each version of a key, with its start and end (a type-2 dimension).

A version that arrives between two others ends the one before it earlier: that row is retracted and inserted
again with its new end. Versions that a straggler may still change are kept; all older rows are only in the
view.

    k KEY           → TIME VERSIONS     the versions that may still change (``timeline.py``)
    t TIME DIGEST   → KEY               the time at which the first of them is forgotten
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from headwater.errors import UsageError
from headwater.pipeline.arrow.row_bytes import stacked, unpack
from headwater.pipeline.asof import table_changes, timeline
from headwater.pipeline.asof.as_of_batch import value_changes
from headwater.pipeline.asof.input_rows import has_key
from headwater.pipeline.asof.timeline import FAR, Timeline, Version
from headwater.pipeline.operator import event_rows, weights
from headwater.pipeline.operator.apply import run
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.spark.catalyst import DELAY
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import FORGETTING
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["VALID_FROM", "VALID_TO", "Versions", "versions"]

VALID_FROM, VALID_TO, VERSION = "valid_from", "valid_to", "version"


class Span(NamedTuple):
    """A version and the time at which it ends; None if it is the current one."""

    valid: int
    until: int | None
    order: int
    row: bytes


class Versions(Spec, frozen=True, kw_only=True):
    """Weighted rows: those of the input, with ``valid_from``, ``valid_to`` and ``version``."""

    stored_names: ClassVar[Mapping[str, str]] = {"Versions": "TypeTwo"}

    key: tuple[str, ...]
    time: str
    columns: tuple[str, ...]
    of_rows: bool = False
    endless: bool = False
    """No row is ever late, so no version can be forgotten."""
    kind: str = "versions"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        columns = [rows[name] for name in self.columns]
        start = [] if VALID_FROM in self.columns else [StructField(VALID_FROM, TimestampType())]
        end = [StructField(VALID_TO, TimestampType()), StructField(VERSION, StringType())]
        return StructType([*columns, *start, *end, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        rows = rows.filter(has_key(rows, self.key)) if rows.num_rows else rows
        weights = rows.column(WEIGHT).to_pylist() if self.of_rows else None
        keys = rows.column("_key").cast(pa.binary()).to_pylist()
        arrived = timeline.read_versions(rows, keys, self.time, self.columns, weights)
        lag = moment.watermark - moment.horizon
        due = {key for _, key in timers.due(state, moment.watermark)}
        wanted = sorted({*arrived, *due})
        stored = state.get([timers.place(key) for key in wanted])
        out: list[tuple[Span, int]] = []
        changes: dict[bytes, bytes | None] = {}
        for key in wanted:
            old = stored.get(timers.place(key))
            before = Timeline.loaded(old, 8) if old is not None else Timeline()
            after = self._after(before, arrived.get(key, ()))
            if after is not before:
                out += _differences(_spans(before), _spans(after))
            kept = after if self.of_rows or self.endless else after.since(moment.horizon)
            first = FAR if kept is after and (self.of_rows or self.endless) else kept.next_us()
            at = first + lag if first != FAR else FAR
            new = timers.kept(at, kept.packed()) if kept.entries else None
            if new != old:
                changes |= value_changes(key, old, new)
        open_us = timers.earliest(state, changes, moment.watermark)
        return Applied(self._rows(out, rows.schema), Delta.of(changes, state), open_us)

    def _after(self, before: Timeline, arrived: Sequence[Version]) -> Timeline:
        if not arrived:
            return before
        return before.with_rows(arrived) if self.of_rows else before.with_changes(arrived)

    def _rows(self, out: Sequence[tuple[Span, int]], schema: pa.Schema) -> pa.Table:
        kind = pa.schema([schema.field(name) for name in self.columns])
        table = unpack(*stacked([span.row for span, _ in out]), kind)
        valid, order = [span.valid for span, _ in out], [span.order for span, _ in out]
        if VALID_FROM not in self.columns:
            table = table.append_column(VALID_FROM, event_rows.timestamps(valid))
        table = table.append_column(VALID_TO, event_rows.timestamps([span.until for span, _ in out]))
        table = table.append_column(VERSION, timeline.version_ids(valid, order))
        return table.append_column(WEIGHT, pa.array([weight for _, weight in out], pa.int32()))


def versions(changes: DataFrame, key: tuple[str, ...], time: str) -> DataFrame:
    """Applies the operator to a stream of changes, or to a table of the application."""
    attached = table_changes.offered(changes)
    if attached is not None and time not in attached.key:
        changes = attached.changes()
    changes = weights.carry_weights("versions", changes)
    columns = tuple(name for name in changes.columns if not name.startswith("_"))
    taken = [name for name in (VALID_FROM, VALID_TO, VERSION) if name in columns and name != time]
    if taken:
        raise UsageError(
            f"versions: its input already has a column {taken[0]!r}",
            hint=f'rename it before: .withColumnRenamed("{taken[0]}", …)',
        )
    event_rows.check_time("versions", changes.schema, time)
    is_event_time = any(field.name == time and DELAY in field.metadata for field in changes.schema.fields)
    logic = Versions(
        key=key, time=time, columns=columns, of_rows=WEIGHT in changes.columns, endless=not is_event_time
    )
    return run(logic, changes)


def _spans(line: Timeline) -> list[Span]:
    """The versions of a timeline, each until the next one.

    Of several that begin at the same time the last one wins.
    """
    shown = [version for version in line.entries if version[2] >= 0]
    ends = [*(version[0] for version in shown[1:]), None]
    return [
        Span(valid, end, order, row)
        for (valid, order, weight, row), end in zip(shown, ends, strict=False)
        if weight > 0 and end != valid
    ]


def _differences(before: Sequence[Span], after: Sequence[Span]) -> list[tuple[Span, int]]:
    """The spans to retract and to insert, by time."""
    olds, news = set(before), set(after)
    out = [(span, -1) for span in olds - news] + [(span, 1) for span in news - olds]
    return sorted(out, key=lambda row: (row[0].valid, row[1], row[0].order, row[0].row))
