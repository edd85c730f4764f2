"""Aggregates that are the first values of a group in an order: the least, the greatest, the newest.

The state has an entry for each value, sorted in the order of the aggregate. A batch reads only the first
entries of a group and those that it changes. If rows are never retracted, only the first values are kept.

    KEY ff LETTER VALUE → WEIGHT VALUE          LETTER names the aggregate, VALUE sorts as its order does
"""

import math
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType

from headwater.pipeline.arrow.row_bytes import concat, pack, stacked, unpack
from headwater.pipeline.arrow.sortable_bytes import orderly
from headwater.pipeline.state import weighted_entries
from headwater.pipeline.state.contract import State
from headwater.pipeline.tables.group_batch import Flags, GroupColumn, Groups, Numbers

__all__ = ["Firsts", "top_values"]

Changes = dict[bytes, bytes | None]


class Firsts(msgspec.Struct, frozen=True):
    """The first rows of each group in an order: one value, or an array."""

    name: str
    columns: tuple[str, ...]
    kind: DataType
    order: tuple[str, ...] = ()
    limit: int = 1
    form: str = "one"
    """``one`` value, an array of ``values``, or an array of ``structs``."""
    descending: bool = False

    @property
    def result(self) -> DataType:
        return self.kind if self.form == "one" else ArrayType(self.kind)


class Candidates(NamedTuple):
    """Values that may be among the first of their group: changed ones, and unchanged ones from the state."""

    entries: list[bytes]
    data: list[bytes]
    group: Numbers
    before: Numbers
    """The weight of each value before the batch."""
    after: Numbers

    def column(self, aggregate: Firsts, rows: pa.Schema, groups: int) -> tuple[GroupColumn, Flags]:
        """The aggregate, and which of the values are among the first after the batch."""
        order = pc.sort_indices(pa.array(self.entries, pa.large_binary())).to_numpy().astype(np.int64)
        kind = pa.schema([rows.field(name) for name in aggregate.columns])
        values = _one_column(unpack(*stacked(self.data), kind), aggregate)
        value_number = pa.array(self.data, pa.large_binary()).dictionary_encode().indices.to_numpy()
        old, old_counts = self._chosen(order, self.before[order], aggregate.limit, groups)
        new, new_counts = self._chosen(order, self.after[order], aggregate.limit, groups)
        differs = old_counts != new_counts
        old_group, new_group = (np.repeat(np.arange(groups), counts) for counts in (old_counts, new_counts))
        # In groups with as many values before as after, the values are compared one by one.
        old_same, new_same = ~differs[old_group], ~differs[new_group]
        unequal = value_number[old[old_same]] != value_number[new[new_same]]
        differs[old_group[old_same][unequal]] = True
        is_first = np.zeros(len(order), bool)
        is_first[new] = True
        before, after = (
            _values(aggregate, values, chosen, counts)
            for chosen, counts in ((old, old_counts), (new, new_counts))
        )
        return GroupColumn(before, after, differs), is_first

    def _chosen(self, order: Numbers, weights: Numbers, limit: int, groups: int) -> tuple[Numbers, Numbers]:
        """The first values of each group, each as often as its weight says, and their number by group."""
        weights = np.maximum(weights, 0)
        group = self.group[order]
        earlier = np.cumsum(weights) - weights
        starts = np.searchsorted(group, np.arange(groups))
        begin = np.append(earlier, weights.sum())[starts]
        times = np.clip(limit - (earlier - begin[group]), 0, weights)
        return np.repeat(order, times), np.bincount(group, weights=times, minlength=groups).astype(np.int64)


def top_values(
    aggregate: Firsts, groups: Groups, state: State, letter: bytes, *, stays: bool
) -> tuple[GroupColumn, Changes]:
    """The first values of each group, and the changes of the state. ``stays``: rows are never retracted."""
    changed, data, group = _changed_values(aggregate, groups, letter, stays=stays)
    entries = changed.entries.to_pylist()
    stored = state.get(entries)
    before = weighted_entries.weights_in(stored, entries)
    after = before + changed.weight
    changes: Changes = {
        entry: weighted_entries.value_of(entry, weight, value, groups.keys[number]) if weight else None
        for entry, weight, value, number in zip(entries, after.tolist(), data, group.tolist(), strict=True)
    }
    # Reads so many entries of each group that `limit` unchanged ones are among them.
    limits = np.bincount(group[before != 0], minlength=len(groups.keys)) + aggregate.limit
    unchanged = _unchanged_values(groups, state, letter, limits, stored)
    candidates = Candidates(
        entries + unchanged.entries,
        data + unchanged.data,
        np.concatenate([group, unchanged.group]),
        np.concatenate([before, unchanged.before]),
        np.concatenate([after, unchanged.after]),
    )
    column, is_first = candidates.column(aggregate, groups.rows.schema, len(groups.keys))
    if stays:
        needless = set(compress(candidates.entries, ~is_first))
        changes = {entry: value for entry, value in changes.items() if entry not in needless}
        changes |= dict.fromkeys(needless & {*stored, *unchanged.entries})
    return column, changes


