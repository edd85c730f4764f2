"""The rows of one input in a batch with two (``operator/two_inputs.py``): events, versions of a table."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.arrow.sort_keys import by_bytes, in_order, numbered
from headwater.pipeline.asof import timeline
from headwater.pipeline.operator.two_inputs import LEFT
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["Events", "Numbers", "columns_of", "has_key", "input_schema", "read_events", "rows_of", "times_of"]

Numbers = npt.NDArray[np.int64]


class Events(NamedTuple):
    """The events of a batch, sorted by key, time and bytes."""

    rows: pa.Table
    keys: list[bytes]
    """The different keys, in order."""
    key: Numbers
    """The number of each event's key."""
    time: Numbers
    lone: pa.Table
    """Events without a key or a time: they match nothing."""


def input_schema(schema: pa.Schema, side: str) -> pa.Schema:
    """The columns of one input, all nullable, like those that are read from the state."""
    kind = schema.field(side).type
    fields = (kind.field(n) for n in range(kind.num_fields))
    return pa.schema([pa.field(field.name, field.type) for field in fields])


def rows_of(rows: pa.Table, side: str) -> pa.Table:
    """The rows of one input."""
    return rows.filter(pc.is_valid(rows.column(side)))


def columns_of(rows: pa.Table, side: str) -> pa.Table:
    """The columns of one input, for rows of this input."""
    return pa.table(rows.column(side).combine_chunks().flatten(), schema=input_schema(rows.schema, side))


def has_key(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """Whether no column of the key is null: a null matches nothing."""
    present = pc.is_valid(rows.column(key[0]))
    for name in key[1:]:
        present = pc.and_(present, pc.is_valid(rows.column(name)))
    return present


def times_of(rows: pa.Table, name: str) -> Numbers:
    times: Numbers = rows.column(name).cast(timeline.TIMES).cast(pa.int64()).to_numpy()
    return times


def read_events(rows: pa.Table, key: Sequence[str], time: str) -> Events:
    """The events of a batch with their weights."""
    mine = rows_of(rows, LEFT)
    events = columns_of(mine, LEFT).append_column(WEIGHT, mine.column(WEIGHT).cast(pa.int32()))
    fits = pc.and_(has_key(mine, key), pc.is_valid(events.column(time)))
    lone = by_bytes(events.filter(pc.invert(fits)))
    if lone.num_rows:
        events, mine = events.filter(fits), mine.filter(fits)
    keys, number = numbered(mine.column("_key"))
    times = times_of(events, time)
    order = in_order(events, number, times)
    return Events(events.take(pa.array(order)), keys.to_pylist(), number[order], times[order], lone)
