"""The column ``_weight`` is carried through a plan with the rows of tables, although no select names it.

Select, filter, union and explode look at each row alone, so they are right for retracted rows as well as for
inserted ones. Spark's groupBy, join and distinct would count a retracted row as one more, so they are
refused.
"""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipeline import refusals
from headwater.pipeline.arrow.shard_blocks import BLOCK
from headwater.pipeline.spark import catalyst
from headwater.pipeline.wire.wire import GONE, WEIGHT

__all__ = [
    "INTO",
    "carry_weights",
    "check_insert_only",
    "has_retractions",
    "is_ours",
    "unstable_expression",
]

PASS_THROUGH = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "Repartition",
    "RepartitionByExpression",
    "SubqueryAlias",
    "View",
}
"""Nodes that pass every column of their only child on, row by row."""
OPERATOR = "MapInArrow"
INTO = {"_key", BLOCK}
"""The input of one of Headwater's operators has one of these columns."""
INSTEAD = {
    "Aggregate": "hw.group",
    "Deduplicate": "hw.group",
    "DeduplicateWithinWatermark": "hw.group",
    "Distinct": "hw.group",
    "Join": "hw.join",
    "Intersect": "hw.join",
    "Except": "hw.join",
}
CLOCKS = {
    "CurrentBatchTimestamp",
    "CurrentDate",
    "CurrentTime",
    "CurrentTimestamp",
    "LocalTimestamp",
    "Now",
}
"""Expressions that Spark calls deterministic, although their value is another in each batch."""
SHOWN = {"Aggregate": "groupBy", "Deduplicate": "distinct", "Distinct": "distinct", "Join": "join"}


def carry_weights(what: str, rows: DataFrame) -> DataFrame:
    """The rows with their ``_weight``, if they have one.

    UsageError, naming ``what``, if a step cannot handle retracted rows.
    """
    plan = catalyst.plan(rows)
    if not catalyst.mentions(plan, WEIGHT):
        return rows
    changed, weight = _walk(what, rows, plan)
    return catalyst.frame(rows, changed) if weight is not None else rows


def check_insert_only(what: str, rows: DataFrame) -> None:
    """Refuses a stream that emits a row again when it changes: it would count as one more row of a table."""
    if rows.isStreaming and _emits_again(catalyst.plan(rows)):
        raise refusals.SENT_AGAIN.error(view=what)


def _emits_again(node: Any) -> bool:
    if _weight(node) is not None:
        return False
    names = {column.name() for column in catalyst.items(node.output())} if is_ours(node) else set()
    if node.nodeName() == "Aggregate" or GONE in names:
        return True
    return not is_ours(node) and any(_emits_again(child) for child in catalyst.items(node.children()))


def _walk(what: str, rows: DataFrame, node: Any) -> tuple[Any, Any]:
    """A part of a plan whose output has the weight, and that column; None if its rows have no weight."""
    kind = node.nodeName()
    children = catalyst.items(node.children())
    if not children or is_ours(node) or kind == "Expand":  # rows below an Expand have theirs (shared_scan.py)
        return node, _weight(node)
    walked = [_walk(what, rows, child) for child in children]
    if all(weight is None for _, weight in walked):
        return node, _weight(node)  # a select may add one
    if kind == "Union":
        return _union(what, rows, node, walked)
    if kind not in PASS_THROUGH and kind != "Project":
        raise refusals.AFTER_TABLE.error(
            view=what, kind=SHOWN.get(kind, kind), operator=INSTEAD.get(kind, "hw.group or hw.join")
        )
    if unstable := unstable_expression(node):
        raise refusals.CLOCK.error(got=unstable, view=what)
    ((child, weight),) = walked
    if kind == "Project":
        has_weight = _weight(node) is not None
        columns = node.projectList() if has_weight else node.projectList().appended(weight)
        changed = node.copy(columns, child)
    else:
        changed = node.withNewChildren(catalyst.seq(rows, [child]))
    return changed, _weight(changed)


def unstable_expression(node: Any) -> str:
    """An expression of a node whose value may be another in each batch, as SQL; empty if there is none."""
    if clock := catalyst.part(node, CLOCKS):
        return str(clock[1].sql())
    if node.deterministic():
        return ""
    expressions = catalyst.items(node.expressions())
    return next((str(expression.sql()) for expression in expressions if not expression.deterministic()), "")


def _union(what: str, rows: DataFrame, node: Any, walked: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """A union of tables and streams, in which the rows of streams get the weight 1."""
    if _weight(node) is not None:
        changed = node.withNewChildren(catalyst.seq(rows, [child for child, _ in walked]))
        return changed, _weight(changed)
    parts = []
    for before, (child, weight) in zip(catalyst.items(node.children()), walked, strict=True):
        frame = catalyst.frame(rows, child)
        check_insert_only(what, frame)
        columns = [column for column in catalyst.items(before.output()) if column.name() != WEIGHT]
        if weight is None:
            weight = catalyst.plan(frame.select(F.lit(1).alias(WEIGHT))).projectList().head()  # noqa: PLW2901
        project = catalyst.plan(frame.select(F.lit(1)))
        parts.append(project.copy(catalyst.seq(rows, [*columns, weight]), child))
    changed = node.withNewChildren(catalyst.seq(rows, parts))
    return changed, _weight(changed)


def is_ours(node: Any) -> bool:
    """Whether a node is one of Headwater's operators; its input was checked when the operator was applied."""
    return catalyst.reads(node, OPERATOR, INTO)


def has_retractions(node: Any) -> bool:
    """Whether a plan retracts rows, also if a select has left out the column ``_weight``."""
    if _weight(node) is not None:
        return True
    return not is_ours(node) and any(map(has_retractions, catalyst.items(node.children())))


def _weight(node: Any) -> Any:
    return catalyst.column(node, WEIGHT)
