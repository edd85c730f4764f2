"""Matched: pairs of rows of two streams with the same key and times within a bound, live and with corrections.

With ``how`` left, right or full, a row that nothing has met yet is there with nulls, and is taken back when its first match comes. It is complete when the
watermark is behind its time and the bound; a pair is complete at once. With ``how`` inner nothing is taken back: rows have no weights, and Spark's
own operators may follow.

    l BUCKET DIGEST TIME ROW → KEY MET COUNT BYTES      a row of the left, whether something has met it, and how often it came (``within.py``)
    r BUCKET DIGEST TIME ROW → KEY MET COUNT BYTES      a row of the right
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from headwater.pipeline import within
from headwater.pipeline.layout import OWNED
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.owned import behind
from headwater.pipeline.pair import LEFT, RIGHT
from headwater.pipeline.rowbytes import pack, stacked, unpack
from headwater.pipeline.windowed import TIMES
from headwater.pipeline.wire import UNTIL, WEIGHT
from headwater.pipeline.within import Batch, Bound, Found, Shelf, Side

__all__ = ["HOW", "Matched"]

HOW = ("inner", "left", "right", "full")
COMPLETE = 0
"""The ``_until`` of a row that is complete at once: long ago."""
NONE = -1
_about = struct.Struct(">BI")
ONCE = [_about.pack(met, 1) for met in (0, 1)]


class All(NamedTuple):
    """The rows of a side that a batch has to do with: those that came, those of the state that they meet, those that meet nothing ever."""

    rows: pa.Table
    key: Any
    time: Any
    fresh: int
    """So many of them have come in this batch; those of the state stand behind them."""
    held: Found
    of: Any
    """Which entry each row of the state is."""
    was_met: Any
    """Whether something had met it before."""
    lone: int


class Out(NamedTuple):
    """Rows that go out: places in both sides, or none, a weight, and until when the row may change."""

    left: Any
    right: Any
    weight: int
    until: Any


class Matched(Spec, frozen=True, kw_only=True):
    """The rows of both inputs side by side. State: every row that may still be met."""

    key: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    """The columns of the left and of the right that are equal."""
    time: tuple[str, str]
    bound: Bound
    how: str = "inner"
    kind: str = "match"
    timed: str = "watermark"
    layout: str = OWNED

    def schema(self, rows: StructType) -> StructType:
        """Times stay the event time only where rows are never taken back."""
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
        """Columns that both have under one name, and that come out once."""
        return {here for here, there in self.on if here == there}

    @property
    def _shows(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right come out that nothing meets."""
        return self.how in {"left", "full"}, self.how in {"right", "full"}

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        batch = within.read(rows, self.time)
        shelves = self.bound.shelves
        horizon = moment.horizon
        near = (
            shelves[0].near(state, batch.digests, batch.right, self.bound.of_right, horizon),
            shelves[1].near(state, batch.digests, batch.left, self.bound.of_left, horizon),
        )
        left, right = _all(batch.left, near[0]), _all(batch.right, near[1])
        ours, theirs = self._pairs(left, right)
        is_met = _is_met(left, ours), _is_met(right, theirs)
        out = [Out(ours, theirs, 1, np.full(len(ours), COMPLETE))]
        changes: dict[bytes, bytes | None] = {}
        sides = zip(shelves, (batch.left, batch.right), (left, right), is_met, self._shows, strict=True)
        for shelf, fresh, every, now, shows in sides:
            if shows:
                out += _shown(shelf, every, now)
                changes |= _met(every)
            changes |= _kept(shelf, batch, fresh, now[: every.fresh], state=state, horizon=horizon)
            changes |= dict.fromkeys(shelf.forgotten(state, horizon))
        changes = dict(sorted(changes.items()))
        opens = [
            shelf.open(state, side.time[shelf.still(side.time, horizon)], moment)
            for shelf, side in zip(shelves, (batch.left, batch.right), strict=True)
        ]
        open_us = min((each for each in opens if each is not None), default=None)
        return Applied(self._rows(left, right, out), changes, open_us)

    def _pairs(self, left: All, right: All) -> tuple[Any, Any]:
        """Those in which at least one row has come in this batch."""
        before, after = self.bound.of_left
        n = left.fresh
        low, high = left.time - before, left.time + after
        first = within.pairs(left.key[:n], low[:n], high[:n], right.key, right.time)
        if n == len(left.key) or not right.fresh:
            return first
        came = right.key[: right.fresh], right.time[: right.fresh]
        ours, theirs = within.pairs(left.key[n:], low[n:], high[n:], *came)
        return np.concatenate([first[0], ours + n]), np.concatenate([first[1], theirs])

    def _rows(self, left: All, right: All, out: Sequence[Out]) -> pa.Table:
        sides = []
        for every, mirrored in ((left, 0), (right, 1)):
            places = np.concatenate([each[mirrored] for each in out])
            sides.append((every.rows, pa.array(places, mask=places < 0)))
        (ours, at_left), (theirs, at_right) = sides
        columns: dict[str, Any] = {}
        other = dict(self.on)
        for name in ours.column_names:
            taken = ours.column(name).take(at_left)
            if other.get(name) == name and self._shows[1]:
                taken = pc.coalesce(taken, theirs.column(name).take(at_right))
            columns[name] = taken
        columns |= {
            name: theirs.column(name).take(at_right)
            for name in theirs.column_names
            if name not in self._shared
        }
        if self.how != "inner":
            weights = np.repeat([each.weight for each in out], [len(each.left) for each in out])
            columns[WEIGHT] = pa.array(weights, pa.int32())
            until = np.concatenate([each.until for each in out])
            columns[UNTIL] = pa.array(until, pa.int64()).cast(TIMES)
        return pa.table(columns)


