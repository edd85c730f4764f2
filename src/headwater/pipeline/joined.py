"""Joined: the live join of tables, or of streams whose rows stay: each change of either side goes out as the changes that it makes in the result (``pairs.py``).

Rows carry weights, whatever they have come through. Two tables that come as they are, or through selects and filters only, are joined in a faster way
(``joinedtables.py``).

    KEY ff l ROW    → WEIGHT        the rows of the left side (``entries.py``); those of the right stand under r
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline import entries, once, operator, wire
from headwater.pipeline.current import ID, OFFSET, PARTITION
from headwater.pipeline.delta import Delta
from headwater.pipeline.joinedtables import NULL_ON, JoinedTables
from headwater.pipeline.operator import Applied, Moment, State
from headwater.pipeline.origin import KEPT, Origin, origin
from headwater.pipeline.pair import On, columns_on, paired, sides
from headwater.pipeline.pairs import LETTERS, SIDES, Batch, Others, Pairs, Side, one_chunk
from headwater.pipeline.routed import ON, Routed
from headwater.pipeline.rowbytes import concat, pack, stacked, unpack
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = ["KINDS", "Joined", "joined"]

KINDS = ("inner", "left", "right", "full")
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


class Joined(Pairs, frozen=True, kw_only=True):
    """Rows of both sides with the same key, as weighted rows. State: an entry for each row of either side."""

    def schema(self, rows: StructType) -> StructType:
        return self.shown(*(rows[side].dataType for side in SIDES))

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        given = [self._given(rows, side) for side in (0, 1)]
        batch, row, weight = _batch(given)
        mine = batch.entries[: batch.kept]
        known = pa.array(state.each(mine.to_pylist()), pa.large_binary())
        before = np.zeros(len(batch.entries), np.int64)
        before[: batch.kept] = entries.weights(known)
        after = before + weight
        others = [self.others(batch, state, side) for side in (0, 1)]
        sides = []
        for side in (0, 1):
            changed = given[side].rows.take(pa.array(row[batch.side == side]))
            sides.append(_side(changed, batch, side, (before, after), others[side]))
        changes = Delta.over(mine, _values(given, batch, row, after), known)
        return Applied(self.pairs(batch, sides, others), changes)

    def _given(self, rows: pa.Table, side: int) -> Given:
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
        begins = entries.begins(keys)
        if null.any():
            begins = pc.if_else(pa.array(null), pa.scalar(NOWHERE[side], begins.type), begins)
        shown = pa.table(columns, names=names)
        packed = pack(shown)
        tails, cut = entries.tailed(packed)
        made = concat(begins, LETTERS[side], tails)
        weights = mine.column(WEIGHT).to_numpy().astype(np.int64)
        return Given(shown, keys, begins, made, packed, cut, weights)


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
    found = origin(left), origin(right)
    if found[0] is not None and found[1] is not None:
        return _of_tables((found[0], found[1]), pairs, how, shared)
    if how in ("inner", "right"):  # those without a key would all go to one shard, for nothing
        left = left.where(_has(pairs))
    if how in ("inner", "left"):
        right = right.where(_has(pairs.values()))
    both, key = paired("join", left, right, on)
    return operator.run(Joined(key=key, how=how, shared=shared), both)


def _of_tables(
    tables: tuple[Origin, Origin], pairs: Mapping[str, str], how: str, shared: tuple[str, ...]
) -> DataFrame:
    """The same of two tables, from their changes."""
    on = tuple(pairs), tuple(pairs.values())
    kinds = [StructType([each.changes.schema[name] for name in each.columns]) for each in tables]
    logic = JoinedTables(
        key=(ON,),
        how=how,
        shared=shared,
        left=kinds[0],
        right=kinds[1],
        single=(on[0] == tables[0].key, on[1] == tables[1].key),
    )

    def side(number: int) -> DataFrame:
        changes = tables[number].changes
        text = F.expr(wire.identity_expression(changes.schema, on[number])).cast("binary")
        place = F.when(F.expr(f"{KEPT} AND {_has(on[number])}"), text)
        if logic.outer[number]:
            place = place.when(F.col(KEPT), F.lit(NULL_ON[number]))
        rows = sides(dict(zip(SIDES, kinds, strict=True)), SIDES[number])
        return changes.select(*rows, place.alias(ON), ID, PARTITION, OFFSET)

    return operator.run_both(Routed(), logic, once.union(side(0), side(1)))


def _has(columns: Iterable[str]) -> str:
    return " AND ".join(f"`{name}` IS NOT NULL" for name in columns)


# ---- a batch -----------------------------------------------------------------------------------------------


def _batch(given: Sequence[Given]) -> tuple[Batch, Any, Any]:
    """What changes, which of the rows of its side each is, and by what weight."""
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
    batch = Batch(side, number, names, changed.entries, kept)
    return batch, changed.row - lefts * side, changed.weight


def _values(given: Sequence[Given], batch: Batch, row: Any, after: Any) -> pa.Array:
    """What becomes of the entries."""
    weights = after[: batch.kept]
    if all(each.cut is None for each in given) and not any(each[:1] == entries.CUT for each in batch.begins):
        return entries.values(weights)
    found: list[bytes | None] = []
    each = (batch.entries.to_pylist(), after.tolist(), batch.side.tolist(), row.tolist())
    for entry, weight, side, at in islice(zip(*each, strict=True), batch.kept):
        of = given[side]
        data = of.packed[at].as_py() if of.cut is not None and of.cut[at] else None
        found.append(entries.value_of(entry, weight, data, of.keys[at].as_py()) if weight else None)
    return pa.array(found, pa.large_binary())


def _side(changed: pa.Table, batch: Batch, side: int, weights: Sequence[Any], others: Others) -> Side:
    """The rows of a side, of which some changed; ``weights`` are those of the entries before and after the batch."""
    mine = batch.side == side
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