def _changed_values(
    aggregate: Firsts, groups: Groups, letter: bytes, *, stays: bool
) -> tuple[weighted_entries.Changed, list[bytes], Numbers]:
    """The entries whose weight the batch changes, the bytes of their values, and their groups."""
    rows, weights, prefixes, group = groups.rows, groups.weights, groups.row_prefixes, groups.group
    if not aggregate.order:
        column = rows.column(aggregate.columns[0])
        counted = pc.is_valid(column).to_numpy()
        if stays:
            counted = _best(column, counted, group, descending=aggregate.descending)
        rows, prefixes = rows.filter(pa.array(counted)), prefixes.filter(pa.array(counted))
        weights, group = weights[counted], group[counted]
    columns = [_comparable(rows.column(name).combine_chunks()) for name in aggregate.columns]
    order = [rows.column(name).combine_chunks() for name in aggregate.order]
    sortable = orderly([*order, *columns], rows.num_rows, descending=aggregate.descending)
    tails, _ = weighted_entries.tailed(sortable)
    changed = weighted_entries.changed(concat(prefixes, letter, tails), weights)
    data = pack(pa.table(columns, names=aggregate.columns)).take(pa.array(changed.row)).to_pylist()
    return changed, data, group[changed.row]


def _unchanged_values(
    groups: Groups, state: State, letter: bytes, limits: Numbers, stored: Any
) -> Candidates:
    """The first values of each group in the state, without those in ``stored``, which the batch changes."""
    end = bytes([letter[0] + 1])
    stretches = state.stretches(
        [
            (prefix + letter, prefix + end, limit)
            for prefix, limit in zip(groups.prefixes, limits.tolist(), strict=True)
        ]
    )
    unchanged = [
        (number, entry, weighted_entries.opened(value))
        for number, stretch in enumerate(stretches)
        for entry, value in stretch
        if entry not in stored
    ]
    weights = np.array([held.weight for _, _, held in unchanged], np.int64)
    return Candidates(
        [entry for _, entry, _ in unchanged],
        [held.data or b"" for _, _, held in unchanged],
        np.array([number for number, _, _ in unchanged], np.int64),
        weights,
        weights,
    )


def _best(column: pa.ChunkedArray, valid: Flags, group: Numbers, *, descending: bool) -> Flags:
    """Which valid values may be the greatest, or least, of their group."""
    if not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)) or not valid.any():
        return valid
    values = column.cast(pa.int64()).drop_null().combine_chunks().to_numpy()
    group = group[valid]
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    best = (np.maximum if descending else np.minimum).reduceat(values, starts)
    chosen = valid.copy()
    chosen[valid] = values == np.repeat(best, np.diff(np.append(starts, len(group))))
    return chosen


def _comparable(column: pa.Array) -> pa.Array:
    """The same values, with one zero and one NaN, so that equal values have equal bytes."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(
        pc.is_nan(column), pa.scalar(math.nan, column.type), pc.add(column, pa.scalar(0, column.type))
    )


def _one_column(table: pa.Table, aggregate: Firsts) -> pa.Array:
    if aggregate.form == "structs":
        return pa.StructArray.from_arrays(
            [column.combine_chunks() for column in table.columns], names=table.column_names
        )
    return table.column(0).combine_chunks()


def _values(aggregate: Firsts, values: pa.Array, chosen: Numbers, counts: Numbers) -> pa.Array:
    """The aggregate of each group, from the values chosen for all of them and their number by group."""
    if aggregate.form == "one":
        first = np.cumsum(counts) - counts
        places = np.append(chosen, -1)[np.where(counts > 0, first, -1)]
        return values.take(pa.array(places, mask=counts == 0))
    bounds = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, values.take(pa.array(chosen)))
