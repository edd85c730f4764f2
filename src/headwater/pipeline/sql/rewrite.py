"""Rewrite: a SQL query over tables, with JOIN, GROUP BY and DISTINCT replaced by operators that retract.

Spark has analyzed the query by then: every name is resolved and every type known. The parts of the plan that
would count a retracted row as another row are replaced; select, filter and UNION ALL stay Spark's. Conditions
are moved down as far as possible, and unused columns are left out, since an operator stores its whole input.
Steps that cannot follow changes are refused with one line.

    Join of a table         hw.join, on the equalities of the condition
    Join AS OF a time       hw.enrich (``as_of.py``)
    Aggregate               hw.group, of columns that are selected before it
    Distinct                hw.group without aggregates
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.refusal import Refusal
from headwater.errors import UsageError
from headwater.pipeline import refusals
from headwater.pipeline.asof import enrich
from headwater.pipeline.operator import weights
from headwater.pipeline.operator.aggregate import AggregateCall
from headwater.pipeline.spark import catalyst
from headwater.pipeline.sql.as_of import Past
from headwater.pipeline.sql.renumbering import Names, Renumbering, conjuncts, is_plain, number, output, used
from headwater.pipeline.tables import group, join

__all__ = ["rewrite"]

PASSED = {"ResolvedHint", "SubqueryAlias"}
"""Nodes that change nothing: columns are identified by their numbers."""
KINDS = {
    "INNER": "inner",
    "CROSS": "inner",
    "LEFT OUTER": "left",
    "RIGHT OUTER": "right",
    "FULL OUTER": "full",
}
FUNCTIONS = {"avg": "avg", "count": "count", "max": "max", "mean": "avg", "min": "min", "sum": "sum"}


class Side(NamedTuple):
    """One side of a join, as input of an operator."""

    rows: DataFrame
    shown: dict[str, Any]
    """Its columns in the plan, by their new names."""
    on: list[str]


class Equality(NamedTuple):
    """Two expressions that must be equal, one of each side."""

    left: Any
    right: Any


class Conditions(NamedTuple):
    """The conditions of a join, by the place where they are checked."""

    on: list[Equality]
    left: list[Any]
    right: list[Any]
    after: list[Any]


def rewrite(view: str, rows: DataFrame, pasts: Mapping[str, Past]) -> DataFrame:
    """The rows of a query, following all changes.

    ``pasts``: the tables that it reads as of a time, by name.
    """
    plan = catalyst.plan(rows)
    if catalyst.find(plan, {"WithCTE"}):
        inline = catalyst.of(rows.sparkSession, "org.apache.spark.sql.catalyst.optimizer.InlineCTE")
        plan = inline(True, False, False).apply(plan)
    inner = catalyst.items(plan.subqueriesAll())
    if not any(map(weights.has_retractions, [plan, *inner])):
        return rows
    query = _Query(f"view {view!r}", rows, pasts)
    if inner:
        raise query.refused(refusals.SUBQUERY)
    return query.walk(plan, None)


class _Query:
    """The query of a view, which ``what`` names in errors.

    Columns are identified by their numbers in Spark's plan; operators get names.
    """

    def __init__(self, what: str, rows: DataFrame, pasts: Mapping[str, Past]) -> None:
        self._what = what
        self._rows = rows
        self._pasts = pasts
        self._columns = Renumbering(rows)

    def refused(self, reason: Refusal, got: str = "", **fields: str) -> UsageError:
        return reason.error(got=got, view=self._what, **fields)

    def walk(self, node: Any, needed: set[int] | None, conditions: Sequence[Any] = ()) -> DataFrame:
        """The rows of a part of the plan that satisfy conditions, with the needed columns.

        None: all columns.
        """
        kind = node.nodeName()
        if kind in PASSED:
            return self.walk(node.child(), needed, conditions)
        if not weights.has_retractions(node) or kind == "View":
            return self._columns.where(catalyst.frame(self._rows, node), conditions)
        if unstable := weights.unstable_expression(node):
            raise self.refused(refusals.PASSING, unstable)
        if kind == "Filter":
            return self.walk(node.child(), needed, [*conjuncts(node.condition()), *conditions])
        if kind == "Join" and _how(node) == "inner":
            return self._join(node, needed, conditions)
        below = needed if needed is None else needed | used(conditions)
        return self._columns.where(self._step(node, kind, below), conditions)

    def _step(self, node: Any, kind: str, needed: set[int] | None) -> DataFrame:
        match kind:
            case "Project":
                return self._select(node, needed)
            case "Union":
                children = [self._whole(child) for child in catalyst.items(node.children())]
                union = node.withNewChildren(catalyst.seq(self._rows, children))
                return self._columns.note(catalyst.frame(self._rows, union), catalyst.items(node.output()))
            case "Generate":
                child = self._whole(node.child())
                generate = node.withNewChildren(catalyst.seq(self._rows, [child]))
                generate = generate.copy(
                    self._columns.expression(node.generator()),
                    *(node.unrequiredChildIndex(), node.outer(), node.qualifier()),
                    *(node.generatorOutput(), child),
                )
                return catalyst.frame(self._rows, generate)
            case "Join":
                return self._join(node, needed)
            case "Aggregate":
                return self._group(node, needed)
            case "Distinct":
                return self._distinct(node)
        raise self.refused(refusals.STEPS.get(kind, refusals.NO_STEP), kind=kind)

    def _whole(self, node: Any) -> Any:
        """A part of the plan with all its columns in their order."""
        rows = self.walk(node, None)
        before = catalyst.items(node.output())
        return catalyst.plan(self._columns.note(rows.select(*map(self._columns.column, before)), before))

    def _select(self, node: Any, needed: set[int] | None) -> DataFrame:
        columns = [
            column
            for column in catalyst.items(node.projectList())
            if needed is None or number(column) in needed
        ]
        rows = self.walk(node.child(), used(columns))
        return self._columns.note(rows.select(*map(self._columns.column, columns)), columns)

    # ---- joins -------------------------------------------------------------------------------------------

    def _past(self, node: Any) -> Past | None:
        """The table on the right of a join, if it is read as of a time."""
        right = node.right()
        while right.nodeName() == "SubqueryAlias":
            past = self._pasts.get(right.alias())
            if past is not None:
                return past
            right = right.child()
        return None

    def _join(self, node: Any, needed: set[int] | None, conditions: Sequence[Any] = ()) -> DataFrame:
        how = _how(node)
        if how is None:
            raise self.refused(refusals.NO_JOIN, kind=node.joinType().sql())
        on = conjuncts(node.condition().get()) if node.condition().isDefined() else []
        past = self._past(node)
        if past is not None:
            return self._enrich(node, needed, past, on, conditions)
        parts = self._sort(node, how, [*on, *conditions])
        wanted = _wanted(node, needed) | used(parts.after)
        names = Names()
        left_on, right_on = [pair.left for pair in parts.on], [pair.right for pair in parts.on]
        left = self._side(node.left(), parts.left, wanted, left_on, names=names)
        same = left.on if how in ("inner", "left") else None
        right = self._side(node.right(), parts.right, wanted, right_on, names=names, same=same)
        joined = join.join(left.rows, right.rows, dict(zip(left.on, right.on, strict=True)), how)
        return self._columns.where(self._columns.rename_back(joined, left.shown | right.shown), parts.after)

    def _sort(self, node: Any, how: str, conditions: Sequence[Any], *, before: bool = True) -> Conditions:
        """Sorts conditions by the place where they may be checked.

        Before the join, unless a row of that side would be in the result with nulls; after it only in an
        inner join.
        """
        left, right = (_numbers(side) for side in (node.left(), node.right()))
        parts = Conditions([], [], [], [])
        for condition in conditions:
            columns = used([condition])
            pair = _equality(condition, left, right)
            if pair is not None:
                parts.on.append(pair)
            elif columns <= left and how in ("inner", "right"):
                parts.left.append(condition)
            elif before and columns <= right and how in ("inner", "left"):
                parts.right.append(condition)
            elif how == "inner":
                parts.after.append(condition)
            else:
                raise self.refused(refusals.OUTER_CONDITION, condition.sql(), how=how.upper())
        if not parts.on:
            got = " AND ".join(condition.sql() for condition in conditions) or "no condition"
            raise self.refused(refusals.NO_EQUALITY, got)
        return parts

    def _side(
        self,
        node: Any,
        conditions: Sequence[Any],
        wanted: set[int],
        on: Sequence[Any],
        *,
        names: Names,
        same: Sequence[str] | None = None,
    ) -> Side:
        """One side of a join.

        Expressions that it is joined on may have the ``same`` names as on the other side, if they are not
        used again.
        """
        rows = self.walk(node, wanted | used(on), conditions)
        shown = {names.new(column.name()): column for column in output(node) if number(column) in wanted}
        selected = {name: self._columns.column(column) for name, column in shown.items()}
        name_of = {number(column): name for name, column in shown.items()}
        keys: list[str] = []
        for place, part in enumerate(on):
            name = name_of.get(number(part)) if is_plain(part) else None
            if name is None or name in keys:
                name = same[place] if same is not None else names.new(part.name() if is_plain(part) else "on")
                selected[name] = self._columns.column(part)
            keys.append(name)
        return Side(rows.select(*_aliased(selected)), shown, keys)

    def _enrich(
        self, node: Any, needed: set[int] | None, past: Past, on: Sequence[Any], conditions: Sequence[Any]
    ) -> DataFrame:
        """A stream with the rows of a table that were valid at its times.

        The last condition of the join is the one that ``as_of.py`` has made from the time.
        """
        how = _how(node)
        if how not in ("inner", "left"):
            raise self.refused(refusals.AS_OF_KIND, kind=node.joinType().sql())
        time = on[-1].left()
        if not is_plain(time) or number(time) not in _numbers(node.left()):
            raise self.refused(refusals.AS_OF_TIME, time.sql())
        parts = self._sort(node, how, [*on[:-1], *conditions], before=False)
        for pair in parts.on:
            if not is_plain(pair.right):
                raise self.refused(refusals.AS_OF_COLUMN, pair.right.sql())
        wanted = _wanted(node, needed) | used(parts.after)
        names = Names([*past.table.columns, past.version])
        left_on = [pair.left for pair in parts.on]
        left = self._side(node.left(), parts.left, wanted | {number(time)}, left_on, names=names)
        (as_of,) = (name for name, column in left.shown.items() if number(column) == number(time))
        options = enrich.EnrichOptions(
            as_of=as_of,
            valid=past.valid,
            missing="keep" if how == "left" else "drop",
            version=past.version,
        )
        right_on = [pair.right.name() for pair in parts.on]
        rows = enrich.enrich(left.rows, past.table, dict(zip(left.on, right_on, strict=True)), options)
        shown = {column.name(): column for column in output(node.right()) if column.name() in rows.columns}
        return self._columns.where(self._columns.rename_back(rows, left.shown | shown), parts.after)

    # ---- groups ------------------------------------------------------------------------------------------

    def _group(self, node: Any, needed: set[int] | None) -> DataFrame:
        columns = [
            column
            for column in catalyst.items(node.aggregateExpressions())
            if needed is None or number(column) in needed
        ]
        groupings = catalyst.items(node.groupingExpressions())
        if not groupings:
            raise self.refused(refusals.NO_GROUPS)
        functions = [part for column in columns for part in catalyst.find(column, {"AggregateExpression"})]
        rows = self.walk(node.child(), used([*groupings, *functions]))
        selected: dict[str, Column] = {}
        names = Names()
        named_groupings: list[tuple[Any, str]] = []
        for grouping in groupings:
            name = names.new(grouping.name() if is_plain(grouping) else "by", "by")
            selected[name] = self._columns.column(grouping)
            named_groupings.append((grouping, name))
        by = tuple(selected)
        result_names, aggregates = Names(by), dict[str, AggregateCall]()
        for part in functions:
            if not any(part.semanticEquals(other) for other, _ in named_groupings):
                aggregate = self._aggregate(part, selected, names)
                name = result_names.new(aggregate.function)
                aggregates[name] = aggregate
                named_groupings.append((part, name))
        groups = group.group_calls(rows.select(*_aliased(selected)), by, aggregates)
        return self._select_of_groups(groups, columns, named_groupings)

    def _aggregate(self, part: Any, selected: dict[str, Column], names: Names) -> AggregateCall:
        """An aggregate in the form of hw.group. Its argument becomes a column."""
        function = part.aggregateFunction()
        name, of = FUNCTIONS.get(function.prettyName()), catalyst.items(function.children())
        if part.isDistinct():
            raise self.refused(refusals.OF_DISTINCT, part.sql())
        if name is None or len(of) != 1:
            raise self.refused(refusals.NO_AGGREGATE, part.sql())
        every = name == "count" and not of[0].nullable()
        if every and part.filter().isEmpty():
            return AggregateCall("count", None)
        value = F.lit(1) if every else self._columns.column(of[0])
        if part.filter().isDefined():
            value = F.when(self._columns.column(part.filter().get()), value)
        argument = names.new(of[0].name() if is_plain(of[0]) else "of", "of")
        selected[argument] = value
        return AggregateCall(name, argument)

    def _select_of_groups(
        self, groups: DataFrame, columns: Sequence[Any], named_groupings: Sequence[tuple[Any, str]]
    ) -> DataFrame:
        """The select on groups, in which the ``known`` expressions have become columns."""
        by_name = {column.name(): column for column in output(catalyst.plan(groups))}

        def replaced(expression: Any) -> Any:
            for part, name in named_groupings:
                if expression.semanticEquals(part):
                    return by_name[name]
            children = [replaced(child) for child in catalyst.items(expression.children())]
            return expression.withNewChildren(catalyst.seq(self._rows, children)) if children else expression

        shown = [self._columns.as_column(replaced(column)).alias(column.name()) for column in columns]
        return self._columns.note(groups.select(*shown), columns)

    def _distinct(self, node: Any) -> DataFrame:
        rows = self.walk(node.child(), None)
        names = Names()
        shown = {names.new(column.name()): column for column in output(node)}
        columns = {name: self._columns.column(column) for name, column in shown.items()}
        selected = rows.select(*_aliased(columns))
        return self._columns.rename_back(group.group_calls(selected, tuple(shown), {}), shown)


def _how(node: Any) -> str | None:
    return KINDS.get(node.joinType().sql())


def _numbers(node: Any) -> set[int]:
    return {number(column) for column in output(node)}


def _wanted(node: Any, needed: set[int] | None) -> set[int]:
    return set(_numbers(node)) if needed is None else set(needed)


def _equality(condition: Any, left: set[int], right: set[int]) -> Equality | None:
    """The two sides of a condition, if it is an equality of expressions of both sides."""
    if condition.nodeName() != "EqualTo":
        return None
    one, two = condition.left(), condition.right()
    of_one, of_two = used([one]), used([two])
    if not of_one or not of_two:
        return None
    if of_one <= left and of_two <= right:
        return Equality(one, two)
    if of_one <= right and of_two <= left:
        return Equality(two, one)
    return None


def _aliased(selected: Mapping[str, Column]) -> list[Column]:
    return [value.alias(name) for name, value in selected.items()]
