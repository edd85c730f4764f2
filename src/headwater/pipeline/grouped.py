"""Grouped: what the rows of each group come to, although rows are taken out again. A change goes out as the group's old row, taken out, and its new one.

Sums are exact (``exact.py``), so that what was added can be taken back. What is the least, the greatest or the newest is known from an entry for each
value, in order: of those only the first few are read, and those that change. Where rows never go, only these few are kept.

    KEY ff g            → ROWS TOTALS           how many rows a group has, and its sums
    KEY ff LETTER VALUE → WEIGHT VALUE          the values of an aggregate that is of the first in an order, in that order
"""

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, IntegerType, StructField, StructType

from headwater.errors import UsageError
from headwater.pipeline import entries, exact, operator
from headwater.pipeline.aggregate import ORDERED, Aggregate, parsed
from headwater.pipeline.exact import Total
from headwater.pipeline.layout import ENTRIES
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.orderly import orderly
from headwater.pipeline.rowbytes import concat, pack, stacked, unpack
from headwater.pipeline.sorting import numbered
from headwater.pipeline.weights import carried
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = ["Firsts", "Grouped", "Newest", "grouped"]

LETTER = 0x80
"""The letter of the first aggregate with an order."""
LIMIT_MAX = 10_000


class Newest(msgspec.Struct, frozen=True):
    """Asks for the newest rows of a group, as an array."""

    columns: tuple[str, ...]
    order: tuple[str, ...]
    limit: int
    bare: bool = False
    """Values, not structs: there is one column."""


class Firsts(msgspec.Struct, frozen=True):
    """The first rows of each group in an order: one value, or an array."""

    name: str
    columns: tuple[str, ...]
    kind: DataType
    order: tuple[str, ...] = ()
    limit: int = 1
    form: str = "one"
    """One value, an array of values, or of structs."""
    descending: bool = False

    @property
    def result(self) -> DataType:
        return self.kind if self.form == "one" else ArrayType(self.kind)


class Groups(NamedTuple):
    """The rows of a batch in the order of their groups."""

    rows: pa.Table
    weights: Any
    keys: list[bytes]
    """The key of each group."""
    begins: list[bytes]
    """What its entries begin with."""
    group: Any
    """Which group each row has."""
    bounds: Any
    """Where each begins."""
    begin_of: pa.Array
    """What the entries of each row begin with."""


class Column(NamedTuple):
    """An aggregate of all groups, before the batch and after it."""

    before: pa.Array
    after: pa.Array
    differs: Any
    """Where it is not the same, as far as the group is there both times."""


