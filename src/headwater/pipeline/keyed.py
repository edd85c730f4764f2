"""The first two operators: how many rows a key has, and its latest row."""

from typing import Any

import msgspec
import numpy as np
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
from headwater.pipeline.operator import Applied, Moment, State, Staying
from headwater.pipeline.sorting import numbered

__all__ = ["Count", "Latest"]


class Count(Staying, frozen=True):
    """The number of rows of each key, as a column of its own. State: eight bytes a key."""

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
        counted = grouped.column("count_all").to_pylist()
        known = state.get(keys)
        totals = [n + int.from_bytes(known.get(key, b"")) for key, n in zip(keys, counted, strict=True)]
        changes = {key: total.to_bytes(8) for key, total in zip(keys, totals, strict=True)}
        columns = {name: grouped.column(f"{name}_min") for name in self.key}
        return Applied(pa.table(columns | {self.column: pa.array(totals, pa.int64())}), dict(changes))


class Latest(Staying, frozen=True):
    """The row of each key with the greatest time, whatever the order of arrival. State: its time and the row, in bytes that sort as they do."""

    key: tuple[str, ...]
    time: str
    kind: str = "latest"

    def schema(self, rows: StructType) -> StructType:
        if self.time not in rows.names:
            raise UsageError("latest: the time is a column of its input", got=self.time)
        if not isinstance(
            rows[self.time].dataType, TimestampType | TimestampNTZType | DateType | IntegralType
        ):
            raise UsageError(
                "latest: the time is no time",
                got=f"{self.time}, {rows[self.time].dataType.simpleString()}",
                expected="a timestamp, a date or a whole number",
            )
        return rows

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        timely = rows.filter(pc.is_valid(rows.column(self.time))).combine_chunks()
        keys, number = numbered(timely.column("_key"))
        chosen, encoded = self._best(timely, number)
        names = keys.to_pylist()
        known = state.get(names)
        better = [n for n, key in enumerate(names) if encoded[n] > known.get(key, b"")]
        changes: dict[bytes, bytes | None] = {names[n]: encoded[n] for n in better}
        return Applied(timely.take(chosen[better]).drop_columns(["_key"]), changes)

    def _best(self, rows: pa.Table, number: Any) -> tuple[Any, list[bytes]]:
        """Of each key by its number: the place of its latest row, and that row as state. Of rows with one time the greatest counts."""
        times = self._times(rows)
        order = np.lexsort((times, number))
        ordered = number[order], times[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = (ordered[0][1:] != ordered[0][:-1]) | (ordered[1][1:] != ordered[1][:-1])
        first = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
        last = np.flatnonzero(np.append(ordered[0][1:] != ordered[0][:-1], True)[: len(order)])
        chosen = order[last]
        encoded = self._encoded(rows.take(chosen))
        for n in np.flatnonzero(first[last] < last):
            same = order[first[last[n]] : last[n] + 1]
            found = self._encoded(rows.take(same))
            encoded[n] = max(found)
            chosen[n] = same[found.index(encoded[n])]
        return chosen, encoded

    def _times(self, rows: pa.Table) -> Any:
        column = rows.column(self.time)
        if pt.is_date(column.type):
            column = column.cast(pa.int32())
        return column.cast(pa.int64()).to_numpy()

    def _encoded(self, rows: pa.Table) -> list[bytes]:
        """A number of eight bytes stands in front of each row, which is the greater the later its time is."""
        encode = msgspec.msgpack.encode
        times = [time + (1 << 63) for time in self._times(rows).tolist()]
        found = zip(*(column.to_pylist() for column in rows.drop_columns(["_key"]).columns), strict=True)
        return [encode((time, *row)) for time, row in zip(times, found, strict=True)]
