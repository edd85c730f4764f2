"""Pairs: what both live joins have in common (``joined.py``, ``joinedtables.py``): from the rows that a batch changes on either side to the pairs that go out.

Of a pair of rows that a batch may have changed, what goes out is its weight after the batch less that before it. Such pairs are those of a row
that changed with all rows of the other side, and those of a row that did not with the other side's that did: each pair once, so that
nothing has to be cancelled afterwards. A row of an outer join without any partner is a pair with nothing. Null keys have no partners.

    KEY ff l …      the rows of the left side in the state (``entries.py``); those of the right stand under r
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StructField, StructType

from headwater.pipeline import entries
from headwater.pipeline.layout import ENTRIES
from headwater.pipeline.operator import Spec, State
from headwater.pipeline.rowbytes import pack
from headwater.pipeline.spread import LEFT, RIGHT
from headwater.pipeline.wire import WEIGHT

__all__ = ["LETTERS", "SIDES", "Batch", "Others", "Pairs", "Side", "one_chunk"]

SIDES = (LEFT, RIGHT)
LETTERS = (b"l", b"r")
AFTER = (b"m", b"s")
"""Behind all entries of a letter."""
EVERY = 1 << 62


class Batch(NamedTuple):
    """What a batch changes, in the order of the entries."""

    side: Any
    """0 for left, 1 for right."""
    key: Any
    """The number of its key, in order."""
    begins: list[bytes]
    """What the entries of each key begin with, by number."""
    entries: pa.Array
    kept: int
    """How many of the entries have a key; the others come last, and are not kept."""


class Side(NamedTuple):
    """Rows of one side: those that a batch has changed, and behind them others that they meet."""

    rows: pa.Table
    key: Any
    before: Any
    """Their weights before the batch."""
    after: Any
    changed: int
    """How many of them changed."""


class Others(NamedTuple):
    """Rows of one side that a batch has not changed."""

    entries: Sequence[bytes]
    values: Sequence[bytes]
    keys: Any
    there: Any
    """Which keys have such rows, even if none of them is wanted."""


class Pairs(Spec, frozen=True, kw_only=True):
    """A live join, whatever its rows come as."""

    key: tuple[str, ...]
    how: str = "inner"
    shared: tuple[str, ...] = ()
    """What they are joined on, as far as both sides have the same name for it."""
    kind: str = "join"
    layout: str = ENTRIES

    def shown(self, left: StructType, right: StructType) -> StructType:
        """The rows that come out of it."""
        others = [each for each in right.fields if each.name not in self.shared]
        columns = [StructField(each.name, each.dataType) for each in (*left.fields, *others)]
        return StructType([*columns, StructField(WEIGHT, IntegerType())])

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether rows of each side come out although they meet nobody."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def others(self, batch: Batch, state: State, side: int) -> Others:
        """What has not changed on a side: all that a changed row meets. For outer joins also whether there is something."""
        keys, sides, numbers = batch.key[: batch.kept], batch.side[: batch.kept], len(batch.begins)
        mine, met = (np.bincount(keys[sides == each], minlength=numbers) for each in (side, 1 - side))
        wanted = np.flatnonzero(met)
        found, values, number = _unchanged(batch, state, side, wanted, [EVERY] * len(wanted), changed=mine)
        there = np.zeros(numbers, bool)
        there[number] = True
        if self.outer[1 - side]:
            only = np.flatnonzero((mine > 0) & (met == 0))
            _, _, at = _unchanged(batch, state, side, only, (mine[only] + 1).tolist(), changed=mine)
            there[at] = True
        return Others(found, values, number, there)

    def pairs(self, batch: Batch, sides: list[Side], others: list[Others]) -> pa.Table:
        """The pairs whose weight has changed."""
        one, two = sides
        numbers = len(batch.begins)
        met = [
            _met(one.key[: one.changed], two.key[: two.changed], numbers, 0, 0),
            _met(one.key[: one.changed], two.key[two.changed :], numbers, 0, two.changed),
            _met(one.key[one.changed :], two.key[: two.changed], numbers, one.changed, 0),
        ]
        left, right = (np.concatenate([each[side] for each in met]) for side in (0, 1))
        weight = one.after[left] * two.after[right] - one.before[left] * two.before[right]
        parts = [(left, right, weight)]
        for side in (0, 1):
            if self.outer[side]:
                lonely = _lonely(sides[side], sides[1 - side], others[1 - side].there, numbers)
                row = np.arange(len(lonely))
                nobody = np.full(len(lonely), -1)
                parts.append((nobody, row, lonely) if side else (row, nobody, lonely))
        left, right, weight = (np.concatenate([each[n] for each in parts]) for n in (0, 1, 2))
        some = weight != 0
        out = self._taken(one.rows, two.rows, left[some], right[some], weight[some])
        blank = any(self.outer[side] and self._blank(sides[1 - side].rows) for side in (0, 1))
        return _consolidated(out) if blank else out

    def _blank(self, rows: pa.Table) -> bool:
        """Whether a row may be there that looks like none when it is met: nothing but nulls."""
        shown = [rows.column(name) for name in rows.column_names if name not in self.shared]
        return all(each.null_count for each in shown)

    def _taken(self, one: pa.Table, two: pa.Table, left: Any, right: Any, weight: Any) -> pa.Table:
        here, there = _take(one, left), _take(two, right)
        if self.how in ("right", "full"):
            here |= {name: pc.coalesce(here[name], there[name]) for name in self.shared}
        shown = {name: column for name, column in there.items() if name not in self.shared}
        return pa.table(here | shown | {WEIGHT: pa.array(weight.astype(np.int32))})


def _unchanged(
    batch: Batch, state: State, side: int, numbers: Any, most: Sequence[int], *, changed: Any
) -> tuple[list[bytes], list[bytes], Any]:
    """The entries of some keys on a side that the batch does not change, what stands there, and whose they are. ``changed``: how many it does, by key."""
    letter, after = LETTERS[side], AFTER[side]
    begins = [batch.begins[number] for number in numbers.tolist()]
    wanted = [(begin + letter, begin + after, limit) for begin, limit in zip(begins, most, strict=True)]
    stretches = state.stretches(wanted) if wanted else []
    number = np.repeat(numbers, list(map(len, stretches)))
    found = [entry for part in stretches for entry, _ in part]
    values = [value for part in stretches for _, value in part]
    perhaps = changed[number] > 0
    if perhaps.any():
        asked = np.zeros(len(changed), bool)
        asked[numbers] = True
        own = batch.entries.filter(pa.array((batch.side == side) & asked[batch.key]))
        still = pc.invert(pc.is_in(pa.array(found, batch.entries.type), own)).to_numpy(zero_copy_only=False)
        found, values, number = list(compress(found, still)), list(compress(values, still)), number[still]
    return found, values, number


def _met(left: Any, right: Any, keys: int, left_from: int, right_from: int) -> tuple[Any, Any]:
    """All pairs of rows with the same key, from the keys of both in order."""
    count = np.bincount(right, minlength=keys)
    begin = np.cumsum(count) - count
    times = count[left]
    one = np.repeat(np.arange(len(left)), times)
    within = np.arange(len(one)) - np.repeat(np.cumsum(times) - times, times)
    return one + left_from, begin[left[one]] + within + right_from


def _lonely(mine: Side, other: Side, there: Any, keys: int) -> Any:
    """The weight that each row gets or loses as one that meets nobody."""
    changed = slice(other.changed)
    some = [
        there | (np.bincount(other.key[changed], weights=weights[changed] != 0, minlength=keys) > 0)
        for weights in (other.before, other.after)
    ]
    return mine.after * ~some[1][mine.key] - mine.before * ~some[0][mine.key]


def _consolidated(rows: pa.Table) -> pa.Table:
    """The same rows, each once."""
    plain = rows.drop_columns([WEIGHT])
    same = entries.changed(pack(plain), rows.column(WEIGHT).to_numpy().astype(np.int64))
    return plain.take(pa.array(same.row)).append_column(WEIGHT, pa.array(same.weight.astype(np.int32)))


def _take(rows: pa.Table, numbers: Any) -> dict[str, pa.ChunkedArray]:
    """Rows by their numbers, with nulls for -1."""
    picked = pa.array(numbers, mask=numbers < 0) if len(numbers) and numbers.min() < 0 else pa.array(numbers)
    taken = rows.take(picked)
    return dict(zip(taken.column_names, taken.columns, strict=True))


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
