"""Hidden columns: what rows that may still change say about themselves, on their way out of a view.

    _gone     true: the row of this key is no longer in the view, whatever its other columns say
    _until    the row is complete when the watermark has reached this time
    _weight   of rows of tables (``pipeline/operator/weights.py``): 1 inserts the row, -1 retracts it

Operators add them to their rows, and they follow the rows through ``select``. A filter after an aggregate
would insert a row and never retract it when it no longer passes; here the filter marks the row as gone
instead. Rows of a table need no mark: a row that a change retracts has passed the filter when it was
inserted, or has not.
"""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headwater.declare.spec import View
from headwater.pipeline import refusals
from headwater.pipeline.operator import weights
from headwater.pipeline.operator.shell import FILE
from headwater.pipeline.spark import catalyst
from headwater.pipeline.wire.wire import GONE, UNTIL, WEIGHT, is_window

__all__ = ["HIDDEN", "followed", "until_expression"]

HIDDEN = (GONE, UNTIL)
THROUGH = {"Project", "Filter", "SubqueryAlias", "View", "CollectMetrics"}
"""Nodes that handle each row by itself."""
AGGREGATES = {"AggregateExpression"}
"""Expressions over the rows of a group."""


def followed(rows: DataFrame, view: View) -> DataFrame:
    """The rows with their hidden columns. Raises UsageError if a step consumes rows that may still change.

    In a view that appends no row replaces another, so none has to be retracted: its filters stay as they are.
    """
    rows = weights.carry_weights(f"view {view.name!r}", rows)
    if view.append and WEIGHT in rows.columns:
        raise refusals.APPENDS.error(view=f"view {view.name!r}")
    plan = catalyst.plan(rows)
    if not _may_change(plan):
        return rows
    if not view.append:
        _check_key(plan, view)
    return catalyst.frame(rows, _walk(rows, plan, view))


def until_expression(kind: StructType, key: tuple[str, ...]) -> str | None:
    """SQL for the time when a row is complete, in microseconds; None for rows that never are."""
    if UNTIL in kind.names:
        return f"unix_micros({UNTIL})"
    ends = [f"`{name}`.end" for name in key if is_window(kind[name].dataType)]
    if not ends:
        return None
    return f"unix_micros(array_max(array({', '.join(ends)})))"


def _walk(rows: DataFrame, node: Any, view: View) -> Any:
    """Edits the part of a plan above the step that makes changing rows, from the top down."""
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
            column
            for column in catalyst.items(child.output())
            if column.name() in HIDDEN and not _has(node, column.name())
        ]
        columns = node.projectList()
        for column in missing:
            columns = columns.appended(column)
        return node.copy(columns, child)
    return node.withNewChildren(catalyst.seq(rows, [child]))


def _may_change(plan: Any) -> bool:
    """Whether a plan makes rows that may still change: aggregates, and operators with hidden columns."""
    return bool(catalyst.find(plan, {"Aggregate"})) or any(catalyst.mentions(plan, name) for name in HIDDEN)


def _check_key(plan: Any, view: View) -> None:
    """Refuses a key that comes from an aggregate: rows of a groupBy replace one another by their key."""
    wanted = {
        _number(column): column.name()
        for column in catalyst.items(plan.output())
        if column.name() in view.key
    }
    aggregated = _aggregated(plan, wanted)
    if aggregated:
        raise refusals.AGGREGATED_KEY.error(view=f"view {view.name!r}", column=repr(aggregated[0]))


def _aggregated(node: Any, wanted: dict[int, str]) -> list[str]:
    """The names of those ``wanted`` columns that come from aggregates, or from a generator on them."""
    kind = node.nodeName()
    if weights.is_ours(node):
        return []
    if kind == "Aggregate":
        columns = [
            column for column in catalyst.items(node.aggregateExpressions()) if _number(column) in wanted
        ]
        return [wanted[_number(column)] for column in columns if catalyst.find(column, AGGREGATES)]
    if kind == "Project":
        columns = [column for column in catalyst.items(node.projectList()) if _number(column) in wanted]
        wanted = {
            _number(used): wanted[_number(column)]
            for column in columns
            for used in catalyst.items(column.references().toSeq())
        }
    elif kind == "Generate" and catalyst.find(node, {"Aggregate"}):
        return [column.name() for column in catalyst.items(node.generatorOutput())]
    return [name for child in catalyst.items(node.children()) for name in _aggregated(child, wanted)]


def _number(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _hides(node: Any) -> bool:
    return any(_has(node, name) for name in HIDDEN)


def _has(node: Any, name: str) -> bool:
    return catalyst.column(node, name) is not None


def _check(node: Any, view: View) -> None:
    """Refuses steps on rows that are retracted later, since Spark would count both.

    Our operators check their own.
    """
    if weights.is_ours(node) or _hides(node):
        return
    for child in catalyst.items(node.children()):
        if _takes_back(child):
            raise refusals.MAY_CHANGE.error(view=f"view {view.name!r}", kind=node.nodeName())


def _takes_back(node: Any) -> bool:
    """Whether rows of a plan may be retracted, also if a select has left out the columns that say so."""
    if weights.is_ours(node) or _hides(node):
        return _hides(node)
    return any(_takes_back(child) for child in catalyst.items(node.children()))


def _settled(condition: Any, child: Any) -> bool:
    """Whether the outcome of a filter never changes for a row: it uses only columns of the grouping."""
    used = {column.exprId() for column in catalyst.items(condition.references().toSeq())}
    aggregates = catalyst.find(child, {"Aggregate"})
    if not aggregates:
        return any(column.name() == FILE for column in catalyst.items(condition.references().toSeq()))
    grouped = {
        column.exprId()
        for column in catalyst.items(aggregates[0].aggregateExpressions())
        if not catalyst.find(column, AGGREGATES)
    }
    return used <= grouped


def _marked(rows: DataFrame, condition: Any, child: Any) -> Any:
    """The rows below a filter; those that do not pass are marked as gone."""
    expressions = catalyst.package(rows.sparkSession)
    marked = catalyst.plan(catalyst.frame(rows, child).selectExpr("*", f"true AS {GONE}"))
    alias = marked.projectList().last()
    gone = expressions.Not(expressions.EqualNullSafe(condition, alias.child()))
    kept = []
    for column in catalyst.items(child.output()):
        if column.name() == GONE:
            gone = expressions.Or(expressions.EqualNullSafe(column, alias.child()), gone)
        else:
            kept.append(column)
    return marked.copy(catalyst.seq(rows, [*kept, alias.withNewChildren(catalyst.seq(rows, [gone]))]), child)
