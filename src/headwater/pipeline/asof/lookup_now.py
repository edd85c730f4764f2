"""Each event with the row that its key has when the event is processed.

State: that row.

The result is not reproducible: another interleaving of the two inputs gives other rows. In exchange no events
are kept, and each is emitted once. All rows of the table in a batch are applied before the events of that
batch.
"""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headwater.pipeline.arrow.row_bytes import pack, stacked, unpack
from headwater.pipeline.asof import timeline
from headwater.pipeline.asof.input_rows import Numbers, columns_of, has_key, input_schema, rows_of
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.two_inputs import LEFT, RIGHT
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import GONE, WEIGHT

__all__ = ["LookupNow"]


class Change(NamedTuple):
    """A change of the table; the greatest of several in a batch wins."""

    offset: int
    weight: int
    row: bytes


class LookupNow(Spec, frozen=True, kw_only=True):
    """Rows of the stream with the columns of the table."""

    stored_names: ClassVar[Mapping[str, str]] = {"LookupNow": "Newest"}

    key: tuple[str, ...]
    columns: tuple[str, ...]
    missing: str = "keep"
    of_rows: bool = False
    """The table's rows are weighted."""
    kinds: str = ""
    """The columns of both inputs, as text."""
    kind: str = "enrich_now"

    def schema(self, rows: StructType) -> StructType:
        left, right = rows[LEFT].dataType, rows[RIGHT].dataType
        return StructType([*left.fields, *(StructField(n, right[n].dataType) for n in self.columns)])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        mine = rows_of(rows, LEFT)
        events, keyed = columns_of(mine, LEFT), has_key(mine, self.key)
        encoded = mine.column("_key").cast(pa.binary()).combine_chunks().dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        table_changes = self._table_changes(rows)
        stored = state.get(sorted({*keys, *table_changes}))
        changes = self._changes(table_changes, stored)
        now = {key: changes.get(key, stored.get(key)) for key in keys}
        matched = [key for key in keys if now[key] is not None]
        data = [now[key] or b"" for key in matched]
        number = {key: n for n, key in enumerate(matched)}
        by_key = np.array([number.get(key, -1) for key in keys], np.int64)
        match = by_key[encoded.indices.to_numpy()] if keys else np.zeros(0, np.int64)
        match = np.where(keyed.to_numpy(zero_copy_only=False) if len(keyed) else True, match, -1)
        return Applied(self._rows(events, match, data, rows.schema), Delta.of(changes, state))

    def _table_changes(self, rows: pa.Table) -> dict[bytes, list[Change]]:
        """The changes of the table in the batch, by key."""
        mine = rows_of(rows, RIGHT)
        mine = mine.filter(has_key(mine, self.key))
        table = columns_of(mine, RIGHT)
        weights = mine.column(WEIGHT).to_pylist()
        if GONE in table.column_names and not self.of_rows:
            weights = [-1 if gone else 1 for gone in table.column(GONE).to_pylist()]
        has_offset = timeline.OFFSET in table.column_names and not self.of_rows
        offsets = table.column(timeline.OFFSET).to_pylist() if has_offset else [0] * table.num_rows
        data = pack(table.select(self.columns)).to_pylist()
        by_key: dict[bytes, list[Change]] = {}
        keys = mine.column("_key").cast(pa.binary()).to_pylist()
        for key, offset, weight, row in zip(keys, offsets, weights, data, strict=True):
            by_key.setdefault(key, []).append(Change(offset, weight, row))
        return by_key

    def _changes(
        self, table_changes: Mapping[bytes, list[Change]], stored: Mapping[bytes, bytes]
    ) -> dict[bytes, bytes | None]:
        """The changes of the state: the new row of each key, None for a deleted one."""
        changes: dict[bytes, bytes | None] = {}
        for key, of_key in table_changes.items():
            _, weight, row = max(of_key)
            if self.of_rows:
                inserted = [change.row for change in of_key if change.weight > 0]
                retracted = {change.row for change in of_key if change.weight < 0}
                if inserted:
                    row, weight = max(inserted), 1
                else:
                    weight = -1 if stored.get(key) in retracted else 0
            if weight > 0 and stored.get(key) != row:
                changes[key] = row
            elif weight < 0 and key in stored:
                changes[key] = None
        return changes

    def _rows(self, events: pa.Table, match: Numbers, data: list[bytes], schema: pa.Schema) -> pa.Table:
        """The events with the columns of their match; ``match`` is an index into ``data``, -1 for none."""
        if self.missing == "drop":
            events, match = events.filter(pa.array(match >= 0)), match[match >= 0]
        kind = input_schema(schema, RIGHT)
        table = unpack(*stacked(data), pa.schema([kind.field(name) for name in self.columns]))
        taken = table.take(pa.array(match, mask=match < 0))
        for name, column in zip(taken.column_names, taken.columns, strict=True):
            events = events.append_column(name, column)
        return events
