"""The first two operators: how many rows a key has, and its latest row."""

import datetime as dt
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.types import LongType, StructField, StructType

from headwater.errors import UsageError
from headwater.pipeline.operator import Applied, Moment, Spec, State

__all__ = ["Count", "Latest", "decoder", "python_type"]


class Count(Spec, frozen=True):
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


class Latest(Spec, frozen=True):
    """The row of each key with the greatest time, whatever the order of arrival. State: that row."""

    key: tuple[str, ...]
    time: str
    kind: str = "latest"

    def schema(self, rows: StructType) -> StructType:
        if self.time not in rows.names:
            raise UsageError("latest: the time is a column of its input", got=self.time)
        return rows

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        plain = rows.drop_columns(["_key"])
        names, decode = plain.schema.names, decoder(plain.schema)
        at = names.index(self.time)
        keys = rows.column("_key").cast(pa.binary()).to_pylist()
        found = zip(*(column.to_pylist() for column in plain.columns), strict=True)
        best: dict[bytes, tuple[Any, bytes]] = {}
        for key, row in zip(keys, found, strict=True):
            candidate = (row[at], msgspec.msgpack.encode(row))
            if row[at] is not None and (key not in best or candidate > best[key]):
                best[key] = candidate
        known = state.get(sorted(best))
        changes: dict[bytes, bytes | None] = {}
        for key in sorted(best):
            old = known.get(key)
            if old is None or best[key] > (decode(old)[at], old):
                changes[key] = best[key][1]
        latest = [
            dict(zip(names, decode(data), strict=True)) for data in changes.values() if data is not None
        ]
        return Applied(pa.Table.from_pylist(latest, schema=plain.schema), changes)


def decoder(schema: pa.Schema) -> Any:
    """Reads a row back with the types that its columns have."""
    types = tuple(python_type(field.type) | None for field in schema)
    return msgspec.msgpack.Decoder(tuple[types]).decode  # type: ignore[valid-type]


_PYTHON = (
    (pt.is_integer, int),
    (pt.is_floating, float),
    (pt.is_boolean, bool),
    (pt.is_decimal, Decimal),
    (pt.is_timestamp, dt.datetime),
    (pt.is_date, dt.date),
    (pt.is_binary, bytes),
    (pt.is_large_binary, bytes),
)


def python_type(kind: pa.DataType) -> Any:
    """The Python type that reads a value of such a column back."""
    if pt.is_list(kind):
        return list[python_type(kind.value_type) | None]  # type: ignore[misc]
    if pt.is_struct(kind):
        return TypedDict("Inner", {field.name: python_type(field.type) | None for field in kind})  # type: ignore[operator]
    return next((python for fits, python in _PYTHON if fits(kind)), str)
