"""Joined: the live join of two tables, or of streams whose rows stay. Each change of either side goes out as the changes that it makes in the result.

Of a pair of rows that a batch may have changed, what goes out is its weight after the batch less that before it. Such pairs are those of a row
that changed with all rows of the other side, and those of a row that did not with the other side's that did: each pair once, so that
nothing has to be cancelled afterwards. A row of an outer join without any partner is a pair with nothing. Null keys have no partners.

    KEY ff l ROW    → WEIGHT        the rows of the left side (``entries.py``); those of the right stand under r
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from headwater.errors import UsageError
from headwater.pipeline import entries, operator
from headwater.pipeline.delta import Delta
from headwater.pipeline.layout import ENTRIES
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.pair import LEFT, RIGHT, On, columns_on, paired
from headwater.pipeline.rowbytes import concat, pack, stacked, unpack
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = ["KINDS", "Joined", "joined"]

KINDS = ("inner", "left", "right", "full")
SIDES = (LEFT, RIGHT)
LETTERS = (b"l", b"r")
AFTER = (b"m", b"s")
"""Behind all entries of a letter."""
EVERY = 1 << 62


NOWHERE = (b"\xff\xfel", b"\xff\xfer")
"""What stands for the begin of entries when a key is null, on either side: they meet nobody, and behind all others."""


class Given(NamedTuple):
    """The rows of one side in a batch."""

    rows: pa.Table
    keys: pa.Array
    begins: pa.Array
    """What their entries begin with."""
    entries: pa.Array
    packed: pa.Array
    cut: Any
    """Which of them are too long for an entry; None when all fit."""
    weights: Any


class Batch(NamedTuple):
    """What a batch changes, in the order of the entries."""

    side: Any
    """0 for left, 1 for right."""
    row: Any
    """Which of the rows of its side."""
    key: Any
    """The number of its key, in order."""
    begins: list[bytes]
    """The keys, by number."""
    entries: list[bytes]
    column: pa.Array
    """The same, as a column."""
    weight: Any
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


class Joined(Spec, frozen=True, kw_only=True):
    """Rows of both sides with the same key, as weighted rows. State: an entry for each row of either side."""

    key: tuple[str, ...]
    how: str = "inner"
    shared: tuple[str, ...] = ()
    """What they are joined on, as far as both sides have the same name for it."""
    kind: str = "join"
    layout: str = ENTRIES

    def schema(self, rows: StructType) -> StructType:
        left, right = (rows[side].dataType.fields for side in SIDES)
        shown = [each for each in right if each.name not in self.shared]
        return StructType([*left, *shown, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        given = [self._given(rows, side) for side in (0, 1)]
        batch = _batch(given)
        known = pa.array(state.each(batch.entries[: batch.kept]), pa.large_binary())
        before = np.zeros(len(batch.entries), np.int64)
        before[: batch.kept] = entries.weights(known)
        after = before + batch.weight
        others = [self._others(batch, state, side) for side in (0, 1)]
        sides = [
            _side(given[side], batch, batch.side == side, (before, after), others[side]) for side in (0, 1)
        ]
        changes = Delta.over(batch.column[: batch.kept], _values(given, batch, after), known)
        return Applied(self._rows(batch, sides, others), changes)

    @property
    def _outer(self) -> tuple[bool, bool]:
        """Whether rows of each side come out although they meet nobody."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    def _given(self, rows: pa.Table, side: int) -> Given:
        mine = rows.select([*self.key, SIDES[side], WEIGHT, "_key"])
        mine = mine.filter(pc.is_valid(mine.column(SIDES[side]))).combine_chunks()
        null = np.zeros(mine.num_rows, bool)
        for name in self.key:
            null |= mine.column(name).is_null().to_numpy()
        if null.any() and not self._outer[side]:
            mine, null = (
                mine.filter(pa.array(~null)).combine_chunks(),
                np.zeros(mine.num_rows - null.sum(), bool),
            )
        kind = rows.schema.field(SIDES[side]).type
        columns = _one(mine.column(SIDES[side])).flatten()
        names = [kind.field(number).name for number in range(kind.num_fields)]
        keys = _one(mine.column("_key")).cast(pa.binary())
        begins = entries.begins(keys)
        if null.any():
            begins = pc.if_else(pa.array(null), pa.scalar(NOWHERE[side], begins.type), begins)
        shown = pa.table(columns, names=names)
        packed = pack(shown)
        tails, cut = entries.tailed(packed)
        made = concat(begins, LETTERS[side], tails)
        weights = mine.column(WEIGHT).to_numpy().astype(np.int64)
        return Given(shown, keys, begins, made, packed, cut, weights)

    def _others(self, batch: Batch, state: State, side: int) -> Others:
        """What has not changed on a side: all that a changed row meets. For outer joins also whether there is something."""
        keys, sides, numbers = batch.key[: batch.kept], batch.side[: batch.kept], len(batch.begins)
        mine, met = (np.bincount(keys[sides == each], minlength=numbers) for each in (side, 1 - side))
        wanted = np.flatnonzero(met)
        found, values, number = _unchanged(batch, state, side, wanted, [EVERY] * len(wanted), changed=mine)
        there = np.zeros(numbers, bool)
        there[number] = True
        if self._outer[1 - side]:
            only = np.flatnonzero((mine > 0) & (met == 0))
            _, _, at = _unchanged(batch, state, side, only, (mine[only] + 1).tolist(), changed=mine)
            there[at] = True
        return Others(found, values, number, there)

    def _rows(self, batch: Batch, sides: list[Side], others: list[Others]) -> pa.Table:
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
            if self._outer[side]:
                lonely = _lonely(sides[side], sides[1 - side], others[1 - side].there, numbers)
                row = np.arange(len(lonely))
                nobody = np.full(len(lonely), -1)
                parts.append((nobody, row, lonely) if side else (row, nobody, lonely))
        left, right, weight = (np.concatenate([each[n] for each in parts]) for n in (0, 1, 2))
        some = weight != 0
        out = self._taken(one.rows, two.rows, left[some], right[some], weight[some])
        blank = any(self._outer[side] and self._blank(sides[1 - side].rows) for side in (0, 1))
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


