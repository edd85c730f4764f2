"""The common part of both live joins (``join.py``): from changed rows to the pairs to emit.

A pair of rows is emitted with its weight after the batch less its weight before it. The pairs that may have
changed are: each changed row with all rows of the other side, and each unchanged row with the changed ones of
the other side. Each pair occurs once, so nothing has to be cancelled afterwards. In an outer join, a row
without partner is a pair with nothing. Null keys have no partner.

    KEY ff l …      the rows of the left side (``state/weighted_entries.py``); those of the right have r
"""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StructField, StructType

from headwater.pipeline.arrow.flatten import LEFT, RIGHT
from headwater.pipeline.operator.logic import Spec
from headwater.pipeline.operator.weighted_rows import consolidate
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.layouts import ENTRIES
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["LETTERS", "SIDES", "Batch", "Flags", "Numbers", "Others", "PairJoin", "Side", "one_chunk"]

SIDES = (LEFT, RIGHT)
LETTERS = (b"l", b"r")
AFTER = (b"m", b"s")
"""The letter after each of these: the end of a prefix scan."""
EVERY = 1 << 62
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Batch(NamedTuple):
    """The entries that a batch changes, in their order."""

    side: Numbers
    """0 for left, 1 for right."""
    key: Numbers
    """The number of the entry's key, in order."""
    prefixes: list[bytes]
    """The prefix of the entries of each key, by number."""
    entries: pa.Array
    kept: int
    """The number of entries that have a key; the others come last, and are not stored."""


class Side(NamedTuple):
    """Rows of one side: those that a batch has changed, then unchanged ones that may be their partners."""

    rows: pa.Table
    key: Numbers
    before: Numbers
    """Their weights before the batch."""
    after: Numbers
    changed: int
    """The number of changed rows."""


class Others(NamedTuple):
    """Rows of one side that a batch has not changed."""

    entries: Sequence[bytes]
    values: Sequence[bytes]
    keys: Numbers
    exist: Flags
    """Which keys have such rows, even if none of them is needed as a partner."""


class PairJoin(Spec, frozen=True, kw_only=True):
    """A live join, in whatever form its rows arrive."""

    key: tuple[str, ...]
    how: str = "inner"
    shared: tuple[str, ...] = ()
    """The columns that it joins on and that have the same name on both sides."""
    kind: str = "join"
    layout: str = ENTRIES

    def joined_schema(self, left: StructType, right: StructType) -> StructType:
        """The columns of its output."""
        others = [field for field in right.fields if field.name not in self.shared]
        columns = [StructField(field.name, field.dataType) for field in (*left.fields, *others)]
        return StructType([*columns, StructField(WEIGHT, IntegerType())])

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, are emitted without a partner."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def others(self, batch: Batch, state: State, side: int) -> Others:
        """The unchanged rows of a side with the key of a changed row of the other side.

        Outer joins also learn which keys have any.
        """
        keys, sides, numbers = batch.key[: batch.kept], batch.side[: batch.kept], len(batch.prefixes)
        mine, theirs = (
            np.bincount(keys[sides == one_side], minlength=numbers) for one_side in (side, 1 - side)
        )
        wanted = np.flatnonzero(theirs)
        entries, values, number = _unchanged(batch, state, side, wanted, [EVERY] * len(wanted), changed=mine)
        exist = np.zeros(numbers, bool)
        exist[number] = True
        if self.outer[1 - side]:
            only_mine = np.flatnonzero((mine > 0) & (theirs == 0))
            limits = (mine[only_mine] + 1).tolist()
            _, _, number_of_any = _unchanged(batch, state, side, only_mine, limits, changed=mine)
            exist[number_of_any] = True
        return Others(entries, values, number, exist)

    def pairs(self, batch: Batch, sides: list[Side], others: list[Others]) -> pa.Table:
        """The pairs whose weight has changed."""
        one, two = sides
        numbers = len(batch.prefixes)
        matches = [
            _matches(one.key[: one.changed], two.key[: two.changed], numbers, 0, 0),
            _matches(one.key[: one.changed], two.key[two.changed :], numbers, 0, two.changed),
            _matches(one.key[one.changed :], two.key[: two.changed], numbers, one.changed, 0),
        ]
        left, right = (np.concatenate([match[side] for match in matches]) for side in (0, 1))
        weight = one.after[left] * two.after[right] - one.before[left] * two.before[right]
        parts = [(left, right, weight)]
        for side in (0, 1):
            if self.outer[side]:
                lonely = _lonely(sides[side], sides[1 - side], others[1 - side].exist, numbers)
                row = np.arange(len(lonely))
                no_row = np.full(len(lonely), -1)
                parts.append((no_row, row, lonely) if side else (row, no_row, lonely))
        left, right, weight = (np.concatenate([part[n] for part in parts]) for n in (0, 1, 2))
        some = weight != 0
        out = self._joined_rows(one.rows, two.rows, left[some], right[some], weight[some])
        has_blank = any(self.outer[side] and self._has_blank(sides[1 - side].rows) for side in (0, 1))
        return consolidate(out) if has_blank else out

    def _has_blank(self, rows: pa.Table) -> bool:
        """Whether a row of nulls is possible: joined, it looks like a missing partner."""
        shown = [rows.column(name) for name in rows.column_names if name not in self.shared]
        return all(column.null_count for column in shown)

    def _joined_rows(
        self, one: pa.Table, two: pa.Table, left: Numbers, right: Numbers, weight: Numbers
    ) -> pa.Table:
        here, there = _take(one, left), _take(two, right)
        if self.how in ("right", "full"):
            here |= {name: pc.coalesce(here[name], there[name]) for name in self.shared}
        others = {name: column for name, column in there.items() if name not in self.shared}
        return pa.table(here | others | {WEIGHT: pa.array(weight.astype(np.int32))})