class Grouped(Spec, frozen=True, kw_only=True):
    """Groups as weighted rows. State: for each group its sums, and an entry for each value that is in an order."""

    key: tuple[str, ...]
    each: tuple[Aggregate | Firsts, ...] = ()
    stays: bool = False
    """Rows never go: of those in an order, only the first ones are kept."""
    kind: str = "group"
    layout: str = ENTRIES

    def schema(self, rows: StructType) -> StructType:
        shown = [rows[name] for name in self.key]
        made = [StructField(one.name, one.result) for one in self.each]
        return StructType([*shown, *made, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        if not rows.num_rows:
            return Applied(self._none(rows.schema), {})
        groups = _groups(rows, self.key)
        before, after, sums, changes = self._sums(groups, state)
        columns: dict[str, Column] = {}
        for number, one in enumerate(self.each):
            if isinstance(one, Firsts):
                letter = bytes([LETTER + number])
                columns[one.name], changed = _firsts(one, groups, state, letter, stays=self.stays)
                changes |= changed
            else:
                columns[one.name] = _summed(one, sums.get(one.name, []), before, after)
        out = self._rows(groups, columns, before > 0, after > 0)
        return Applied(out, dict(sorted(changes.items())))

    def _sums(
        self, groups: Groups, state: State
    ) -> tuple[Any, Any, dict[str, list[tuple[Total, Total]]], dict[bytes, bytes | None]]:
        """How many rows the groups have before and after the batch, their sums, and what changes in the state."""
        summed = [one for one in self.each if isinstance(one, Aggregate) and one.column is not None]
        more = [
            exact.totals(one, groups.rows.column(one.column).combine_chunks(), groups.weights, groups.bounds)
            for one in summed
        ]
        places = [begin + entries.OWN for begin in groups.begins]
        known = state.get(places)
        held = [known.get(place) for place in places]
        before = entries.weights(held)
        after = before + np.add.reduceat(groups.weights, groups.bounds)
        olds = [_loaded(value, len(summed)) for value in held]
        news = [
            [exact.added(old, new[n]) for old, new in zip(found, more, strict=True)]
            for n, found in enumerate(olds)
        ]
        changes: dict[bytes, bytes | None] = {}
        for place, value, rows, new, key in zip(places, held, after.tolist(), news, groups.keys, strict=True):
            data = msgspec.msgpack.encode([exact.kept(each) for each in new]) if new else None
            now = entries.value_of(place, rows, data, key) if rows else None
            if now != value:
                changes[place] = now
        sums = {
            one.name: [(old[n], new[n]) for old, new in zip(olds, news, strict=True)]
            for n, one in enumerate(summed)
        }
        return before, after, sums, changes

    def _rows(self, groups: Groups, columns: Mapping[str, Column], before: Any, after: Any) -> pa.Table:
        """The groups' rows that differ: the old ones taken out, the new ones in."""
        differs = before != after
        for column in columns.values():
            differs |= column.differs
        olds, news = np.flatnonzero(before & differs), np.flatnonzero(after & differs)
        order = np.argsort(np.concatenate([olds, news]), kind="stable")
        weights = np.repeat(np.array([-1, 1], np.int32), [len(olds), len(news)])
        firsts = groups.bounds[np.concatenate([olds, news])[order]]
        shown = {name: groups.rows.column(name).take(pa.array(firsts)) for name in self.key}
        taken = pa.array(order)
        made = {
            name: pa.concat_arrays(
                [column.before.take(pa.array(olds)), column.after.take(pa.array(news))]
            ).take(taken)
            for name, column in columns.items()
        }
        return pa.table(shown | made | {WEIGHT: pa.array(weights[order])})

    def _none(self, rows: pa.Schema) -> pa.Table:
        fields = [rows.field(name) for name in self.key]
        fields += [pa.field(one.name, to_arrow_type(one.result, timezone="UTC")) for one in self.each]
        return pa.schema([*fields, (WEIGHT, pa.int32())]).empty_table()


def grouped(rows: DataFrame, by: tuple[str, ...], aggregates: Mapping[str, str | Newest]) -> DataFrame:
    """The groups of a DataFrame."""
    if GONE in rows.columns:
        raise UsageError(
            "group: rows of its input may still change, and say only when they are gone",
            got="sessions or sliding windows",
            hint="publish them as a view of their own",
        )
    rows = carried("group", rows)
    made = tuple(_asked(name, asked, rows.schema) for name, asked in aggregates.items())
    for one in made:
        if one.name in by or one.name.startswith("_"):
            raise UsageError(
                "group: an aggregate cannot have this name",
                got=one.name,
                hint=f"taken are {', '.join(by)} and what begins with _",
            )
    return operator.run(Grouped(key=by, each=made, stays=WEIGHT not in rows.columns), rows)


def _asked(name: str, asked: str | Newest, rows: StructType) -> Aggregate | Firsts:
    if isinstance(asked, Newest):
        return _newest(name, asked, rows)
    (one,) = parsed("group", {name: asked}, rows).each
    if one.function in ("first", "last"):
        raise UsageError(
            f"group: {name} has no time to go by", got=asked, hint="hw.newest_of(…, order=…, limit=1)"
        )
    if one.function in ("min", "max") and one.column is not None:
        return Firsts(name, (one.column,), one.kind, descending=one.function == "max")
    return one


def _newest(name: str, asked: Newest, rows: StructType) -> Firsts:
    kinds = {field.name: field.dataType for field in rows.fields}
    if not 1 <= asked.limit <= LIMIT_MAX:
        raise UsageError(
            f"group: {name} has no such limit", got=str(asked.limit), expected=f"1 to {LIMIT_MAX:,}"
        )
    if not asked.columns or not asked.order:
        raise UsageError(f"group: {name} is of some columns in some order", got="none")
    for column in (*asked.columns, *asked.order):
        if column not in kinds:
            raise UsageError(
                f"group: {name} is of no column of its input", got=column, expected=", ".join(kinds)
            )
        if not isinstance(kinds[column], ORDERED):
            raise UsageError(f"group: {name} has no order", got=f"{column} {kinds[column].simpleString()}")
    if asked.bare:
        kind: DataType = kinds[asked.columns[0]]
    else:
        kind = StructType([StructField(each, kinds[each]) for each in asked.columns])
    form = "values" if asked.bare else "structs"
    return Firsts(name, asked.columns, kind, asked.order, asked.limit, form, descending=True)


# ---- a batch -----------------------------------------------------------------------------------------------


def _groups(rows: pa.Table, by: Sequence[str]) -> Groups:
    rows = rows.combine_chunks()
    keys = rows.column("_key").combine_chunks().cast(pa.binary())
    begins = entries.begins(keys)
    null = rows.column(by[0]).is_null().combine_chunks()
    if len(by) == 1 and pc.any(null).as_py():  # a null has the same text as a value may have
        begins = pc.if_else(null, concat(begins, b"\xff"), begins)
    names, group = numbered(begins)
    order = np.argsort(group, kind="stable")
    group = group[order]
    bounds = np.searchsorted(group, np.arange(len(names)))
    ordered, picked = pa.array(order), pa.array(order[bounds])
    weights = (
        rows.column(WEIGHT).to_numpy().astype(np.int64)
        if WEIGHT in rows.column_names
        else np.ones(len(group), np.int64)
    )
    return Groups(
        rows.take(ordered),
        weights[order],
        keys.take(picked).to_pylist(),
        names.to_pylist(),
        group,
        bounds,
        begins.take(ordered),
    )


def _loaded(value: bytes | None, sums: int) -> list[Total]:
    data = entries.opened(value).data if value else None
    return [exact.loaded(each) for each in msgspec.msgpack.decode(data)] if data else [exact.NOTHING] * sums


def _summed(one: Aggregate, found: Sequence[tuple[Total, Total]], before: Any, after: Any) -> Column:
    if one.column is None:
        old, new = pa.array(before), pa.array(after)
    else:
        old, new = (one.values([exact.partial(one, each[n]) for each in found]) for n in (0, 1))
    same = pc.equal(pack(pa.table({one.name: old})), pack(pa.table({one.name: new})))
    return Column(old, new, ~same.to_numpy(zero_copy_only=False))


def _firsts(
    one: Firsts, groups: Groups, state: State, letter: bytes, *, stays: bool
) -> tuple[Column, dict[bytes, bytes | None]]:
    """The first values of each group in their order, and what changes in the state."""
    rows, weights, begins, group = groups.rows, groups.weights, groups.begin_of, groups.group
    if not one.order:
        some = pc.is_valid(rows.column(one.columns[0])).to_numpy()
        if stays:
            some = _best(rows.column(one.columns[0]), some, group, descending=one.descending)
        rows, begins = rows.filter(pa.array(some)), begins.filter(pa.array(some))
        weights, group = weights[some], group[some]
    columns = [_plain(rows.column(name).combine_chunks()) for name in one.columns]
    order = [rows.column(name).combine_chunks() for name in one.order]
    tails, _ = entries.tailed(orderly([*order, *columns], rows.num_rows, descending=one.descending))
    made = concat(begins, letter, tails)
    changed = entries.changed(made, weights)
    picked = pa.array(changed.row)
    data = pack(pa.table(columns, names=one.columns)).take(picked).to_pylist()
    places = changed.entries.to_pylist()
    group = group[changed.row]
    known = state.get(places)
    before = entries.weights_in(known, places)
    after = before + changed.weight
    changes = {
        place: entries.value_of(place, weight, each, groups.keys[number]) if weight else None
        for place, weight, each, number in zip(places, after.tolist(), data, group.tolist(), strict=True)
    }
    taken = np.bincount(group[before != 0], minlength=len(groups.keys)) + one.limit
    wanted = [
        (begin + letter, begin + bytes([letter[0] + 1]), most)
        for begin, most in zip(groups.begins, taken.tolist(), strict=True)
    ]
    found = state.stretches(wanted)
    others = [
        (number, entry, value)
        for number, each in enumerate(found)
        for entry, value in each
        if entry not in known
    ]
    held = [entries.opened(value) for _, _, value in others]
    pool = _Pool(
        pa.array(places + [entry for _, entry, _ in others], pa.large_binary()),
        data + [each.data or b"" for each in held],
        np.concatenate([group, np.array([number for number, _, _ in others], np.int64)]),
    )
    still = np.array([each.weight for each in held], np.int64)
    column, first = pool.column(
        one, rows.schema, np.concatenate([before, still]), np.concatenate([after, still]), len(groups.keys)
    )
    if stays:
        needless = set(compress([*places, *(entry for _, entry, _ in others)], ~first))
        changes = {place: value for place, value in changes.items() if place not in needless}
        changes |= dict.fromkeys(needless & {*known, *(entry for _, entry, _ in others)})
    return column, changes


def _best(column: pa.ChunkedArray, there: Any, group: Any, *, descending: bool) -> Any:
    """Of rows in the order of their groups those with a value that may be the greatest, or the smallest, of its group."""
    if not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)) or not there.any():
        return there
    values = column.cast(pa.int64()).drop_null().combine_chunks().to_numpy()
    mine = group[there]
    starts = np.flatnonzero(np.append(True, mine[1:] != mine[:-1]))
    best = (np.maximum if descending else np.minimum).reduceat(values, starts)
    some = there.copy()
    some[there] = values == np.repeat(best, np.diff(np.append(starts, len(mine))))
    return some


