"""Newest: each event with the row that its key has now, which is whatever has come by then. State: that row.

Not reproducible: another interleaving of the two inputs gives other rows. In exchange nothing is kept of events, and each goes on once.
What one batch brings of the table counts for all events of that batch.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headwater.pipeline import asof, timeline
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.pair import LEFT, RIGHT
from headwater.pipeline.rowbytes import pack, stacked, unpack
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = ["Newest"]


class Newest(Spec, frozen=True, kw_only=True):
    """Rows of the stream with the columns of the table."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    missing: str = "keep"
    of_rows: bool = False
    """The table's rows are weighted."""
    kinds: str = ""
    kind: str = "enrich_now"

    def schema(self, rows: StructType) -> StructType:
        left, right = rows[LEFT].dataType, rows[RIGHT].dataType
        return StructType([*left.fields, *(StructField(n, right[n].dataType) for n in self.columns)])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        mine = asof.side(rows, LEFT)
        events, joins = asof.columns(mine, LEFT), asof.joins(mine, self.key)
        encoded = mine.column("_key").cast(pa.binary()).combine_chunks().dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        came = self._came(rows)
        known = state.get(sorted({*keys, *came}))
        changes = self._changes(came, known)
        now = {key: changes.get(key, known.get(key)) for key in keys}
        there = [key for key in keys if now[key] is not None]
        data = [now[key] or b"" for key in there]
        number = {key: n for n, key in enumerate(there)}
        by_key = np.array([number.get(key, -1) for key in keys], np.int64)
        found = by_key[encoded.indices.to_numpy()] if keys else np.zeros(0, np.int64)
        found = np.where(joins.to_numpy(zero_copy_only=False) if len(joins) else True, found, -1)
        return Applied(self._rows(events, found, data, rows.schema), dict(sorted(changes.items())))

    def _came(self, rows: pa.Table) -> dict[bytes, list[tuple[int, int, bytes]]]:
        """What has come of the table: by key (offset, weight, row)."""
        mine = asof.side(rows, RIGHT)
        mine = mine.filter(asof.joins(mine, self.key))
        table = asof.columns(mine, RIGHT)
        count = table.num_rows
        weights = mine.column(WEIGHT).to_pylist()
        if GONE in table.column_names and not self.of_rows:
            weights = [-1 if gone else 1 for gone in table.column(GONE).to_pylist()]
        has_offset = timeline.OFFSET in table.column_names and not self.of_rows
        offsets = table.column(timeline.OFFSET).to_pylist() if has_offset else [0] * count
        data = pack(table.select(self.columns)).to_pylist()
        found: dict[bytes, list[tuple[int, int, bytes]]] = {}
        keys = mine.column("_key").cast(pa.binary()).to_pylist()
        for key, offset, weight, row in zip(keys, offsets, weights, data, strict=True):
            found.setdefault(key, []).append((offset, weight, row))
        return found

    def _changes(self, came: dict[bytes, list[tuple[int, int, bytes]]], known: Any) -> dict[bytes, Any]:
        changes: dict[bytes, bytes | None] = {}
        for key, rows in came.items():
            _, weight, row = max(rows)
            if self.of_rows:
                added = [row for _, weight, row in rows if weight > 0]
                out = {row for _, weight, row in rows if weight < 0}
                row, weight = (max(added), 1) if added else (b"", -1 if known.get(key) in out else 0)
            if weight > 0 and known.get(key) != row:
                changes[key] = row
            elif weight < 0 and key in known:
                changes[key] = None
        return changes

    def _rows(self, events: pa.Table, found: Any, data: list[bytes], schema: pa.Schema) -> pa.Table:
        if self.missing == "drop":
            events, found = events.filter(pa.array(found >= 0)), found[found >= 0]
        kind = asof.inner(schema, RIGHT)
        table = unpack(*stacked(data), pa.schema([kind.field(name) for name in self.columns]))
        taken = table.take(pa.array(found, mask=found < 0))
        for name, column in zip(taken.column_names, taken.columns, strict=True):
            events = events.append_column(name, column)
        return events