def _all(side: Side, held: Found) -> All:
    """A row that came several times stands in the state once, and here as often."""
    abouts = [behind(value) for value in held.values]
    marks = [_about.unpack_from(value, at) for value, at in zip(held.values, abouts, strict=True)]
    of = np.repeat(np.arange(len(marks)), np.array([count for _, count in marks], np.int64))
    data, begins = stacked(held.values)
    loaded = unpack(data, begins + np.array(abouts, np.int64) + _about.size, side.rows.schema)
    times = np.frombuffer(b"".join(entry[25:33] for entry in held.entries), ">i8") ^ np.int64(-(1 << 63))
    return All(
        rows=pa.concat_tables([side.rows, loaded.take(pa.array(of)), side.lone]),
        key=np.concatenate([side.key, np.array(held.key, np.int64)[of]]),
        time=np.concatenate([side.time, times.astype(np.int64)[of]]),
        fresh=len(side.key),
        held=held,
        of=of,
        was_met=np.array([met for met, _ in marks], bool)[of],
        lone=side.lone.num_rows,
    )


def _is_met(every: All, places: Any) -> Any:
    found = np.zeros(len(every.key), bool)
    found[places] = True
    return found


def _shown(shelf: Shelf, every: All, is_met: Any) -> Iterator[Out]:
    """Rows that nothing has met yet, those that are taken back since something has, and those that nothing ever will."""
    fresh = np.flatnonzero(~is_met[: every.fresh])
    back = every.fresh + np.flatnonzero(is_met[every.fresh :] & ~every.was_met)
    lone = len(every.key) + np.arange(every.lone)
    for places, weight, until in (
        (fresh, 1, every.time[fresh] + shelf.reach[1] + 1),
        (back, -1, every.time[back] + shelf.reach[1] + 1),
        (lone, 1, np.full(len(lone), COMPLETE)),
    ):
        nothing = np.full(len(places), NONE)
        is_left = shelf.letter == b"l"
        yield Out(places if is_left else nothing, nothing if is_left else places, weight, until)


def _met(every: All) -> dict[bytes, bytes | None]:
    """The entries that something has met now for the first time: all that were looked up are met."""
    changes: dict[bytes, bytes | None] = {}
    for entry, value in zip(every.held.entries, every.held.values, strict=True):
        at = behind(value)
        if not value[at]:
            changes[entry] = value[:at] + b"\x01" + value[at + 1 :]
    return changes


def _kept(
    shelf: Shelf, batch: Batch, side: Side, is_met: Any, *, state: State, horizon: int
) -> dict[bytes, bytes | None]:
    """The rows that came, as they stand in the state from now on; in batch, where nothing comes any more, none."""
    still = shelf.still(side.time, horizon)
    if not len(still):
        return {}
    rows = side.rows if len(still) == len(side.key) else side.rows.take(pa.array(still))
    texts = pack(rows).to_pylist()
    entries = shelf.entries(batch.digests, side.key[still], side.time[still], texts)
    known = state.get(entries)
    is_met, keys = is_met[still].tolist(), [batch.keys[number] for number in side.key[still].tolist()]
    if not known and len(set(entries)) == len(entries):
        values = [key + ONCE[met] + text for key, met, text in zip(keys, is_met, texts, strict=True)]
        return dict(zip(entries, values, strict=True))
    counts = Counter(entries)
    changes: dict[bytes, bytes | None] = {}
    for entry, key, met, text in zip(entries, keys, is_met, texts, strict=True):
        met_before, count = _marks(known.get(entry))
        changes[entry] = key + _about.pack(met or met_before, counts[entry] + count) + text
    return changes


def _marks(value: bytes | None) -> tuple[int, int]:
    if value is None:
        return 0, 0
    met, count = _about.unpack_from(value, behind(value))
    return met, count
