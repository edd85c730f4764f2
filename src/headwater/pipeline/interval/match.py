"""Pairs of rows of two streams with equal keys and times within a bound, published live and corrected.

With ``how`` left, right or full, a row without a match so far is emitted with nulls, and retracted when its
first match arrives. It is complete when the watermark has passed its time and the bound; a pair is complete
at once. With ``how`` inner nothing is retracted: rows have no weights, and Spark's own operators may follow.

    l BUCKET DIGEST TIME ROW → KEY MET COUNT BYTES      a row of the left, whether it has a match, its copies
    r BUCKET DIGEST TIME ROW → KEY MET COUNT BYTES      a row of the right (``bound.py``)
"""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from headwater.pipeline.arrow.row_bytes import pack, stacked, unpack
from headwater.pipeline.interval.bound import (
    Batch,
    Bound,
    Flags,
    Found,
    Numbers,
    Shelf,
    Side,
    pairs,
    read_batch,
)
from headwater.pipeline.operator.event_rows import TIMES
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.two_inputs import LEFT, RIGHT
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.key_prefix import value_start
from headwater.pipeline.state.layouts import OWNED
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import UNTIL, WEIGHT

__all__ = ["HOW", "Match"]

HOW = ("inner", "left", "right", "full")
COMPLETE = 0
"""The ``_until`` of a row that is complete at once: long ago."""
NONE = -1
_head = struct.Struct(">BI")
ONCE = [_head.pack(met, 1) for met in (0, 1)]


class SideRows(NamedTuple):
    """The rows of a side in a batch: new ones, those of the state, and those that match nothing."""

    rows: pa.Table
    key: Numbers
    time: Numbers
    fresh: int
    """The number of new rows, which come first."""
    held: Found
    entry: Numbers
    """The number of the entry of each row of the state."""
    was_met: Flags
    """Whether it already had a match."""
    lone: int
    """The number of rows without key or time, which come last."""


class Output(NamedTuple):
    """Rows to emit: their places in both sides (-1: none), their weight, and when they are complete."""

    left: Numbers
    right: Numbers
    weight: int
    until: Numbers


