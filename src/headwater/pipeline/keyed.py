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
        chosen, keys, encoded = self._best(timely)
        known = state.get(keys)
        better = [number for number, key in enumerate(keys) if encoded[number] > known.get(key, b"")]
        changes: dict[bytes, bytes | None] = {keys[number]: encoded[number] for number in better}
        return Applied(timely.take(chosen[better]).drop_columns(["_key"]), changes)

    def _best(self, rows: pa.Table) -> tuple[Any, list[bytes], list[bytes]]:
        """Of each key, in order: the place of its latest row, the key, and the row as state."""
        coded = rows.column("_key").combine_chunks().dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        times = self._times(rows)
        order = np.lexsort((times, codes))
        ends = np.flatnonzero(np.append(np.diff(codes[order]), 1)) if len(order) else np.empty(0, np.int64)
        chosen = order[ends]
        encoded = self._encoded(rows.take(chosen))
        for number in np.flatnonzero((ends > 0) & self._tied(codes, times, order, ends)):
            first = ends[number]
            while (
                first
                and codes[order[first - 1]] == codes[chosen[number]]
                and times[order[first - 1]] == times[chosen[number]]
            ):
                first -= 1
            same = order[first : ends[number] + 1]
            texts = self._encoded(rows.take(same))
            encoded[number] = max(texts)
            chosen[number] = same[texts.index(encoded[number])]
        keys = rows.column("_key").take(chosen).cast(pa.binary()).to_pylist()
        sequence = sorted(range(len(keys)), key=keys.__getitem__)
        return chosen[sequence], [keys[n] for n in sequence], [encoded[n] for n in sequence]

    def _tied(self, codes: Any, times: Any, order: Any, ends: Any) -> Any:
        """Whether the row before the last of a key has the same time."""
        before, last = order[ends - 1], order[ends]
        return (codes[before] == codes[last]) & (times[before] == times[last])

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
