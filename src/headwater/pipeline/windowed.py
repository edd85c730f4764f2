"""Windowed: what operators over windows of event time share: rows in the order of key and time, and rows with a window."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from headwater.errors import UsageError
from headwater.late import duration_us
from headwater.pipeline.aggregate import Aggregates
from headwater.pipeline.plan import DELAY
from headwater.pipeline.sorting import numbered
from headwater.pipeline.wire import GONE, UNTIL

__all__ = [
    "HIDDEN",
    "TIMES",
    "WINDOW",
    "Ordered",
    "check_event_time",
    "check_time",
    "fields",
    "keys",
    "length_us",
    "ordered",
    "stamps",
    "windows",
]

WINDOW = "window"
TIMES = pa.timestamp("us", "UTC")


class Ordered(NamedTuple):
    """Rows in the order of key and time. Those without a time are left out."""

    rows: pa.Table
    keys: list[bytes]
    """The keys, in order."""
    key: Any
    """Which of them each row has."""
    time: Any
    """The time of each row, in microseconds."""


def ordered(rows: pa.Table, columns: Sequence[str], time: str) -> Ordered:
    """The rows with these columns, in order. What has the same key and time stands in any order."""
    wanted = list(dict.fromkeys(columns))
    rows = rows.select(list(dict.fromkeys([*wanted, time, "_key"])))
    rows = rows.filter(pc.is_valid(rows.column(time))).combine_chunks()
    keys, key = numbered(rows.column("_key"))
    at = rows.column(time).cast(TIMES).cast(pa.int64()).to_numpy()
    order = np.lexsort((at, key))
    return Ordered(rows.select(wanted).take(pa.array(order)), keys.to_pylist(), key[order], at[order])


def check_time(operator: str, rows: StructType, time: str) -> None:
    """Refuses a time that is no column with timestamps."""
    kinds = {field.name: field.dataType for field in rows.fields}
    if not isinstance(kinds.get(time), TimestampType):
        got = f"{time} {kinds[time].simpleString()}" if time in kinds else time
        stamps = [name for name, kind in kinds.items() if isinstance(kind, TimestampType)]
        hint = f"there is {', '.join(stamps)}" if stamps else ""
        raise UsageError(
            f"{operator}: the time is no timestamp of its input",
            got=got,
            expected="the event time",
            hint=hint,
        )


def check_event_time(operator: str, rows: DataFrame, time: str) -> None:
    """Refuses a stream by another time than the one by which it is judged what is late."""
    check_time(operator, rows.schema, time)
    times = [field.name for field in rows.schema.fields if DELAY in field.metadata]
    if rows.isStreaming and time not in times:
        raise UsageError(
            f"{operator}: the time is not the event time of its stream",
            got=time,
            expected=" or ".join(times) or "the event time, unchanged",
        )


def length_us(operator: str, name: str, text: str) -> int:
    """A length of time that an operator was given, and that is longer than nothing."""
    try:
        length = duration_us(text) if isinstance(text, str) else 0
    except UsageError as error:
        raise UsageError(
            f"{operator}: {name}: {error.what}", got=error.got, expected=error.expected
        ) from error
    if length <= 0:
        raise UsageError(
            f"{operator}: {name} is no length of time", got=repr(text), expected="one like '30 minutes'"
        )
    return length


def fields(
    operator: str, rows: StructType, key: Sequence[str], aggregates: Aggregates, hidden: Mapping[str, Any]
) -> StructType:
    """The kind of the rows that an operator makes: key, window, aggregates, and what is not shown."""
    shown = [field for field in rows.fields if field.name in key]
    taken = [*key, WINDOW]
    for field in aggregates.fields():
        if field.name in taken or field.name.startswith("_"):
            raise UsageError(
                f"{operator}: an aggregate cannot have this name",
                got=field.name,
                hint=f"taken are {', '.join(taken)} and what begins with _",
            )
    if WINDOW in key:
        raise UsageError(
            f"{operator}: its rows have a window of their own", got=f"key {WINDOW}", hint="rename the column"
        )
    span = StructType([StructField("start", TimestampType()), StructField("end", TimestampType())])
    own = [StructField(name, kind) for name, kind in hidden.items()]
    return StructType([*shown, StructField(WINDOW, span), *aggregates.fields(), *own])


HIDDEN: Mapping[str, Any] = {GONE: BooleanType(), UNTIL: TimestampType()}


def keys(found: Ordered, key: Sequence[str], numbers: Sequence[int]) -> dict[str, pa.ChunkedArray]:
    """The columns of the key, in rows of keys by their numbers."""
    firsts = np.searchsorted(found.key, np.array(numbers, np.int64))
    return {name: found.rows.column(name).take(pa.array(firsts)) for name in key}


def windows(start: Sequence[int], end: Sequence[int]) -> pa.StructArray:
    """Windows as Spark's own ``window()`` makes them."""
    return pa.StructArray.from_arrays([stamps(start), stamps(end)], ["start", "end"])


def stamps(times: Sequence[int | None]) -> pa.Array:
    return pa.array(times, pa.int64()).cast(TIMES)
