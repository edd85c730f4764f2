"""Current: the changes of a table as rows that come in and go out, the first operator behind every table.

A change says what the row of a key is from now on. What follows wants to know what was before it as well: so the current row of each key is kept, and
a change becomes a ``_weight`` of -1 with the old row and one of 1 with the new row. A row that is repeated, and the deletion of a
key that has no row, change nothing. State: the row of each key.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from headwater.pipeline import operator
from headwater.pipeline.delta import Delta
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.rowbytes import pack, placed, unpack
from headwater.pipeline.sorting import ordered
from headwater.pipeline.wire import WEIGHT

__all__ = ["DELETED", "ID", "OFFSET", "OWN", "PARTITION", "Current", "current", "differs", "newest"]

ID = "_id"
"""The text of a change's key."""
DELETED = "_deleted"
PARTITION, OFFSET = "_partition", "_offset"
OWN = (ID, DELETED, PARTITION, OFFSET)


class Current(Spec, frozen=True, kw_only=True):
    """Of several changes of a key in one batch the one with the greatest offset counts."""

    rows: str
    """What the rows are, as text: those of another kind could not be read back."""
    key: tuple[str, ...] = (ID,)
    spares: tuple[str, ...] = (ID,)
    kind: str = "current"

    def schema(self, rows: StructType) -> StructType:
        shown = [field for field in rows.fields if field.name not in OWN]
        return StructType([*shown, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        keys, last = newest(rows)
        shown = last.drop_columns([DELETED])
        olds = pa.array(state.each(keys.to_pylist()), pa.large_binary())
        gone = last.column(DELETED).to_numpy()
        news = pack(shown)
        if gone.any():
            news = pc.if_else(pa.array(gone), pa.scalar(None, news.type), news)
        changed = differs(olds, news)
        if not changed.all():
            keys, olds, news = (each.filter(pa.array(changed)) for each in (keys, olds, news))
        after = np.flatnonzero(changed & ~gone)
        out = [
            _weighted(unpack(*placed(olds.drop_null()), shown.schema), -1),
            _weighted(shown if len(after) == len(gone) else shown.take(pa.array(after)), 1),
        ]
        return Applied(pa.concat_tables(out), Delta.over(keys, news, olds))


def current(changes: DataFrame) -> DataFrame:
    """The weighted rows of a frame of changes, which has the columns of the table and `OWN`."""
    kind = StructType([field for field in changes.schema.fields if field.name not in OWN])
    return operator.run(Current(rows=kind.simpleString()), changes)


def newest(rows: pa.Table) -> tuple[pa.Array, pa.Table]:
    """The keys in order, and the last change of each."""
    keys = rows.column("_key").cast(pa.large_binary()).combine_chunks()
    order, fresh = ordered(keys)
    if not fresh.all():
        key = np.empty(len(order), np.int64)
        key[order] = np.cumsum(fresh)
        order = np.lexsort((rows.column(PARTITION).to_numpy(), rows.column(OFFSET).to_numpy(), key))
        order = order[np.append(fresh[1:], True)]
    picked = pa.array(order)
    return keys.take(picked), rows.drop_columns([PARTITION, OFFSET, "_key"]).take(picked)


def differs(olds: pa.Array, news: pa.Array) -> Any:
    """Where two columns do not say the same."""
    there = [each.is_valid().to_numpy(zero_copy_only=False) for each in (olds, news)]
    if not there[0].any():
        return there[1]
    unlike = pc.fill_null(pc.not_equal(olds, news), False).to_numpy(zero_copy_only=False)
    return unlike | (there[0] != there[1])


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int32)))
