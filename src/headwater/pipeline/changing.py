"""Changing: rows that may still change on their way out, and what a view says about them in hidden columns.

    _gone     true: the row of this key is no longer in the view, whatever its other columns say
    _until    the row is complete once the watermark has reached this time
    _weight   of rows of tables (``weights.py``): 1, the row comes in; -1, it goes out

An operator gives them to its rows, and they follow the rows through ``select``. A filter behind an aggregate would let a row in and
never take it out again when it no longer fits; here it marks the row as gone instead. Behind a table it needs no mark: what a change takes
out has passed the filter before, or has not.
"""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headwater.graph import View
from headwater.pipeline import catalyst, refusals, weights
from headwater.pipeline.operator import FILE
from headwater.pipeline.wire import GONE, UNTIL, WEIGHT, is_window

__all__ = ["HIDDEN", "followed", "until_expression"]

HIDDEN = (GONE, UNTIL)
THROUGH = {"Project", "Filter", "SubqueryAlias", "View", "CollectMetrics"}
"""Nodes that say something of each row by itself."""


def followed(rows: DataFrame, view: View) -> DataFrame:
    """The rows with the hidden columns that belong to them. UsageError when something is made of rows that may still change.

    In a view that appends no row replaces another, so that none has to be taken out: its filters stay as they are.
    """
    rows = weights.carried(f"view {view.name!r}", rows)
    if view.append and WEIGHT in rows.columns:
        raise refusals.APPENDS.error(view=f"view {view.name!r}")
    plan = catalyst.plan(rows)
    if not _may_change(plan):
        return rows
    if not view.append:
        _check_key(plan, view)
    return catalyst.frame(rows, _walk(rows, plan, view))


def until_expression(kind: StructType, key: tuple[str, ...]) -> str | None:
    """SQL for when a row is complete, in microseconds; None for rows that never are."""
    if UNTIL in kind.names:
        return f"unix_micros({UNTIL})"
    ends = [f"`{name}`.end" for name in key if is_window(kind[name].dataType)]
    if not ends:
        return None
    return f"unix_micros(array_max(array({', '.join(ends)})))"


def _walk(rows: DataFrame, node: Any, view: View) -> Any:
    """The part of a plan that is above what makes changing rows, from the top down."""
    kind = node.nodeName()
    if kind not in THROUGH:
        _check(node, view)
        return node
    child = _walk(rows, node.child(), view)
    plain = view.append or _has(node, WEIGHT)
    if kind == "Filter" and not plain and not _settled(node.condition(), child):
        return _marked(rows, node.condition(), child)
    if kind == "Project":
        missing = [
            each
            for each in catalyst.items(child.output())
            if each.name() in HIDDEN and not _has(node, each.name())
        ]
        listed = node.projectList()
        for each in missing:
            listed = listed.appended(each)
        return node.copy(listed, child)
    return node.withNewChildren(catalyst.seq(rows, [child]))


def _may_change(plan: Any) -> bool:
    """Whether a plan makes rows that may still change: aggregates, and operators that say so."""
    return bool(catalyst.find(plan, {"Aggregate"})) or any(catalyst.mentions(plan, name) for name in HIDDEN)


def _check_key(plan: Any, view: View) -> None:
    """A row of Spark's groupBy replaces the one before it by its key, so the key may be made of nothing but what rows are grouped by."""
    wanted = {_number(each): each.name() for each in catalyst.items(plan.output()) if each.name() in view.key}
    aggregated = _aggregated(plan, wanted)
    if aggregated:
        raise refusals.AGGREGATED_KEY.error(view=f"view {view.name!r}", column=repr(aggregated[0]))


def _aggregated(node: Any, wanted: dict[int, str]) -> list[str]:
    """The names of those columns, by their numbers, that are made of aggregates or by a generator from them."""
    kind = node.nodeName()
    if weights.is_ours(node):
        return []
    if kind == "Aggregate":
        made = [each for each in catalyst.items(node.aggregateExpressions()) if _number(each) in wanted]
        return [wanted[_number(each)] for each in made if catalyst.within(each, _aggregates)]
    if kind == "Project":
        made = [each for each in catalyst.items(node.projectList()) if _number(each) in wanted]
        wanted = {
            _number(one): wanted[_number(each)]
            for each in made
            for one in catalyst.items(each.references().toSeq())
        }
    elif kind == "Generate" and catalyst.find(node, {"Aggregate"}):
        return [each.name() for each in catalyst.items(node.generatorOutput())]
    return [name for child in catalyst.items(node.children()) for name in _aggregated(child, wanted)]


def _number(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _aggregates(part: Any) -> bool:
    return bool(part.nodeName() == "AggregateExpression")


def _hides(node: Any) -> bool:
    names = node.output().mkString("\n")  # one call, where looking at each column is one for each
    return any(f"{name}#" in names and _has(node, name) for name in HIDDEN)


def _has(node: Any, name: str) -> bool:
    return any(each.name() == name for each in catalyst.items(node.output()))


def _check(node: Any, view: View) -> None:
    """Nothing may be made of rows that are taken back later, since Spark would count both. Operators of ours have looked at theirs."""
    if weights.is_ours(node) or _hides(node):
        return
    for child in catalyst.items(node.children()):
        if _takes_back(child):
            raise refusals.MAY_CHANGE.error(view=f"view {view.name!r}", kind=node.nodeName())


def _takes_back(node: Any) -> bool:
    """Whether rows of a plan may be taken back by what makes them, also where a select has left out the columns that say so."""
    if weights.is_ours(node) or _hides(node):
        return _hides(node)
    return any(_takes_back(child) for child in catalyst.items(node.children()))


def _settled(condition: Any, child: Any) -> bool:
    """Whether a row's answer to a filter never changes: it asks for nothing but what rows are grouped by."""
    asked = {each.exprId() for each in catalyst.items(condition.references().toSeq())}
    aggregates = catalyst.find(child, {"Aggregate"})
    if not aggregates:
        return any(each.name() == FILE for each in catalyst.items(condition.references().toSeq()))
    grouped = {
        each.exprId()
        for each in catalyst.items(aggregates[0].aggregateExpressions())
        if not catalyst.within(each, _aggregates)
    }
    return asked <= grouped


def _marked(rows: DataFrame, condition: Any, child: Any) -> Any:
    """The rows below a filter; those that do not fit are marked as gone."""
    expressions = catalyst.of(rows.sparkSession, "org.apache.spark.sql.catalyst.expressions")
    marked = catalyst.plan(catalyst.frame(rows, child).selectExpr("*", f"true AS {GONE}"))
    alias = marked.projectList().last()
    gone = expressions.Not(expressions.EqualNullSafe(condition, alias.child()))
    kept = []
    for each in catalyst.items(child.output()):
        if each.name() == GONE:
            gone = expressions.Or(expressions.EqualNullSafe(each, alias.child()), gone)
        else:
            kept.append(each)
    return marked.copy(catalyst.seq(rows, [*kept, alias.withNewChildren(catalyst.seq(rows, [gone]))]), child)
