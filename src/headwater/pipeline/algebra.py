"""Algebra: a SQL query over tables, in which JOIN, GROUP BY and DISTINCT are made by operators that take back.

Spark has read the query by then: every name is resolved, every type is known. Of its plan the parts are replaced that would count a row that goes out
as one more; select, filter and UNION ALL stay Spark's. Conditions go as far down as they can, and columns that nobody asks for are left out, since an
operator keeps what it is given. What cannot be kept up to date is refused in one line.

    Join of a table         hw.join; its equalities are what it is joined on
    Join AS OF a time       hw.enrich (``travel.py``)
    Aggregate               hw.group, of columns selected before it
    Distinct                hw.group without aggregates
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import UsageError
from headwater.pipeline import catalyst, enrich, grouped, joined, refusals, weights
from headwater.pipeline.columns import Moved, Names, conjuncts, is_plain, number, output, used
from headwater.pipeline.travel import Past
from headwater.refusal import Refusal

__all__ = ["translated"]

PASSED = {"ResolvedHint", "SubqueryAlias"}
"""Nodes that change nothing: columns are known by their numbers."""
KINDS = {
    "INNER": "inner",
    "CROSS": "inner",
    "LEFT OUTER": "left",
    "RIGHT OUTER": "right",
    "FULL OUTER": "full",
}
FUNCTIONS = {"avg": "avg", "count": "count", "max": "max", "mean": "avg", "min": "min", "sum": "sum"}


class Side(NamedTuple):
    """One side of a join, as an operator is given it."""

    rows: DataFrame
    shown: dict[str, Any]
    """Its columns in the plan, by the names that they have now."""
    on: list[str]


class Equality(NamedTuple):
    """What must be equal, on either side."""

    left: Any
    right: Any


class Conditions(NamedTuple):
    """The conditions of a join, by where they are looked at."""

    on: list[Equality]
    left: list[Any]
    right: list[Any]
    behind: list[Any]


def translated(view: str, rows: DataFrame, pasts: Mapping[str, Past]) -> DataFrame:
    """The rows of a query, live. ``pasts`` are the tables that it reads as of a time, by the names that they have in it."""
    plan = catalyst.plan(rows)
    if catalyst.find(plan, {"WithCTE"}):
        inline = catalyst.of(rows.sparkSession, "org.apache.spark.sql.catalyst.optimizer.InlineCTE")
        plan = inline(True, False, False).apply(plan)
    inner = catalyst.items(plan.subqueriesAll())
    if not any(map(weights.weighted, [plan, *inner])):
        return rows
    made = _Query(f"view {view!r}", rows, pasts)
    if inner:
        raise made.refused(refusals.SUBQUERY)
    return made.walk(plan, None)


class _Query:
    """The query of a view. ``what`` names it in errors. Columns are spoken of by their numbers in Spark's plan, until an operator is given them."""

    def __init__(self, what: str, rows: DataFrame, pasts: Mapping[str, Past]) -> None:
        self._what = what
        self._rows = rows
        self._pasts = pasts
        self._moved = Moved(rows)

    def refused(self, reason: Refusal, got: str = "", **fields: str) -> UsageError:
        return reason.error(got=got, view=self._what, **fields)

    def walk(self, node: Any, needed: set[int] | None, conditions: Sequence[Any] = ()) -> DataFrame:
        """A part of the plan with the columns that are needed, all if None, of rows for which conditions hold."""
        kind = node.nodeName()
        if kind in PASSED:
            return self.walk(node.child(), needed, conditions)
        if not weights.weighted(node) or kind == "View":
            return self._moved.where(catalyst.frame(self._rows, node), conditions)
        if found := weights.passing(node):
            raise self.refused(refusals.PASSING, found)
        if kind == "Filter":
            return self.walk(node.child(), needed, [*conjuncts(node.condition()), *conditions])
        if kind == "Join" and _how(node) == "inner":
            return self._join(node, needed, conditions)
        below = needed if needed is None else needed | used(conditions)
        return self._moved.where(self._step(node, kind, below), conditions)

    def _step(self, node: Any, kind: str, needed: set[int] | None) -> DataFrame:
        match kind:
            case "Project":
                return self._select(node, needed)
            case "Union":
                children = [self._whole(child) for child in catalyst.items(node.children())]
                made = node.withNewChildren(catalyst.seq(self._rows, children))
                return self._moved.to(catalyst.frame(self._rows, made), catalyst.items(node.output()))
            case "Generate":
                child = self._whole(node.child())
                made = node.withNewChildren(catalyst.seq(self._rows, [child]))
                made = made.copy(
                    self._moved.expression(node.generator()),
                    *(node.unrequiredChildIndex(), node.outer(), node.qualifier()),
                    *(node.generatorOutput(), child),
                )
                return catalyst.frame(self._rows, made)
            case "Join":
                return self._join(node, needed)
            case "Aggregate":
                return self._group(node, needed)
            case "Distinct":
                return self._distinct(node)
        raise self.refused(refusals.STEPS.get(kind, refusals.NO_STEP), kind=kind)

    def _whole(self, node: Any) -> Any:
        """A part of the plan with all its columns in their places."""
        rows = self.walk(node, None)
        before = catalyst.items(node.output())
        return catalyst.plan(self._moved.to(rows.select(*map(self._moved.column, before)), before))

    def _select(self, node: Any, needed: set[int] | None) -> DataFrame:
        listed = [
            each for each in catalyst.items(node.projectList()) if needed is None or number(each) in needed
        ]
        rows = self.walk(node.child(), used(listed))
        return self._moved.to(rows.select(*map(self._moved.column, listed)), listed)

    # ---- joins -----------------------------------------------------------------------------------------------

    def _past(self, node: Any) -> Past | None:
        """The table on the right of a join, if it is read as of a time."""
        right = node.right()
        while right.nodeName() == "SubqueryAlias":
            found = self._pasts.get(right.alias())
            if found is not None:
                return found
            right = right.child()
        return None

    def _join(self, node: Any, needed: set[int] | None, conditions: Sequence[Any] = ()) -> DataFrame:
        how = _how(node)
        if how is None:
            raise self.refused(refusals.NO_JOIN, kind=node.joinType().sql())
        asked = conjuncts(node.condition().get()) if node.condition().isDefined() else []
        past = self._past(node)
        if past is not None:
            return self._enrich(node, needed, past, asked, conditions)
        found = self._sorted(node, how, [*asked, *conditions])
        wanted = _wanted(node, needed) | used(found.behind)
        names = Names()
        left = self._side(node.left(), found.left, wanted, [each.left for each in found.on], names=names)
        same = left.on if how in ("inner", "left") else None
        there = [each.right for each in found.on]
        right = self._side(node.right(), found.right, wanted, there, names=names, same=same)
        made = joined.joined(left.rows, right.rows, dict(zip(left.on, right.on, strict=True)), how)
        return self._moved.where(self._moved.back(made, left.shown | right.shown), found.behind)

    def _sorted(self, node: Any, how: str, asked: Sequence[Any], *, before: bool = True) -> Conditions:
        """Each condition where it may be looked at: before the join, if that takes no row that would be there with nulls; behind it only if none is."""
        left, right = (_numbers(side) for side in (node.left(), node.right()))
        found = Conditions([], [], [], [])
        for each in asked:
            of = used([each])
            pair = _equality(each, left, right)
            if pair is not None:
                found.on.append(pair)
            elif of <= left and how in ("inner", "right"):
                found.left.append(each)
            elif before and of <= right and how in ("inner", "left"):
                found.right.append(each)
            elif how == "inner":
                found.behind.append(each)
            else:
                raise self.refused(refusals.OUTER_CONDITION, each.sql(), how=how.upper())
        if not found.on:
            got = " AND ".join(each.sql() for each in asked) or "no condition"
            raise self.refused(refusals.NO_EQUALITY, got)
        return found

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
        """One side of a join. What it is joined on may have the ``same`` names as on the other side, where nobody asks for it again."""
        rows = self.walk(node, wanted | used(on), conditions)
        shown = {names.new(each.name()): each for each in output(node) if number(each) in wanted}
        selected = {name: self._moved.column(each) for name, each in shown.items()}
        known = {number(each): name for name, each in shown.items()}
        keys: list[str] = []
        for place, each in enumerate(on):
            name = known.get(number(each)) if is_plain(each) else None
            if name is None or name in keys:
                name = same[place] if same is not None else names.new(each.name() if is_plain(each) else "on")
                selected[name] = self._moved.column(each)
            keys.append(name)
        return Side(rows.select(*_aliased(selected)), shown, keys)

    def _enrich(
        self, node: Any, needed: set[int] | None, past: Past, asked: Sequence[Any], conditions: Sequence[Any]
    ) -> DataFrame:
        """A stream and the rows of a table that held at its times. The last condition is the one that ``travel.py`` made of the time."""
        how = _how(node)
        if how not in ("inner", "left"):
            raise self.refused(refusals.AS_OF_KIND, kind=node.joinType().sql())
        time = asked[-1].left()
        if not is_plain(time) or number(time) not in _numbers(node.left()):
            raise self.refused(refusals.AS_OF_TIME, time.sql())
        found = self._sorted(node, how, [*asked[:-1], *conditions], before=False)
        for each in found.on:
            if not is_plain(each.right):
                raise self.refused(refusals.AS_OF_COLUMN, each.right.sql())
        wanted = _wanted(node, needed) | used(found.behind)
        names = Names([*past.table.columns, past.version])
        on = [each.left for each in found.on]
        left = self._side(node.left(), found.left, wanted | {number(time)}, on, names=names)
        (as_of,) = (name for name, each in left.shown.items() if number(each) == number(time))
        asked_for = enrich.Wanted(
            as_of=as_of,
            valid=past.valid,
            missing="keep" if how == "left" else "drop",
            version=past.version,
        )
        there = [each.right.name() for each in found.on]
        made = enrich.enriched(left.rows, past.table, dict(zip(left.on, there, strict=True)), asked_for)
        shown = {each.name(): each for each in output(node.right()) if each.name() in made.columns}
        return self._moved.where(self._moved.back(made, left.shown | shown), found.behind)

    # ---- groups ----------------------------------------------------------------------------------------------

    def _group(self, node: Any, needed: set[int] | None) -> DataFrame:
        listed = [
            each
            for each in catalyst.items(node.aggregateExpressions())
            if needed is None or number(each) in needed
        ]
        groupings = catalyst.items(node.groupingExpressions())
        if not groupings:
            raise self.refused(refusals.NO_GROUPS)
        asked = [
            part
            for each in listed
            for part in catalyst.within(each, lambda part: part.nodeName() == "AggregateExpression")
        ]
        rows = self.walk(node.child(), used([*groupings, *asked]))
        selected: dict[str, Column] = {}
        names = Names()
        known: list[tuple[Any, str]] = []
        for each in groupings:
            name = names.new(each.name() if is_plain(each) else "by", "by")
            selected[name] = self._moved.column(each)
            known.append((each, name))
        by = tuple(selected)
        made_names, aggregates = Names(by), dict[str, str]()
        for part in asked:
            if not any(part.semanticEquals(each) for each, _ in known):
                text = self._aggregate(part, selected, names)
                name = made_names.new(text.partition("(")[0])
                aggregates[name] = text
                known.append((part, name))
        made = grouped.grouped(rows.select(*_aliased(selected)), by, aggregates)
        return self._regrouped(made, listed, known)

    def _aggregate(self, part: Any, selected: dict[str, Column], names: Names) -> str:
        """An aggregate as hw.group knows it. What it is of becomes a column."""
        function = part.aggregateFunction()
        name, of = FUNCTIONS.get(function.prettyName()), catalyst.items(function.children())
        if part.isDistinct():
            raise self.refused(refusals.OF_DISTINCT, part.sql())
        if name is None or len(of) != 1:
            raise self.refused(refusals.NO_AGGREGATE, part.sql())
        every = name == "count" and not of[0].nullable()
        if every and part.filter().isEmpty():
            return "count(*)"
        value = F.lit(1) if every else self._moved.column(of[0])
        if part.filter().isDefined():
            value = F.when(self._moved.column(part.filter().get()), value)
        argument = names.new(of[0].name() if is_plain(of[0]) else "of", "of")
        selected[argument] = value
        return f"{name}({argument})"

    def _regrouped(
        self, made: DataFrame, listed: Sequence[Any], known: Sequence[tuple[Any, str]]
    ) -> DataFrame:
        """What is selected of groups, in which expressions that are known have become columns."""
        there = {each.name(): each for each in output(catalyst.plan(made))}

        def replaced(expression: Any) -> Any:
            for each, name in known:
                if expression.semanticEquals(each):
                    return there[name]
            children = [replaced(child) for child in catalyst.items(expression.children())]
            return expression.withNewChildren(catalyst.seq(self._rows, children)) if children else expression

        shown = [self._moved.made(replaced(each)).alias(each.name()) for each in listed]
        return self._moved.to(made.select(*shown), listed)

    def _distinct(self, node: Any) -> DataFrame:
        rows = self.walk(node.child(), None)
        names = Names()
        shown = {names.new(each.name()): each for each in output(node)}
        selected = rows.select(*_aliased({name: self._moved.column(each) for name, each in shown.items()}))
        return self._moved.back(grouped.grouped(selected, tuple(shown), {}), shown)


def _how(node: Any) -> str | None:
    return KINDS.get(node.joinType().sql())


def _numbers(node: Any) -> set[int]:
    return {number(each) for each in output(node)}


def _wanted(node: Any, needed: set[int] | None) -> set[int]:
    return set(_numbers(node)) if needed is None else set(needed)


def _equality(condition: Any, left: set[int], right: set[int]) -> Equality | None:
    """What both sides have in common, if that is what a condition says."""
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
