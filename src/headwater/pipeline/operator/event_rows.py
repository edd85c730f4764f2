"""Rows with an event time: sorting them, checking times and durations, adding windows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, DataType, StructField, StructType, TimestampType

from headwater.declare.duration import duration_us
from headwater.errors import UsageError
from headwater.pipeline.arrow.sort_keys import numbered
from headwater.pipeline.operator.aggregate import Aggregates
from headwater.pipeline.spark.catalyst import DELAY
from headwater.pipeline.wire.wire import GONE, UNTIL

__all__ = [
    "HIDDEN",
    "TIMES",
    "WINDOW",
    "EventRows",
    "check_event_time",
    "check_name",
    "check_no_windows",
    "check_time",
    "key_columns",
    "length_us",
    "sort_events",
    "timestamps",
    "window_column",
    "window_schema",
]

WINDOW = "window"
TIMES = pa.timestamp("us", "UTC")
HIDDEN: Mapping[str, DataType] = {GONE: BooleanType(), UNTIL: TimestampType()}
"""The hidden columns of windows that may change and be merged with others."""


class EventRows(NamedTuple):
    """Rows sorted by key and time. Rows without a time are left out."""

    rows: pa.Table
    keys: list[bytes]
    """The different keys, in order."""
    key: npt.NDArray[np.int64]
    """The number of each row's key among them."""
    time: npt.NDArray[np.int64]
    """The time of each row, in microseconds."""


def sort_events(rows: pa.Table, columns: Sequence[str], time: str) -> EventRows:
    """The rows with these columns, sorted by key and time; rows that are equal in both are in any order."""
    wanted = list(dict.fromkeys(columns))
    rows = rows.select(list(dict.fromkeys([*wanted, time, "_key"])))
    rows = rows.filter(pc.is_valid(rows.column(time))).combine_chunks()
    keys, key = numbered(rows.column("_key"))
    times = rows.column(time).cast(TIMES).cast(pa.int64()).to_numpy()
    order = np.lexsort((times, key))
    return EventRows(rows.select(wanted).take(pa.array(order)), keys.to_pylist(), key[order], times[order])


def check_time(operator: str, rows: StructType, time: str) -> None:
    """UsageError unless the time is a timestamp column."""
    kinds = {field.name: field.dataType for field in rows.fields}
    if isinstance(kinds.get(time), TimestampType):
        return
    timestamp_columns = [name for name, kind in kinds.items() if isinstance(kind, TimestampType)]
    raise UsageError(
        f"{operator}: time={time!r} is not a timestamp column of its input",
        got=f"a column of type {kinds[time].simpleString()}" if time in kinds else "no such column",
        expected=" or ".join(timestamp_columns) or "a timestamp column",
    )


def check_event_time(operator: str, rows: DataFrame, time: str) -> None:
    """UsageError for a stream unless the time is its event time, which decides which of its rows are late."""
    check_time(operator, rows.schema, time)
    times = [field.name for field in rows.schema.fields if DELAY in field.metadata]
    if rows.isStreaming and time not in times:
        raise UsageError(
            f"{operator}: time={time!r} is not the event time of its stream",
            expected=" or ".join(times) or "the column that app.stream(…, time=…) names, unchanged",
        )


def check_name(operator: str, name: str, taken: Sequence[str]) -> None:
    """UsageError if an aggregate has a name that is taken or reserved."""
    if name in taken or name.startswith("_"):
        raise UsageError(
            f"{operator}: an aggregate cannot be called {name!r}",
            expected=f"a name other than {', '.join(taken)} that does not begin with _",
        )


def length_us(operator: str, name: str, text: str) -> int:
    """A duration that is an argument of an operator, in microseconds.

    UsageError unless it is longer than zero.
    """
    try:
        length = duration_us(text) if isinstance(text, str) else 0
    except UsageError:
        length = 0
    if length <= 0:
        raise UsageError(
            f"{operator}: {name} is not a duration",
            got=repr(text),
            expected="a number above 0 and a unit, like '30 minutes'",
        )
    return length


def window_schema(
    operator: str,
    rows: StructType,
    key: Sequence[str],
    aggregates: Aggregates,
    hidden: Mapping[str, DataType],
) -> StructType:
    """The columns of an operator with windows: key, window, aggregates, and hidden columns."""
    keys = [field for field in rows.fields if field.name in key]
    if WINDOW in key:
        raise UsageError(
            f"{operator}: the key column {WINDOW!r} has the name of the column that the operator adds",
            hint=f'rename it before: .withColumnRenamed("{WINDOW}", …)',
        )
    for field in aggregates.fields():
        check_name(operator, field.name, [*key, WINDOW])
    span = StructType([StructField("start", TimestampType()), StructField("end", TimestampType())])
    hidden_fields = [StructField(name, kind) for name, kind in hidden.items()]
    return StructType([*keys, StructField(WINDOW, span), *aggregates.fields(), *hidden_fields])


def key_columns(events: EventRows, key: Sequence[str], numbers: Sequence[int]) -> dict[str, pa.ChunkedArray]:
    """The key columns of the keys with these numbers."""
    first_rows = np.searchsorted(events.key, np.array(numbers, np.int64))
    return {name: events.rows.column(name).take(pa.array(first_rows)) for name in key}


def window_column(start: Sequence[int], end: Sequence[int]) -> pa.StructArray:
    """Windows in the form of Spark's own ``window()``."""
    return pa.StructArray.from_arrays([timestamps(start), timestamps(end)], ["start", "end"])


def timestamps(times: Sequence[int | None]) -> pa.Array:
    """Microseconds as a column of timestamps."""
    return pa.array(times, pa.int64()).cast(TIMES)


def check_no_windows(what: str, rows: DataFrame) -> None:
    """Refuses sessions and sliding windows, which emit a changed row again without retracting the old one."""
    if GONE in rows.columns:
        raise UsageError(
            f"{what} cannot follow sessions or sliding windows: they do not retract their old rows",
            hint="publish the windows as a view, and read that view here",
        )
