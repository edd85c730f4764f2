"""The live join of two tables from their changes (``join.py`` says when it is used).

A row of a table has a key, and so one place in the state: a change replaces the row there, and no weights are
needed. Two operators do the join:

    Route       sends each change to the shard of the value that its row is joined on. If this value
                changes, or the row is deleted, the shard with the old row needs to know. So Route keeps
                for each key the value that its row is joined on, and nothing else
    KeyedJoin   keeps the rows of both tables by the value that they are joined on, and emits pairs

    l KEY          → ON       Route: a row of the left table; those of the right have r
    ON ff l KEY    → ROW      KeyedJoin: a row of the left table; those of the right have r

If ON is too long, its entry has a digest, and ON is in the value (``pipeline/state/weighted_entries.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, BooleanType, StructType

from headwater.pipeline.arrow.row_bytes import concat, pack, placed, unpack
from headwater.pipeline.arrow.sort_keys import ordered
from headwater.pipeline.operator import apply, shared_scan
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.shell import to_arrow
from headwater.pipeline.operator.two_inputs import all_present, sides
from headwater.pipeline.state import weighted_entries
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import ROUTES
from headwater.pipeline.tables.changelog import ID, OFFSET, PARTITION, differ, newest_changes
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
from headwater.pipeline.tables.table_origin import KEPT, Origin
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire import wire

__all__ = ["FRESH", "NULL_ON", "ON", "ROUTED", "ROW", "SIDE", "KeyedJoin", "Route", "join_by_key"]

NULL_ON = (b"\xfdl", b"\xfdr")
"""Written in place of a null ON, for each side: such rows have no partner. No text begins like this."""
ON = "_on"
"""The text of the value that a row is joined on; null if there is no row, or none that is joined."""
SIDE, ROW, FRESH = "_side", "_row", "_fresh"
SCHEMA = (
    StructType()
    .add("_key", BinaryType())
    .add(SIDE, BooleanType())
    .add(ID, BinaryType())
    .add(ROW, BinaryType())
    .add(FRESH, BooleanType())
)
BYTES, FLAG = pa.large_binary(), pa.bool_()
ROUTED = pa.schema([("_key", BYTES), (SIDE, FLAG), (ID, BYTES), (ROW, BYTES), (FRESH, FLAG)])


class Route(Spec, frozen=True, kw_only=True):
    """The last change of each key, sent to the value that it is joined on, and to the former one.

    ``_side`` is true for the right table. ``_row`` has the bytes of the row; null: it is no longer there.
    ``_fresh``: the row is new there.
    """

    stored_names: ClassVar[Mapping[str, str]] = {"Route": "Routed"}

    key: tuple[str, ...] = (ID,)
    key_only: tuple[str, ...] = (ID,)
    kind: str = "route"
    layout: str = ROUTES

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return SCHEMA

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        out: list[pa.Table] = []
        changes: list[tuple[pa.Array, pa.Array, pa.Array]] = []
        for side in (0, 1):
            ids, last = newest_changes(rows.filter(pc.is_valid(rows.column(SIDES[side]))))
            entries = concat(LETTERS[side], ids)
            old = pa.array(state.each(entries.to_pylist()), BYTES)
            new = one_chunk(last.column(ON)).cast(BYTES)
            has_new, has_old = (column.is_valid().to_numpy(zero_copy_only=False) for column in (new, old))
            same = pc.fill_null(pc.equal(old, new), False).to_numpy(zero_copy_only=False)
            here, left, changed = (
                pa.array(np.flatnonzero(flags))
                for flags in (has_new, has_old & ~same, ~same & (has_new | has_old))
            )
            packed = _packed(last.column(SIDES[side]).take(here))
            out.append(_routed(new.take(here), side, ids.take(here), packed, ~same[has_new]))
            no_rows = pa.nulls(len(left), BYTES)
            out.append(_routed(old.take(left), side, ids.take(left), no_rows, np.zeros(len(left), bool)))
            changes.append((entries.take(changed), new.take(changed), old.take(changed)))
        keys, news, olds = map(pa.concat_arrays, zip(*changes, strict=True))
        return Applied(pa.concat_tables(out), Delta.over(keys, news, olds))


def _routed(on: pa.Array, side: int, ids: pa.Array, rows: pa.Array, fresh: Flags) -> pa.Table:
    return pa.table([on, np.full(len(on), bool(side)), ids, rows, fresh], schema=ROUTED)


def _packed(structs: pa.ChunkedArray) -> pa.Array:
    kind = structs.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    return pack(pa.table(one_chunk(structs).flatten(), names=names))


class KeyedJoin(PairJoin, frozen=True, kw_only=True):
    """The output of `Route`, joined to weighted rows. State: an entry for each row of either table."""

    stored_names: ClassVar[Mapping[str, str]] = {"KeyedJoin": "JoinedTables"}

    left: StructType
    right: StructType
    single: tuple[bool, bool] = (False, False)
    """Whether a table is joined on its key: then ON has one row at most, whose KEY is ON."""

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return self.joined_schema(self.left, self.right)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        on, ids, news = (one_chunk(rows.column(name)) for name in ("_key", ID, ROW))
        right, fresh = (rows.column(name).to_numpy() for name in (SIDE, FRESH))
        letters = pc.if_else(pa.array(right), *(pa.scalar(letter, BYTES) for letter in LETTERS[::-1]))
        entries = concat(weighted_entries.begins(on), letters, weighted_entries.tailed(ids)[0])
        order, _ = ordered(entries)
        entries, on, news = (column.take(pa.array(order)) for column in (entries, on, news))
        cut = weighted_entries.are_cut(on)
        olds = _old_rows(entries, fresh[order], state, cut=cut)
        right, changed = right[order], differ(olds, news)
        if not changed.all():
            entries, on, news, olds = (
                column.filter(pa.array(changed)) for column in (entries, on, news, olds)
            )
            right = right[changed]
        batch, keys = _batch(entries, on, right)
        others = [self._unchanged(batch, keys, state, side) for side in (0, 1)]
        if cut:
            others = [other._replace(values=_rows_of(other.entries, other.values)) for other in others]
        olds_and_news = pa.concat_arrays([olds, news])
        both_sides = [self._side(batch, side, olds_and_news, others[side]) for side in (0, 1)]
        rows = self.pairs(batch, both_sides, others)
        if cut:
            news, olds = (_values_of(entries, column, on) for column in (news, olds))
        return Applied(rows, Delta.over(entries, news, olds))

    def _unchanged(self, batch: Batch, keys: pa.Array, state: State, side: int) -> Others:
        """The unchanged rows of a side.

        If there is one row at most, a lookup finds it, unless the batch has changed it.
        """
        if not self.single[side]:
            return self.others(batch, state, side)
        wanted = np.ones(len(keys), bool)
        wanted[batch.key[batch.side == side]] = False
        wanted_keys = keys.filter(pa.array(wanted))
        entries = concat(
            weighted_entries.begins(wanted_keys), LETTERS[side], weighted_entries.tailed(wanted_keys)[0]
        )
        values = pa.array(state.each(entries.to_pylist()), BYTES)
        has_row = values.is_valid().to_numpy(zero_copy_only=False)
        number = np.flatnonzero(wanted)[has_row]
        exist = np.zeros(len(keys), bool)
        exist[number] = True
        rows = values.drop_null().to_pylist()
        return Others(entries.filter(pa.array(has_row)).to_pylist(), rows, number, exist)

    def _side(self, batch: Batch, side: int, olds_and_news: pa.Array, others: Others) -> Side:
        """The rows of a side: of each change the old row, then the new one.

        ``olds_and_news`` has all old rows, then all new ones.
        """
        mine = np.flatnonzero(batch.side == side)
        place = np.stack([mine, mine + len(batch.key)], axis=1).ravel()
        place = place[olds_and_news.is_valid().to_numpy(zero_copy_only=False)[place]]
        is_new = place >= len(batch.key)
        unchanged = pa.array(others.values, BYTES)
        packed = pa.concat_arrays([olds_and_news.take(pa.array(place)), unchanged])
        ones = np.ones(len(unchanged), np.int64)
        return Side(
            unpack(*placed(packed), to_arrow((self.left, self.right)[side])),
            np.concatenate([batch.key[place - len(batch.key) * is_new], others.keys]),
            np.concatenate([(~is_new).astype(np.int64), ones]),
            np.concatenate([is_new.astype(np.int64), ones]),
            len(place),
        )


def _batch(entries: pa.Array, on: pa.Array, right: Flags) -> tuple[Batch, pa.Array]:
    """The changed entries, and the different values of ON by number."""
    first = np.ones(len(on), bool)
    first[1:] = pc.not_equal(on[1:], on[:-1]).to_numpy(zero_copy_only=False)
    keys = on.filter(pa.array(first))
    prefixes = weighted_entries.begins(keys).to_pylist()
    return Batch(right.astype(np.int64), np.cumsum(first) - 1, prefixes, entries, len(entries)), keys


def _old_rows(entries: pa.Array, fresh: Flags, state: State, *, cut: bool) -> pa.Array:
    """The rows in the state at these entries; fresh ones have none and are not looked up."""
    stored: Numbers = np.flatnonzero(~fresh)
    stored_entries = entries.take(pa.array(stored)).to_pylist()
    values = state.each(stored_entries)
    rows = pa.array(_rows_of(stored_entries, values) if cut else values, BYTES)
    at = np.zeros(len(entries), np.int64)
    at[stored] = np.arange(len(stored))
    return rows.take(pa.array(at, mask=fresh))


def _rows_of(entries: Sequence[bytes], values: Sequence[bytes | None]) -> list[Any]:
    """The rows in the values of entries, some of which were cut."""
    return [
        weighted_entries.opened(value).data
        if entry[:1] == weighted_entries.CUT and value is not None
        else value
        for entry, value in zip(entries, values, strict=True)
    ]


def _values_of(entries: pa.Array, rows: pa.Array, on: pa.Array) -> pa.Array:
    """The values of entries for these rows, some of which were cut; null for null."""
    values = [
        weighted_entries.closed(weighted_entries.Held(1, row, key))
        if entry[:1] == weighted_entries.CUT and row is not None
        else row
        for entry, row, key in zip(*(column.to_pylist() for column in (entries, rows, on)), strict=True)
    ]
    return pa.array(values, BYTES)


# ---- both operators in a plan ------------------------------------------------------------------------------


def join_by_key(
    tables: tuple[Origin, Origin], pairs: Mapping[str, str], how: str, shared: tuple[str, ...]
) -> DataFrame:
    """The live join of two tables from their changes.

    ``pairs`` are the columns it joins on, as {left: right}.
    """
    on = tuple(pairs), tuple(pairs.values())
    kinds = [StructType([table.changes.schema[name] for name in table.columns]) for table in tables]
    logic = KeyedJoin(
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
        place = F.when(F.expr(f"{KEPT} AND {all_present(on[number])}"), text)
        if logic.outer[number]:
            place = place.when(F.col(KEPT), F.lit(NULL_ON[number]))
        rows = sides(dict(zip(SIDES, kinds, strict=True)), SIDES[number])
        return changes.select(*rows, place.alias(ON), ID, PARTITION, OFFSET)

    return apply.run_both(Route(), logic, shared_scan.union(side(0), side(1)))
