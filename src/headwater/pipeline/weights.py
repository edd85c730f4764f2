"""Weights: ``_weight`` follows the rows of tables through a plan, whether a select names it or not.

Select, filter, union and explode say something of each row by itself: they are as right for a row that is taken out as for one that comes
in. Spark's groupBy, join and distinct would count both, and are refused.
"""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipeline import catalyst, refusals
from headwater.pipeline.blocks import BLOCK
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = ["INTO", "carried", "check_settled", "is_ours", "passing", "weighted"]

THROUGH = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "Repartition",
    "RepartitionByExpression",
    "SubqueryAlias",
    "View",
}
"""Nodes that hand on every column of their one child, row by row."""
OPERATOR = "MapInArrow"
INTO = {"_key", BLOCK}
"""What goes into an operator of ours has one of these."""
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
"""Expressions that Spark calls deterministic, and that say something else in each batch."""
WORDS = ("current_", "localtimestamp", "now()", "curdate")
"""What their text has."""
SHOWN = {"Aggregate": "groupBy", "Deduplicate": "distinct", "Distinct": "distinct", "Join": "join"}


def carried(what: str, rows: DataFrame) -> DataFrame:
    """The rows with their ``_weight``, if they have one. UsageError, naming ``what``, when something is made of them that cannot be right."""
    plan = catalyst.plan(rows)
    if not catalyst.mentions(plan, WEIGHT):
        return rows
    changed, weight = _walk(what, rows, plan)
    return catalyst.frame(rows, changed) if weight is not None else rows


def check_settled(what: str, rows: DataFrame) -> None:
    """Refuses rows of a stream that come again whenever they change: beside rows of tables each would count as one more."""
    if rows.isStreaming and _comes_again(catalyst.plan(rows)):
        raise refusals.COMES_AGAIN.error(view=what)


def _comes_again(node: Any) -> bool:
    if _weight(node) is not None:
        return False
    names = {each.name() for each in catalyst.items(node.output())} if is_ours(node) else set()
    if node.nodeName() == "Aggregate" or GONE in names:
        return True
    return not is_ours(node) and any(_comes_again(child) for child in catalyst.items(node.children()))


def _walk(what: str, rows: DataFrame, node: Any) -> tuple[Any, Any]:
    """A part of a plan with the weight in what it puts out, and that column; None where its rows have none."""
    kind = node.nodeName()
    children = catalyst.items(node.children())
    if (
        not children or is_ours(node) or kind == "Expand"
    ):  # rows that went into an Expand had theirs (``once.py``)
        return node, _weight(node)
    walked = [_walk(what, rows, child) for child in children]
    weights = [weight for _, weight in walked]
    if all(weight is None for weight in weights):
        return node, _weight(node)  # perhaps a select gives them one
    if kind == "Union":
        return _union(what, rows, node, walked)
    if kind not in THROUGH and kind != "Project":
        raise refusals.BEHIND_TABLE.error(
            view=what, kind=SHOWN.get(kind, kind), operator=INSTEAD.get(kind, "hw.group or hw.join")
        )
    if found := passing(node):
        raise refusals.CLOCK.error(got=found, view=what)
    ((child, weight),) = walked
    if kind == "Project":
        given = _weight(node)
        listed = node.projectList() if given is not None else node.projectList().appended(weight)
        made = node.copy(listed, child)
        return made, _weight(made)
    made = node.withNewChildren(catalyst.seq(rows, [child]))
    return made, _weight(made)


def passing(node: Any) -> str:
    """An expression of a node that says something else in another batch, as SQL; empty if there is none."""
    text = str(node.expressions().mkString("\n")).lower()
    if node.deterministic() and not any(word in text for word in WORDS):  # two calls, for nearly every node
        return ""
    for each in catalyst.items(node.expressions()):
        if not each.deterministic() or catalyst.within(each, lambda part: part.nodeName() in CLOCKS):
            return str(each.sql())
    return ""


def _union(what: str, rows: DataFrame, node: Any, walked: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Rows of streams among those of tables come in and stay."""
    if _weight(node) is not None:
        made = node.withNewChildren(catalyst.seq(rows, [child for child, _ in walked]))
        return made, _weight(made)
    parts = []
    for before, (child, weight) in zip(catalyst.items(node.children()), walked, strict=True):
        check_settled(what, catalyst.frame(rows, child))
        names = [each for each in catalyst.items(before.output()) if each.name() != WEIGHT]
        one = catalyst.plan(catalyst.frame(rows, child).select(F.lit(1).alias(WEIGHT))).projectList().head()
        parts.append(
            catalyst.plan(catalyst.frame(rows, child).select(F.lit(1))).copy(
                catalyst.seq(rows, [*names, weight if weight is not None else one]), child
            )
        )
    made = node.withNewChildren(catalyst.seq(rows, parts))
    return made, _weight(made)


def is_ours(node: Any) -> bool:
    """Whether a node is an operator of ours: what comes into it was looked at when it was applied."""
    return node.nodeName() == OPERATOR and any(
        each.name() in INTO
        for child in catalyst.items(node.children())
        for each in catalyst.items(child.output())
    )


def weighted(node: Any) -> bool:
    """Whether rows of a plan go out again, also where a select has left out the column that says so."""
    if _weight(node) is not None:
        return True
    return not is_ours(node) and any(map(weighted, catalyst.items(node.children())))


def _weight(node: Any) -> Any:
    output = node.output()
    if f"{WEIGHT}#" not in output.mkString("\n"):  # one call, where looking at each column is one for each
        return None
    return next((each for each in catalyst.items(output) if each.name() == WEIGHT), None)