def _plain(column: pa.Array) -> pa.Array:
    """Values of which equal ones have equal bytes: there are two zeros, and many that are not a number."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(
        pc.is_nan(column), pa.scalar(math.nan, column.type), pc.add(column, pa.scalar(0, column.type))
    )


class _Pool(NamedTuple):
    """Values that may be among the first of their groups."""

    places: pa.Array
    data: list[bytes]
    group: Any

    def column(
        self, one: Firsts, rows: pa.Schema, before: Any, after: Any, groups: int
    ) -> tuple[Column, Any]:
        """The aggregate, and which of the values are among the first after the batch."""
        order = pc.sort_indices(self.places).to_numpy().astype(np.int64)
        kind = pa.schema([rows.field(name) for name in one.columns])
        table = unpack(*stacked(self.data), kind)
        values = _one_column(table, one)
        alike = pa.array(self.data, pa.large_binary()).dictionary_encode().indices.to_numpy()
        chosen = [self._chosen(order, weights[order], one.limit, groups) for weights in (before, after)]
        made = [_made(one, values, picked, counts) for picked, counts in chosen]
        (old, olds), (new, news) = chosen
        differs = olds != news
        whose = [np.repeat(np.arange(groups), counts) for counts in (olds, news)]
        equally_many = [~differs[each] for each in whose]
        unlike = alike[old[equally_many[0]]] != alike[new[equally_many[1]]]
        differs[whose[0][equally_many[0]][unlike]] = True
        first = np.zeros(len(order), bool)
        first[new] = True
        return Column(made[0], made[1], differs), first

    def _chosen(self, order: Any, weights: Any, limit: int, groups: int) -> tuple[Any, Any]:
        """The first values of each group, as often as they are there, and how many there are."""
        weights = np.maximum(weights, 0)
        group = self.group[order]
        earlier = np.cumsum(weights) - weights
        starts = np.searchsorted(group, np.arange(groups))
        begin = np.append(earlier, weights.sum())[starts]
        times = np.clip(limit - (earlier - begin[group]), 0, weights)
        return np.repeat(order, times), np.bincount(group, weights=times, minlength=groups).astype(np.int64)


def _one_column(table: pa.Table, one: Firsts) -> pa.Array:
    if one.form == "structs":
        return pa.StructArray.from_arrays(
            [each.combine_chunks() for each in table.columns], names=table.column_names
        )
    return table.column(0).combine_chunks()


def _made(one: Firsts, values: pa.Array, picked: Any, counts: Any) -> pa.Array:
    if one.form == "one":
        at = np.cumsum(counts) - counts
        where = np.append(picked, -1)[np.where(counts > 0, at, -1)]
        return values.take(pa.array(where, mask=counts == 0))
    bounds = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, values.take(pa.array(picked)))
