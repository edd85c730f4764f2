"""The first operator after every table: its changes become rows that are inserted and retracted.

A change gives the new row of a key. The steps after it need the old row too. So the current row of each key
is kept, and a change becomes the old row with a ``_weight`` of -1 and the new row with a weight of 1. A row
that is repeated, and the deletion of a key without a row, change nothing. State: the row of each key.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from headwater.pipeline.arrow.row_bytes import pack, placed, unpack
from headwater.pipeline.arrow.sort_keys import ordered
from headwater.pipeline.operator import apply
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = [
    "DELETED",
    "ID",
    "OFFSET",
    "OWN",
    "PARTITION",
    "Changelog",
    "apply_changes",
    "differ",
    "newest_changes",
]

ID = "_id"
"""The text of a change's key."""
DELETED = "_deleted"
PARTITION, OFFSET = "_partition", "_offset"
OWN = (ID, DELETED, PARTITION, OFFSET)


class Changelog(Spec, frozen=True, kw_only=True):
    """The current rows of a table, as weighted rows.

    If a batch has several changes of a key, the one with the greatest offset wins.
    """

    stored_names: ClassVar[Mapping[str, str]] = {"Changelog": "Current"}

    rows: str
    """The columns, as text: state with other columns could not be read."""
    key: tuple[str, ...] = (ID,)
    key_only: tuple[str, ...] = (ID,)
    kind: str = "current"

    def schema(self, rows: StructType) -> StructType:
        columns = [field for field in rows.fields if field.name not in OWN]
        return StructType([*columns, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        keys, last = newest_changes(rows)
        shown = last.drop_columns([DELETED])
        olds = pa.array(state.each(keys.to_pylist()), pa.large_binary())
        gone = last.column(DELETED).to_numpy()
        news = pack(shown)
        if gone.any():
            news = pc.if_else(pa.array(gone), pa.scalar(None, news.type), news)
        changed = differ(olds, news)
        if not changed.all():
            keys, olds, news = (column.filter(pa.array(changed)) for column in (keys, olds, news))
        after = np.flatnonzero(changed & ~gone)
        out = [
            _with_weight(unpack(*placed(olds.drop_null()), shown.schema), -1),
            _with_weight(shown if len(after) == len(gone) else shown.take(pa.array(after)), 1),
        ]
        return Applied(pa.concat_tables(out), Delta.over(keys, news, olds))


def apply_changes(changes: DataFrame) -> DataFrame:
    """The weighted rows of a frame of changes, which has the columns of the table and `OWN`."""
    columns = StructType([field for field in changes.schema.fields if field.name not in OWN])
    return apply.run(Changelog(rows=columns.simpleString()), changes)


def newest_changes(rows: pa.Table) -> tuple[pa.Array, pa.Table]:
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


def differ(olds: pa.Array, news: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two columns differ; null equals null."""
    has_old, has_new = (column.is_valid().to_numpy(zero_copy_only=False) for column in (olds, news))
    if not has_old.any():
        changed: npt.NDArray[np.bool_] = has_new
    else:
        unequal = pc.fill_null(pc.not_equal(olds, news), False).to_numpy(zero_copy_only=False)
        changed = unequal | (has_old != has_new)
    return changed


def _with_weight(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight, np.int32)))