def _unchanged(
    batch: Batch, state: State, side: int, numbers: Numbers, limits: Sequence[int], *, changed: Numbers
) -> tuple[list[bytes], list[bytes], Numbers]:
    """Entries of these keys that the batch does not change, their values, and the numbers of their keys.

    ``changed`` is the number of entries that it does change, by key.
    """
    letter, after = LETTERS[side], AFTER[side]
    prefixes = [batch.prefixes[number] for number in numbers.tolist()]
    wanted = [
        (prefix + letter, prefix + after, limit) for prefix, limit in zip(prefixes, limits, strict=True)
    ]
    stretches = state.stretches(wanted) if wanted else []
    number = np.repeat(numbers, list(map(len, stretches)))
    entries = [entry for stretch in stretches for entry, _ in stretch]
    values = [value for stretch in stretches for _, value in stretch]
    if (changed[number] > 0).any():
        is_wanted = np.zeros(len(changed), bool)
        is_wanted[numbers] = True
        own = batch.entries.filter(pa.array((batch.side == side) & is_wanted[batch.key]))
        is_own = pc.is_in(pa.array(entries, batch.entries.type), own)
        still = pc.invert(is_own).to_numpy(zero_copy_only=False)
        entries, values = list(compress(entries, still)), list(compress(values, still))
        number = number[still]
    return entries, values, number


def _matches(
    left: Numbers, right: Numbers, keys: int, left_from: int, right_from: int
) -> tuple[Numbers, Numbers]:
    """All pairs of rows with equal keys, given the keys of both sides in order."""
    count = np.bincount(right, minlength=keys)
    begin = np.cumsum(count) - count
    times = count[left]
    one = np.repeat(np.arange(len(left)), times)
    within = np.arange(len(one)) - np.repeat(np.cumsum(times) - times, times)
    return one + left_from, begin[left[one]] + within + right_from


def _lonely(mine: Side, other: Side, exist: Flags, keys: int) -> Numbers:
    """The change of weight of each row as one without a partner.

    ``exist``: which keys have unchanged rows on the other side.
    """
    changed = slice(other.changed)
    before, after = (
        exist | (np.bincount(other.key[changed], weights=weights[changed] != 0, minlength=keys) > 0)
        for weights in (other.before, other.after)
    )
    weight: Numbers = mine.after * ~after[mine.key] - mine.before * ~before[mine.key]
    return weight


def _take(rows: pa.Table, numbers: Numbers) -> dict[str, pa.ChunkedArray]:
    """Rows by their numbers, with nulls for -1."""
    picked = pa.array(numbers, mask=numbers < 0) if len(numbers) and numbers.min() < 0 else pa.array(numbers)
    taken = rows.take(picked)
    return dict(zip(taken.column_names, taken.columns, strict=True))


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
