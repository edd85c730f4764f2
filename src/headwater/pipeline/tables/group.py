"""The group operator: aggregates of each group, kept current while rows are inserted and retracted.

A changed group is emitted as its old row, retracted, and its new row, inserted. Sums are exact
(``exact_sums.py``), so that any row can be subtracted again. Least, greatest and newest values have entries
of their own (``top_values.py``).

    KEY ff g            → ROWS SUMS             the number of rows of a group, and its sums
    KEY ff LETTER VALUE → WEIGHT VALUE          the values of one aggregate, in its order
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from headwater.declare.table import Newest
from headwater.errors import UsageError
from headwater.pipeline.arrow.row_bytes import pack
from headwater.pipeline.operator import apply
from headwater.pipeline.operator.aggregate import ORDERED, Aggregate, AggregateCall, resolve
from headwater.pipeline.operator.aggregate_columns import with_columns
from headwater.pipeline.operator.event_rows import check_name, check_no_windows
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.weights import carry_weights
from headwater.pipeline.state import weighted_entries
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import ENTRIES
from headwater.pipeline.tables import exact_sums
from headwater.pipeline.tables.exact_sums import Total
from headwater.pipeline.tables.group_batch import Flags, GroupColumn, Groups, Numbers, read_groups
from headwater.pipeline.tables.top_values import Changes, Firsts, top_values
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["Firsts", "Group", "group", "group_calls"]

LETTER = 0x80
"""The letter of the first aggregate; the others follow by number."""
LIMIT_MAX = 10_000


class Sums(NamedTuple):
    """The number of rows and the sums, by aggregate as (old, new), of each group before and after the
    batch."""

    before: Numbers
    after: Numbers
    totals: dict[str, list[tuple[Total, Total]]]
    changes: Changes


class Group(Spec, frozen=True, kw_only=True):
    """Groups as weighted rows.

    State: the sums of each group, and an entry for each value of an ordered aggregate.
    """

    stored_names: ClassVar[Mapping[str, str]] = {"Group": "Grouped", "aggregates": "each"}

    key: tuple[str, ...]
    aggregates: tuple[Aggregate | Firsts, ...] = ()
    stays: bool = False
    """Rows are never retracted, so only the first values of an order are kept."""
    kind: str = "group"
    layout: str = ENTRIES

    def schema(self, rows: StructType) -> StructType:
        keys = [rows[name] for name in self.key]
        values = [StructField(aggregate.name, aggregate.result) for aggregate in self.aggregates]
        return StructType([*keys, *values, StructField(WEIGHT, IntegerType())])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        if not rows.num_rows:
            return Applied(self._empty(rows.schema), Delta.of({}, state))
        groups = read_groups(rows, self.key)
        before, after, totals, changes = self._sums(groups, state)
        columns: dict[str, GroupColumn] = {}
        for number, aggregate in enumerate(self.aggregates):
            if isinstance(aggregate, Firsts):
                letter = bytes([LETTER + number])
                column, changed = top_values(aggregate, groups, state, letter, stays=self.stays)
                changes |= changed
            else:
                column = _sum_column(aggregate, totals.get(aggregate.name, []), before, after)
            columns[aggregate.name] = column
        out = self._rows(groups, columns, before > 0, after > 0)
        return Applied(out, Delta.of(changes, state))

    def _sums(self, groups: Groups, state: State) -> Sums:
        summed = [
            aggregate
            for aggregate in self.aggregates
            if isinstance(aggregate, Aggregate) and aggregate.column is not None
        ]
        more = [
            exact_sums.totals(
                aggregate,
                groups.rows.column(aggregate.column).combine_chunks(),
                groups.weights,
                groups.starts,
            )
            for aggregate in summed
        ]
        entries = [prefix + weighted_entries.OWN for prefix in groups.prefixes]
        stored = state.get(entries)
        values = [stored.get(entry) for entry in entries]
        before = weighted_entries.weights(values)
        after = before + np.add.reduceat(groups.weights, groups.starts)
        olds = [_loaded(value, len(summed)) for value in values]
        news = [
            [exact_sums.add(old, added[number]) for old, added in zip(totals, more, strict=True)]
            for number, totals in enumerate(olds)
        ]
        changes: Changes = {}
        for entry, value, rows, totals, key in zip(
            entries, values, after.tolist(), news, groups.keys, strict=True
        ):
            data = msgspec.msgpack.encode([exact_sums.kept(total) for total in totals]) if totals else None
            new_value = weighted_entries.value_of(entry, rows, data, key) if rows else None
            if new_value != value:
                changes[entry] = new_value
        by_name = {
            aggregate.name: [(old[n], new[n]) for old, new in zip(olds, news, strict=True)]
            for n, aggregate in enumerate(summed)
        }
        return Sums(before, after, by_name, changes)

    def _rows(
        self, groups: Groups, columns: Mapping[str, GroupColumn], before: Flags, after: Flags
    ) -> pa.Table:
        """The groups that differ: their old rows retracted, their new rows inserted.

        The flags: which groups exist.
        """
        differs = before != after
        for column in columns.values():
            differs |= column.differs
        olds, news = np.flatnonzero(before & differs), np.flatnonzero(after & differs)
        order = np.argsort(np.concatenate([olds, news]), kind="stable")
        weights = np.repeat(np.array([-1, 1], np.int32), [len(olds), len(news)])
        first_rows = groups.starts[np.concatenate([olds, news])[order]]
        keys = {name: groups.rows.column(name).take(pa.array(first_rows)) for name in self.key}
        picked = pa.array(order)
        aggregates = {
            name: pa.concat_arrays(
                [column.before.take(pa.array(olds)), column.after.take(pa.array(news))]
            ).take(picked)
            for name, column in columns.items()
        }
        return pa.table(keys | aggregates | {WEIGHT: pa.array(weights[order])})

    def _empty(self, rows: pa.Schema) -> pa.Table:
        fields = [rows.field(name) for name in self.key]
        fields += [
            pa.field(aggregate.name, to_arrow_type(aggregate.result, timezone="UTC"))
            for aggregate in self.aggregates
        ]
        return pa.schema([*fields, (WEIGHT, pa.int32())]).empty_table()


def _loaded(value: bytes | None, sums: int) -> list[Total]:
    data = weighted_entries.opened(value).data if value else None
    if not data:
        return [exact_sums.NOTHING] * sums
    return [exact_sums.loaded(total) for total in msgspec.msgpack.decode(data)]


def _sum_column(
    aggregate: Aggregate, totals: Sequence[tuple[Total, Total]], before: Numbers, after: Numbers
) -> GroupColumn:
    if aggregate.column is None:
        old, new = pa.array(before), pa.array(after)
    else:
        old, new = (
            aggregate.values([exact_sums.partial(aggregate, pair[n]) for pair in totals]) for n in (0, 1)
        )
    same = pc.equal(pack(pa.table({aggregate.name: old})), pack(pa.table({aggregate.name: new})))
    return GroupColumn(old, new, ~same.to_numpy(zero_copy_only=False))


# ---- the operator of the API -------------------------------------------------------------------------------


def group(rows: DataFrame, by: tuple[str, ...], aggregates: Mapping[str, Column | Newest]) -> DataFrame:
    """The groups of a DataFrame, with aggregates given as Columns."""
    newest = {name: aggregate for name, aggregate in aggregates.items() if isinstance(aggregate, Newest)}
    columns = {name: aggregate for name, aggregate in aggregates.items() if not isinstance(aggregate, Newest)}
    rows, calls = with_columns("group", rows, columns)
    return group_calls(rows, by, {name: newest.get(name) or calls[name] for name in aggregates})


def group_calls(
    rows: DataFrame, by: tuple[str, ...], calls: Mapping[str, AggregateCall | Newest]
) -> DataFrame:
    """The groups of a DataFrame, with aggregates given as functions of columns."""
    check_no_windows("group", rows)
    rows = carry_weights("group", rows)
    for name in calls:
        check_name("group", name, by)
    aggregates = tuple(_aggregate(name, call, rows.schema) for name, call in calls.items())
    return apply.run(Group(key=by, aggregates=aggregates, stays=WEIGHT not in rows.columns), rows)


def _aggregate(name: str, call: AggregateCall | Newest, rows: StructType) -> Aggregate | Firsts:
    if isinstance(call, Newest):
        return _newest(name, call, rows)
    (aggregate,) = resolve("group", {name: call}, rows).each
    if aggregate.function in ("first", "last"):
        raise UsageError(
            f"group: {name}: {call} depends on the order of arrival, which is not defined",
            hint=f"hw.newest_of({call.column!r}, order=…, limit=1) sorts by a column",
        )
    if aggregate.function in ("min", "max") and aggregate.column is not None:
        descending = aggregate.function == "max"
        return Firsts(name, (aggregate.column,), aggregate.kind, descending=descending)
    return aggregate


def _newest(name: str, newest: Newest, rows: StructType) -> Firsts:
    kinds = {field.name: field.dataType for field in rows.fields}
    what = f"group: {name}: hw.newest_of"
    if not 1 <= newest.limit <= LIMIT_MAX:
        raise UsageError(f"{what}: limit= is wrong", got=str(newest.limit), expected=f"1 to {LIMIT_MAX:,}")
    if not newest.columns or not newest.order:
        missing = "order= names no column" if newest.columns else "no column is named"
        raise UsageError(f"{what}: {missing}", expected=f"one or more of {', '.join(kinds)}")
    for column in (*newest.columns, *newest.order):
        if column not in kinds:
            columns = ", ".join(column for column in kinds if not column.startswith("_"))
            raise UsageError(f"{what}: {column!r} is not a column of its input", expected=columns)
        if not isinstance(kinds[column], ORDERED):
            raise UsageError(
                f"{what}: the values of {column!r} have no order",
                got=kinds[column].simpleString(),
                expected="number, text, boolean, date, timestamp or binary",
            )
    if newest.bare:
        kind: DataType = kinds[newest.columns[0]]
    else:
        kind = StructType([StructField(column, kinds[column]) for column in newest.columns])
    form = "values" if newest.bare else "structs"
    return Firsts(name, newest.columns, kind, newest.order, newest.limit, form, descending=True)
