"""Valid: the rows whose time it is by the clock, of a table or a stream with columns that say from when and until when.

A row comes out when its time has come and is taken back when it is over, although no record says so. Its state only moves forward: a clock that is set back
takes nothing back.

    k KEY → TIME STATE TIMES SINCE UNTIL ROW      each row, how often it is there, and when its state changes next (``timers.py``)
    t TIME DIGEST → KEY
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
from headwater.pipeline import operator, timers
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import FOREVER, Applied, Moment, Spec, State
from headwater.pipeline.rowbytes import pack, stacked, unpack
from headwater.pipeline.sorting import numbered
from headwater.pipeline.time import NEVER
from headwater.pipeline.weights import carried
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = ["Valid", "valid"]

WAITING, SHOWN, OVER = range(3)
EARLIEST = -FOREVER
_head = struct.Struct(">Biqq")


class Held(NamedTuple):
    """A row as the state has it."""

    state: int
    times: int
    """How often it is there."""
    since: int
    until: int
    row: bytes

    @classmethod
    def read(cls, kept: bytes) -> "Held":
        state, times, since, until = _head.unpack_from(kept, 8)
        return cls(state, times, since, until, kept[8 + _head.size :])

    def kept(self) -> bytes:
        """Its bytes, with the time at which its state changes next."""
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
    """Rows with a weight: in when they become valid, out when they are no longer. State: every row; of a stream, until its time is over."""

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
        came = self._came(rows, shown)
        due = timers.due(state, now_us)
        keys = sorted({key for _, key in due} | came.keys())
        known = state.get([timers.place(key) for key in keys])
        texts: list[bytes] = []
        weights: list[int] = []
        changes: dict[bytes, bytes | None] = {}
        for key in keys:
            kept = known.get(timers.place(key))
            before = Held.read(kept) if kept is not None else came[key]._replace(times=0)
            more = came[key].times if key in came else 0
            after = before._replace(times=before.times + more).at(now_us)
            if after.shown != before.shown:
                texts.append(before.row)
                weights.append(after.shown - before.shown)
            gone = not after.times or (self.stays and after.state == OVER)
            if kept is not None or not gone:
                changes |= timers.changed(key, kept, None if gone else after.kept())
        made = unpack(*stacked(texts), shown.schema).append_column(WEIGHT, pa.array(weights, pa.int32()))
        return Applied(made, dict(sorted(changes.items())), timers.earliest(state, changes, now_us))

    def _came(self, rows: pa.Table, shown: pa.Table) -> dict[bytes, Held]:
        """What the batch says of each row: how many more there are."""
        if not rows.num_rows:
            return {}
        keys, number = numbered(rows.column("_key"))
        more = np.ones(rows.num_rows) if self.stays else rows.column(WEIGHT).to_numpy()
        counts = np.bincount(number, more, len(keys)).astype(int).tolist()
        _, firsts = np.unique(number, return_index=True)
        chosen = shown.take(pa.array(firsts))
        since = _times(chosen, self.since, EARLIEST)
        until = _times(chosen, self.until, FOREVER)
        found = zip(counts, since, until, pack(chosen).to_pylist(), strict=True)
        names = keys.cast(pa.binary()).to_pylist()
        return {key: Held(WAITING, *held) for key, held in zip(names, found, strict=True)}


def _times(rows: pa.Table, name: str, missing: int) -> list[int]:
    if not name:
        return [missing] * rows.num_rows
    found: list[int] = pc.fill_null(
        rows.column(name).cast(pa.timestamp("us")).cast(pa.int64()), missing
    ).to_pylist()
    return found


def valid(rows: DataFrame, since: str, until: str) -> DataFrame:
    """The operator over a DataFrame."""
    if GONE in rows.columns:
        raise UsageError(
            "valid: rows of its input may still change, and say only when they are gone",
            got="sessions or sliding windows",
            hint="publish them as a view of their own",
        )
    rows = carried("valid", rows)
    if not since and not until:
        raise UsageError(
            "valid: neither since nor until is given", expected="a column with a time, for one or both"
        )
    for name in (since, until):
        if not name:
            continue
        if name not in rows.columns:
            raise UsageError(f"valid: {name!r} is no column of its input", got=", ".join(rows.columns))
        if not isinstance(rows.schema[name].dataType, TimestampType | TimestampNTZType):
            got = f"{name}, {rows.schema[name].dataType.simpleString()}"
            raise UsageError("valid: the time is no timestamp", got=got, hint="cast it to a timestamp")
    key = tuple(name for name in rows.columns if name != WEIGHT)
    return operator.run(Valid(key=key, since=since, until=until, stays=WEIGHT not in rows.columns), rows)
