"""The live join of weighted rows, whatever they come from (``join.py`` says when it is used).

KEY ff l ROW    → WEIGHT        the rows of the left side (``state/weighted_entries.py``); the right has r
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.pipeline.arrow.row_bytes import concat, pack, stacked, unpack
from headwater.pipeline.operator.logic import Applied
from headwater.pipeline.state import weighted_entries as entries
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.tables.join_pairs import (
    LETTERS,
    SIDES,
    Batch,
    Flags,
    Numbers,
    Others,
    PairJoin,
    Side,
    one_chunk,
)
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["RowJoin"]

NO_KEY = (b"\xff\xfel", b"\xff\xfer")
"""The prefix of entries with a null key, for each side: they have no partner, and sort after all others."""


class Input(NamedTuple):
    """The rows of one side in a batch."""

    rows: pa.Table
    keys: pa.Array
    prefixes: pa.Array
    """The prefix of the entry of each row."""
    entries: pa.Array
    packed: pa.Array
    cut: Flags | None
    """Which rows are too long for an entry; None if all fit."""
    weights: Numbers


class RowJoin(PairJoin, frozen=True, kw_only=True):
    """Rows of both sides with equal keys, as weighted rows. State: an entry for each row of either side."""

    stored_names: ClassVar[Mapping[str, str]] = {"RowJoin": "Joined"}

    def schema(self, rows: StructType) -> StructType:
        return self.joined_schema(*(rows[side].dataType for side in SIDES))

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        inputs = [self._input(rows, side) for side in (0, 1)]
        batch, row, weight = _batch(inputs)
        kept = batch.entries[: batch.kept]
        stored = pa.array(state.each(kept.to_pylist()), pa.large_binary())
        before = np.zeros(len(batch.entries), np.int64)
        before[: batch.kept] = entries.weights(stored)
        after = before + weight
        others = [self.others(batch, state, side) for side in (0, 1)]
        sides = []
        for side in (0, 1):
            changed = inputs[side].rows.take(pa.array(row[batch.side == side]))
            sides.append(_side(changed, batch, side, (before, after), others[side]))
        changes = Delta.over(kept, _values(inputs, batch, row, after), stored)
        return Applied(self.pairs(batch, sides, others), changes)

    def _input(self, rows: pa.Table, side: int) -> Input:
        mine = rows.select([*self.key, SIDES[side], WEIGHT, "_key"])
        mine = mine.filter(pc.is_valid(mine.column(SIDES[side]))).combine_chunks()
        null = np.zeros(mine.num_rows, bool)
        for name in self.key:
            null |= mine.column(name).is_null().to_numpy()
        if null.any() and not self.outer[side]:
            mine, null = (
                mine.filter(pa.array(~null)).combine_chunks(),
                np.zeros(mine.num_rows - null.sum(), bool),
            )
        kind = rows.schema.field(SIDES[side]).type
        columns = one_chunk(mine.column(SIDES[side])).flatten()
        names = [kind.field(number).name for number in range(kind.num_fields)]
        keys = one_chunk(mine.column("_key")).cast(pa.binary())
        prefixes = entries.begins(keys)
        if null.any():
            prefixes = pc.if_else(pa.array(null), pa.scalar(NO_KEY[side], prefixes.type), prefixes)
        plain = pa.table(columns, names=names)
        packed = pack(plain)
        tails, cut = entries.tailed(packed)
        row_entries = concat(prefixes, LETTERS[side], tails)
        weights = mine.column(WEIGHT).to_numpy().astype(np.int64)
        return Input(plain, keys, prefixes, row_entries, packed, cut, weights)


def _batch(inputs: Sequence[Input]) -> tuple[Batch, Numbers, Numbers]:
    """The changed entries, the row of its side that each comes from, and the change of its weight."""
    all_entries = pa.concat_arrays([side_input.entries for side_input in inputs])
    weights = np.concatenate([side_input.weights for side_input in inputs])
    changed = entries.changed(all_entries, weights)
    prefixes = pa.concat_arrays([side_input.prefixes for side_input in inputs]).take(pa.array(changed.row))
    fresh = np.ones(len(prefixes), bool)
    fresh[1:] = pc.not_equal(prefixes[1:], prefixes[:-1]).to_numpy(zero_copy_only=False)
    left_rows = len(inputs[0].entries)
    side = (changed.row >= left_rows).astype(np.int64)
    by_key = prefixes.filter(pa.array(fresh)).to_pylist()
    key = np.cumsum(fresh) - 1
    kept = int(np.searchsorted(key, len(by_key) - sum(prefix in NO_KEY for prefix in by_key)))
    batch = Batch(side, key, by_key, changed.entries, kept)
    return batch, changed.row - left_rows * side, changed.weight


def _values(inputs: Sequence[Input], batch: Batch, row: Numbers, after: Numbers) -> pa.Array:
    """The new values of the changed entries."""
    weights = after[: batch.kept]
    any_cut_key = any(prefix[:1] == entries.CUT for prefix in batch.prefixes)
    if not any_cut_key and all(side_input.cut is None for side_input in inputs):
        return entries.values(weights)
    values: list[bytes | None] = []
    columns = (batch.entries.to_pylist(), after.tolist(), batch.side.tolist(), row.tolist())
    for entry, weight, side, at in islice(zip(*columns, strict=True), batch.kept):
        mine = inputs[side]
        data = mine.packed[at].as_py() if mine.cut is not None and mine.cut[at] else None
        values.append(entries.value_of(entry, weight, data, mine.keys[at].as_py()) if weight else None)
    return pa.array(values, pa.large_binary())


def _side(changed: pa.Table, batch: Batch, side: int, weights: Sequence[Numbers], others: Others) -> Side:
    """The rows of a side: the changed ones, then unchanged ones.

    ``weights`` are those of all entries before and after the batch.
    """
    mine = batch.side == side
    skip = np.array([len(prefix) + 1 for prefix in batch.prefixes], np.int64)[others.keys]
    packed = others.entries
    if any(others.values):
        held = [entries.opened(value).data for value in others.values]
        packed = [entry if data is None else data for entry, data in zip(packed, held, strict=True)]
        skip[[data is not None for data in held]] = 0
    data, begins = stacked(packed)
    unchanged = unpack(data, begins + skip, changed.schema)
    other_weights = entries.weights(others.values)
    before, after = (np.concatenate([both[mine], other_weights]) for both in weights)
    return Side(
        pa.concat_tables([changed, unchanged]).combine_chunks(),
        np.concatenate([batch.key[mine], others.keys]),
        before,
        after,
        changed.num_rows,
    )
