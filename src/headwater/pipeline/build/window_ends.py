"""Window ends: when the rows of a view are complete, also of rows whose select has left the window out.

A ``groupBy`` by a window may publish only its start, or nothing of it. Then the end of the window is carried
through the select as a hidden column, which is not published: the driver needs it while inputs are silent.
"""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.declare.spec import View
from headwater.pipeline.build import hidden_columns
from headwater.pipeline.spark import catalyst
from headwater.pipeline.spark.catalyst import DELAY

__all__ = ["END", "ended"]

END = "_end"
WINDOW = "struct<start:timestamp,end:timestamp>"


def ended(rows: DataFrame, view: View) -> tuple[DataFrame, str | None]:
    """The rows, and SQL for the time when each is complete, in microseconds; None if nothing says it."""
    until = hidden_columns.until_expression(rows.schema, view.key)
    if until is not None:
        return rows, until
    plan, end = _carried(rows, catalyst.plan(rows))
    return (catalyst.frame(rows, plan), f"unix_micros({END})") if end is not None else (rows, None)


def _carried(rows: DataFrame, node: Any) -> tuple[Any, Any]:
    """A plan with the end of its windows as its last column; the plan itself and None without windows."""
    kind = node.nodeName()
    if kind == "Aggregate":
        return _with_end(rows, node)
    if kind not in hidden_columns.THROUGH:
        return node, None
    child, end = _carried(rows, node.child())
    if end is None:
        return node, None
    if kind == "Project":
        return node.copy(node.projectList().appended(end), child), end
    return node.withNewChildren(catalyst.seq(rows, [child])), end


def _with_end(rows: DataFrame, node: Any) -> tuple[Any, Any]:
    """An aggregate with the end of the window by which it groups; of several windows the first."""
    windows = [
        column
        for column in catalyst.items(node.groupingExpressions())
        if column.nodeName() == "AttributeReference"
        and column.metadata().contains(DELAY)
        and column.dataType().simpleString() == WINDOW
    ]
    if not windows:
        return node, None
    bridge = catalyst.of(rows.sparkSession, "org.apache.spark.sql.classic.ExpressionUtils")
    end = ClassicColumn(bridge.column(windows[0])).getField("end").alias(END)
    alias = catalyst.plan(catalyst.frame(rows, node.child()).select(end)).projectList().head()
    outputs = node.aggregateExpressions().appended(alias)
    changed = node.copy(node.groupingExpressions(), outputs, node.child(), node.hint())
    return changed, alias.toAttribute()