class Match(Spec, frozen=True, kw_only=True):
    """Matching rows of both inputs. State: every row that may still have a match."""

    stored_names: ClassVar[Mapping[str, str]] = {"Match": "Matched"}

    key: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    """The columns that are equal, as (column of the left, column of the right)."""
    time: tuple[str, str]
    bound: Bound
    how: str = "inner"
    kind: str = "match"
    timed: str = "watermark"
    layout: str = OWNED

    def schema(self, rows: StructType) -> StructType:
        """The times stay event times only if rows are never retracted."""
        fields = [
            *rows[LEFT].dataType.fields,
            *(field for field in rows[RIGHT].dataType.fields if field.name not in self._shared),
        ]
        if self.how == "inner":
            return StructType(fields)
        plain = [StructField(field.name, field.dataType) for field in fields]
        return StructType([*plain, StructField(WEIGHT, IntegerType()), StructField(UNTIL, TimestampType())])

    @property
    def _shared(self) -> set[str]:
        """Columns that both sides have under one name; they are emitted once."""
        return {here for here, there in self.on if here == there}

    @property
    def _outer(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, are emitted without a match."""
        return self.how in {"left", "full"}, self.how in {"right", "full"}

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        batch = read_batch(rows, self.time)
        shelves = self.bound.shelves
        horizon = moment.horizon
        near = (
            shelves[0].near(state, batch.digests, batch.right, self.bound.of_right, horizon),
            shelves[1].near(state, batch.digests, batch.left, self.bound.of_left, horizon),
        )
        left, right = _side_rows(batch.left, near[0]), _side_rows(batch.right, near[1])
        ours, theirs = self._pairs(left, right)
        is_met = _is_met(left, ours), _is_met(right, theirs)
        out = [Output(ours, theirs, 1, np.full(len(ours), COMPLETE))]
        changes: dict[bytes, bytes | None] = {}
        sides = zip(shelves, (batch.left, batch.right), (left, right), is_met, self._outer, strict=True)
        for shelf, fresh, side_rows, met, outer in sides:
            if outer:
                out += _unmatched_rows(shelf, side_rows, met)
                changes |= _first_matches(side_rows)
            changes |= _stored(shelf, batch, fresh, met[: side_rows.fresh], state=state, horizon=horizon)
            changes |= dict.fromkeys(shelf.forgotten(state, horizon))
        changes = dict(sorted(changes.items()))
        opens = [
            shelf.open(state, side.time[shelf.still(side.time, horizon)], moment)
            for shelf, side in zip(shelves, (batch.left, batch.right), strict=True)
        ]
        open_us = min((time_us for time_us in opens if time_us is not None), default=None)
        return Applied(self._rows(left, right, out), Delta.of(changes, state), open_us)

    def _pairs(self, left: SideRows, right: SideRows) -> tuple[Numbers, Numbers]:
        """The pairs with at least one new row."""
        before, after = self.bound.of_left
        n = left.fresh
        low, high = left.time - before, left.time + after
        first = pairs(left.key[:n], low[:n], high[:n], right.key, right.time)
        if n == len(left.key) or not right.fresh:
            return first
        fresh = right.key[: right.fresh], right.time[: right.fresh]
        ours, theirs = pairs(left.key[n:], low[n:], high[n:], *fresh)
        return np.concatenate([first[0], ours + n]), np.concatenate([first[1], theirs])

    def _rows(self, left: SideRows, right: SideRows, out: Sequence[Output]) -> pa.Table:
        sides = []
        for side_rows, side in ((left, 0), (right, 1)):
            places = np.concatenate([output[side] for output in out])
            sides.append((side_rows.rows, pa.array(places, mask=places < 0)))
        (ours, at_left), (theirs, at_right) = sides
        columns: dict[str, Any] = {}
        other = dict(self.on)
        for name in ours.column_names:
            column = ours.column(name).take(at_left)
            if other.get(name) == name and self._outer[1]:
                column = pc.coalesce(column, theirs.column(name).take(at_right))
            columns[name] = column
        columns |= {
            name: theirs.column(name).take(at_right)
            for name in theirs.column_names
            if name not in self._shared
        }
        if self.how != "inner":
            weights = np.repeat([output.weight for output in out], [len(output.left) for output in out])
            columns[WEIGHT] = pa.array(weights, pa.int32())
            until = np.concatenate([output.until for output in out])
            columns[UNTIL] = pa.array(until, pa.int64()).cast(TIMES)
        return pa.table(columns)


def _side_rows(side: Side, held: Found) -> SideRows:
    """New rows and those of the state.

    A row with several copies has one entry in the state, and several rows here.
    """
    heads = [value_start(value) for value in held.values]
    marks = [_head.unpack_from(value, at) for value, at in zip(held.values, heads, strict=True)]
    entry = np.repeat(np.arange(len(marks)), np.array([count for _, count in marks], np.int64))
    data, begins = stacked(held.values)
    loaded = unpack(data, begins + np.array(heads, np.int64) + _head.size, side.rows.schema)
    times = np.frombuffer(b"".join(entry[25:33] for entry in held.entries), ">i8") ^ np.int64(-(1 << 63))
    return SideRows(
        rows=pa.concat_tables([side.rows, loaded.take(pa.array(entry)), side.lone]),
        key=np.concatenate([side.key, np.array(held.key, np.int64)[entry]]),
        time=np.concatenate([side.time, times.astype(np.int64)[entry]]),
        fresh=len(side.key),
        held=held,
        entry=entry,
        was_met=np.array([met for met, _ in marks], bool)[entry],
        lone=side.lone.num_rows,
    )


def _is_met(side_rows: SideRows, places: Numbers) -> Flags:
    is_met = np.zeros(len(side_rows.key), bool)
    is_met[places] = True
    return is_met


def _unmatched_rows(shelf: Shelf, side_rows: SideRows, is_met: Flags) -> Iterator[Output]:
    """Rows with nulls.

    These are new rows without a match, retracted rows that have their first match now, and rows without key
    or time.
    """
    fresh = np.flatnonzero(~is_met[: side_rows.fresh])
    retracted = side_rows.fresh + np.flatnonzero(is_met[side_rows.fresh :] & ~side_rows.was_met)
    lone = len(side_rows.key) + np.arange(side_rows.lone)
    for places, weight, until in (
        (fresh, 1, side_rows.time[fresh] + shelf.reach[1] + 1),
        (retracted, -1, side_rows.time[retracted] + shelf.reach[1] + 1),
        (lone, 1, np.full(len(lone), COMPLETE)),
    ):
        none = np.full(len(places), NONE)
        is_left = shelf.letter == b"l"
        yield Output(places if is_left else none, none if is_left else places, weight, until)


def _first_matches(side_rows: SideRows) -> dict[bytes, bytes | None]:
    """The entries that have their first match now: every entry that was looked up has one."""
    changes: dict[bytes, bytes | None] = {}
    for entry, value in zip(side_rows.held.entries, side_rows.held.values, strict=True):
        at = value_start(value)
        if not value[at]:
            changes[entry] = value[:at] + b"\x01" + value[at + 1 :]
    return changes


def _stored(
    shelf: Shelf, batch: Batch, side: Side, is_met: Flags, *, state: State, horizon: int
) -> dict[bytes, bytes | None]:
    """The entries of new rows that may still have a match; none in batch, since nothing follows."""
    still = shelf.still(side.time, horizon)
    if not len(still):
        return {}
    rows = side.rows if len(still) == len(side.key) else side.rows.take(pa.array(still))
    texts = pack(rows).to_pylist()
    entries = shelf.entries(batch.digests, side.key[still], side.time[still], texts)
    stored = state.get(entries)
    met_flags, keys = is_met[still].tolist(), [batch.keys[number] for number in side.key[still].tolist()]
    if not stored and len(set(entries)) == len(entries):
        values = [key + ONCE[met] + text for key, met, text in zip(keys, met_flags, texts, strict=True)]
        return dict(zip(entries, values, strict=True))
    counts = Counter(entries)
    changes: dict[bytes, bytes | None] = {}
    for entry, key, met, text in zip(entries, keys, met_flags, texts, strict=True):
        met_before, count = _met_and_count(stored.get(entry))
        changes[entry] = key + _head.pack(met or met_before, counts[entry] + count) + text
    return changes


def _met_and_count(value: bytes | None) -> tuple[int, int]:
    if value is None:
        return 0, 0
    met, count = _head.unpack_from(value, value_start(value))
    return met, count
