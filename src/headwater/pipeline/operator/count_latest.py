"""Two small operators: the number of rows of each key, and its latest row."""

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql.types import (
    DateType,
    IntegralType,
    LongType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.errors import UsageError
from headwater.pipeline.arrow.sort_keys import numbered
from headwater.pipeline.operator.logic import Applied, InsertOnly
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.time.watermark import Moment

__all__ = ["Count", "Latest"]

Numbers = npt.NDArray[np.int64]


class Count(InsertOnly, frozen=True):
    """The number of rows of each key, in an added column. State: eight bytes per key."""

    key: tuple[str, ...]
    column: str = "count"
    kind: str = "count"

    def schema(self, rows: StructType) -> StructType:
        fields = [field for field in rows.fields if field.name in self.key]
        return StructType([*fields, StructField(self.column, LongType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        firsts = [(name, "min") for name in self.key]
        grouped = rows.group_by("_key").aggregate([*firsts, ([], "count_all")]).sort_by("_key")
        keys = grouped.column("_key").cast(pa.binary()).to_pylist()
        counts = grouped.column("count_all").to_pylist()
        stored = state.get(keys)
        totals = [n + int.from_bytes(stored.get(key, b"")) for key, n in zip(keys, counts, strict=True)]
        changes = {key: total.to_bytes(8) for key, total in zip(keys, totals, strict=True)}
        columns = {name: grouped.column(f"{name}_min") for name in self.key}
        return Applied(
            pa.table(columns | {self.column: pa.array(totals, pa.int64())}), Delta.of(changes, state)
        )


class Latest(InsertOnly, frozen=True):
    """The row of each key with the greatest time, in any order of arrival.

    State: time and row, in bytes that sort by time.
    """

    key: tuple[str, ...]
    time: str
    kind: str = "latest"

    def schema(self, rows: StructType) -> StructType:
        if self.time not in rows.names:
            columns = ", ".join(name for name in rows.names if not name.startswith("_"))
            raise UsageError(f"latest: time={self.time!r} is not a column of its input", expected=columns)
        if not isinstance(
            rows[self.time].dataType, TimestampType | TimestampNTZType | DateType | IntegralType
        ):
            raise UsageError(
                f"latest: the column time={self.time!r} does not hold times",
                got=rows[self.time].dataType.simpleString(),
                expected="a timestamp, a date or a whole number",
            )
        return rows

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        with_time = rows.filter(pc.is_valid(rows.column(self.time))).combine_chunks()
        keys, number = numbered(with_time.column("_key"))
        chosen, encoded = self._latest(with_time, number)
        names = keys.to_pylist()
        stored = state.get(names)
        better = [n for n, key in enumerate(names) if encoded[n] > stored.get(key, b"")]
        changes: dict[bytes, bytes | None] = {names[n]: encoded[n] for n in better}
        return Applied(with_time.take(chosen[better]).drop_columns(["_key"]), Delta.of(changes, state))

    def _latest(self, rows: pa.Table, number: Numbers) -> tuple[Numbers, list[bytes]]:
        """For each key: the index of its latest row, and that row as state.

        Of rows with equal times the greatest bytes win.
        """
        times = self._times(rows)
        order = np.lexsort((times, number))
        key, time = number[order], times[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
        first = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
        last = np.flatnonzero(np.append(key[1:] != key[:-1], True)[: len(order)])
        chosen = order[last]
        encoded = self._encoded(rows.take(chosen))
        for n in np.flatnonzero(first[last] < last):
            same_time = order[first[last[n]] : last[n] + 1]
            candidates = self._encoded(rows.take(same_time))
            encoded[n] = max(candidates)
            chosen[n] = same_time[candidates.index(encoded[n])]
        return chosen, encoded

    def _times(self, rows: pa.Table) -> Numbers:
        column = rows.column(self.time)
        if pt.is_date(column.type):
            column = column.cast(pa.int32())
        times: Numbers = column.cast(pa.int64()).to_numpy()
        return times

    def _encoded(self, rows: pa.Table) -> list[bytes]:
        """Each row after its time, an unsigned number of eight bytes, so that the bytes sort by time."""
        encode = msgspec.msgpack.encode
        times = [time + (1 << 63) for time in self._times(rows).tolist()]
        values = zip(*(column.to_pylist() for column in rows.drop_columns(["_key"]).columns), strict=True)
        return [encode((time, *row)) for time, row in zip(times, values, strict=True)]