def joined(left: DataFrame, right: DataFrame, on: On, how: str) -> DataFrame:
    """The live join of two DataFrames."""
    if how not in KINDS:
        raise UsageError("join: there is no such kind", got=repr(how), expected=", ".join(KINDS))
    pairs = columns_on("join", left.schema, right.schema, on)
    shared = tuple(here for here, there in pairs.items() if here == there)
    for side, frame in (("left", left), ("right", right)):
        if GONE in frame.columns:
            raise UsageError(
                f"join: rows of the {side} input may still change, and say only when they are gone",
                got="sessions or sliding windows",
                hint="publish them as a view of their own",
            )
    twice = [each for each in right.columns if each in left.columns and each not in (*shared, WEIGHT)]
    if twice:
        raise UsageError(
            "join: both inputs have columns of the same name",
            got=", ".join(twice),
            hint="rename one with a select, like .withColumnRenamed(…)",
        )
    if how in ("inner", "right"):  # those without a key would all go to one shard, for nothing
        left = left.where(_has(pairs))
    if how in ("inner", "left"):
        right = right.where(_has(pairs.values()))
    both, key = paired("join", left, right, on)
    return operator.run(Joined(key=key, how=how, shared=shared), both)


def _has(columns: Iterable[str]) -> str:
    return " AND ".join(f"`{name}` IS NOT NULL" for name in columns)


# ---- a batch -----------------------------------------------------------------------------------------------


def _batch(given: Sequence[Given]) -> Batch:
    made = pa.concat_arrays([each.entries for each in given])
    weights = np.concatenate([each.weights for each in given])
    changed = entries.changed(made, weights)
    picked = pa.array(changed.row)
    begins = pa.concat_arrays([each.begins for each in given]).take(picked)
    fresh = np.ones(len(begins), bool)
    fresh[1:] = pc.not_equal(begins[1:], begins[:-1]).to_numpy(zero_copy_only=False)
    lefts = len(given[0].entries)
    side = (changed.row >= lefts).astype(np.int64)
    names = begins.filter(pa.array(fresh)).to_pylist()
    number = np.cumsum(fresh) - 1
    kept = int(np.searchsorted(number, len(names) - sum(each in NOWHERE for each in names)))
    return Batch(
        side,
        changed.row - lefts * side,
        number,
        names,
        changed.entries.to_pylist(),
        changed.entries,
        changed.weight,
        kept,
    )


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
        own = batch.column.filter(pa.array((batch.side == side) & asked[batch.key]))
        still = pc.invert(pc.is_in(pa.array(found, batch.column.type), own)).to_numpy(zero_copy_only=False)
        found, values, number = list(compress(found, still)), list(compress(values, still)), number[still]
    return found, values, number


def _values(given: Sequence[Given], batch: Batch, after: Any) -> pa.Array:
    """What becomes of the entries."""
    weights = after[: batch.kept]
    if all(each.cut is None for each in given) and not any(each[:1] == entries.CUT for each in batch.begins):
        return entries.values(weights)
    found: list[bytes | None] = []
    sides, rows = (each[: batch.kept].tolist() for each in (batch.side, batch.row))
    for entry, weight, side, row in zip(
        batch.entries[: batch.kept], weights.tolist(), sides, rows, strict=True
    ):
        of = given[side]
        data = of.packed[row].as_py() if of.cut is not None and of.cut[row] else None
        found.append(entries.value_of(entry, weight, data, of.keys[row].as_py()) if weight else None)
    return pa.array(found, pa.large_binary())


def _side(given: Given, batch: Batch, mine: Any, weights: Sequence[Any], others: Others) -> Side:
    """The rows of a side, of which ``mine`` are those among the changes; ``weights`` are before and after the batch."""
    changed = given.rows.take(pa.array(batch.row[mine]))
    skip = np.array([len(each) + 1 for each in batch.begins], np.int64)[others.keys]
    found = others.entries
    if any(others.values):
        held = [entries.opened(each).data for each in others.values]
        found = [entry if each is None else each for entry, each in zip(found, held, strict=True)]
        skip[[each is not None for each in held]] = 0
    data, at = stacked(found)
    rows = unpack(data, at + skip, changed.schema)
    still = entries.weights(others.values)
    before, after = (np.concatenate([each[mine], still]) for each in weights)
    return Side(
        pa.concat_tables([changed, rows]).combine_chunks(),
        np.concatenate([batch.key[mine], others.keys]),
        before,
        after,
        changed.num_rows,
    )


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


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
