"""The rows of a table or stream that are valid now, by the clock and two columns with times.

A row is inserted when it becomes valid, and retracted when it is no longer, although no record arrives then.
Its state only moves forward: if the clock is set back, nothing is undone.

    k KEY → TIME STATE TIMES SINCE UNTIL ROW      each row, its copies, and the time of its next change
    t TIME DIGEST → KEY                           the same times, in order (``pipeline/state/timers.py``)
"""

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampNTZType, TimestampType

from headwater.clock import SystemClock
from headwater.errors import UsageError
from headwater.pipeline.arrow.row_bytes import pack, stacked, unpack
from headwater.pipeline.arrow.sort_keys import numbered
from headwater.pipeline.operator import apply
from headwater.pipeline.operator.event_rows import check_no_windows
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.operator.weights import carry_weights
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import FORGETTING
from headwater.pipeline.time.watermark import NEVER, Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["Valid", "valid"]

WAITING, SHOWN, OVER = range(3)
EARLIEST = -FOREVER
_head = struct.Struct(">Biqq")


class Held(NamedTuple):
    """A row in the state."""

    state: int
    times: int
    """The number of equal rows."""
    since: int
    until: int
    row: bytes

    @classmethod
    def read(cls, kept: bytes) -> "Held":
        state, times, since, until = _head.unpack_from(kept, 8)
        return cls(state, times, since, until, kept[8 + _head.size :])

    def kept(self) -> bytes:
        """Its bytes, with the time of its next change of state."""
        next_us = (self.since, self.until, FOREVER)[self.state]
        return timers.kept(next_us, _head.pack(*self[:4]) + self.row)

    def at(self, now_us: int) -> "Held":
        """The same row at a later time."""
        if self.until <= max(now_us, self.since):
            return self._replace(state=OVER)
        return self._replace(state=max(self.state, SHOWN if self.since <= now_us else WAITING))

    @property
    def shown(self) -> int:
        return self.times if self.state == SHOWN else 0


class Valid(Spec, frozen=True, kw_only=True):
    """Weighted rows: inserted when they become valid, retracted when they are no longer.

    State: every row; of a stream, only until its validity is over.
    """

    key: tuple[str, ...]
    since: str
    until: str
    stays: bool
    kind: str = "valid"
    timed: str = "clock"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        shown = [field for field in rows.fields if field.name != WEIGHT]
        return StructType([*shown, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        now_us = moment.now_us if moment.now_us != NEVER else SystemClock().now_ms() * 1000
        shown = rows.drop_columns([name for name in ("_key", WEIGHT) if name in rows.column_names])
        arrived = self._arrived(rows, shown)
        due = timers.due(state, now_us)
        keys = sorted({key for _, key in due} | arrived.keys())
        stored = state.get([timers.place(key) for key in keys])
        texts: list[bytes] = []
        weights: list[int] = []
        changes: dict[bytes, bytes | None] = {}
        for key in keys:
            kept = stored.get(timers.place(key))
            before = Held.read(kept) if kept is not None else arrived[key]._replace(times=0)
            more = arrived[key].times if key in arrived else 0
            after = before._replace(times=before.times + more).at(now_us)
            if after.shown != before.shown:
                texts.append(before.row)
                weights.append(after.shown - before.shown)
            gone = not after.times or (self.stays and after.state == OVER)
            if kept is not None or not gone:
                changes |= timers.changed(key, kept, None if gone else after.kept())
        out = unpack(*stacked(texts), shown.schema).append_column(WEIGHT, pa.array(weights, pa.int32()))
        return Applied(out, Delta.of(changes, state), timers.earliest(state, changes, now_us))

    def _arrived(self, rows: pa.Table, shown: pa.Table) -> dict[bytes, Held]:
        """The different rows of the batch; ``times`` is the change of their number."""
        if not rows.num_rows:
            return {}
        keys, number = numbered(rows.column("_key"))
        more = np.ones(rows.num_rows) if self.stays else rows.column(WEIGHT).to_numpy()
        counts = np.bincount(number, more, len(keys)).astype(int).tolist()
        _, firsts = np.unique(number, return_index=True)
        chosen = shown.take(pa.array(firsts))
        since = _times(chosen, self.since, EARLIEST)
        until = _times(chosen, self.until, FOREVER)
        values = zip(counts, since, until, pack(chosen).to_pylist(), strict=True)
        names = keys.cast(pa.binary()).to_pylist()
        return {key: Held(WAITING, *held) for key, held in zip(names, values, strict=True)}


def _times(rows: pa.Table, name: str, missing: int) -> list[int]:
    if not name:
        return [missing] * rows.num_rows
    times = rows.column(name).cast(pa.timestamp("us")).cast(pa.int64())
    numbers: list[int] = pc.fill_null(times, missing).to_pylist()
    return numbers


def valid(rows: DataFrame, since: str, until: str) -> DataFrame:
    """Applies the operator to a DataFrame."""
    check_no_windows("valid", rows)
    rows = carry_weights("valid", rows)
    if not since and not until:
        raise UsageError(
            "valid: neither since= nor until= is given", expected="a timestamp column, for one or both"
        )
    for argument, name in (("since", since), ("until", until)):
        if not name:
            continue
        if name not in rows.columns:
            columns = ", ".join(column for column in rows.columns if column != WEIGHT)
            raise UsageError(f"valid: {argument}={name!r} is not a column of its input", expected=columns)
        if not isinstance(rows.schema[name].dataType, TimestampType | TimestampNTZType):
            raise UsageError(
                f"valid: {argument}={name!r} is not a timestamp column",
                got=rows.schema[name].dataType.simpleString(),
                hint="cast it to a timestamp",
            )
    key = tuple(name for name in rows.columns if name != WEIGHT)
    return apply.run(Valid(key=key, since=since, until=until, stays=WEIGHT not in rows.columns), rows)
