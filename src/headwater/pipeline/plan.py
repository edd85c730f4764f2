"""Plan: small edits of a query's analyzed plan, for what DataFrames have no call for.

Everything that reaches into Spark's Catalyst from Python stands here: the ``_version`` of real-time views and
one name for each count of invalid records.
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.pipeline.wire import VERSION

__all__ = ["keeps_time", "name_observations", "observations", "versioned", "watermarks"]

PASSING = {
    "CollectMetrics",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "RepartitionByExpression",
    "SubqueryAlias",
    "View",
}
"""Nodes that hand on every column of their one child."""
KEEPING = {
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "SessionWindow",
}
"""Nodes whose state Spark forgets by event time."""
DELAY = "spark.watermarkDelayMs"
"""What Spark writes into the description of a column with event time."""


def watermarks(rows: DataFrame) -> int:
    """How often event time is declared in a plan."""
    return len(_find(_plan(rows), lambda node: node.nodeName() == "EventTimeWatermark"))


def keeps_time(rows: DataFrame) -> bool:
    """Whether Spark keeps something in this plan until event time has passed it: windows, joins of streams, duplicates."""
    return bool(_find(_plan(rows), _is_bounded))


def _is_bounded(node: Any) -> bool:
    kind = node.nodeName()
    if kind == "Aggregate":
        attributes = (
            attribute for each in _list(node.groupingExpressions()) for attribute in _set(each.references())
        )
        return any(attribute.metadata().contains(DELAY) for attribute in attributes)
    return kind in KEEPING or (
        kind == "Join" and all(child.isStreaming() for child in _list(node.children()))
    )


def observations(rows: DataFrame) -> set[str]:
    """The names of what is observed in a plan."""
    return {str(node.name()) for node in _find(_plan(rows), lambda node: node.nodeName() == "CollectMetrics")}


def name_observations(rows: DataFrame) -> DataFrame:
    """Numbers the observations of a plan.

    A stream that is used twice is read twice, at positions of their own; under one name Spark reports only one count.
    """
    seen = 0

    def walk(node: Any) -> Any:
        nonlocal seen
        children = [walk(child) for child in _list(node.children())]
        node = node.withNewChildren(_seq(rows, children)) if children else node
        if node.nodeName() == "CollectMetrics":
            seen += 1
            return node.copy(f"{node.name()}#{seen}", node.metrics(), node.child(), node.dataframeId())
        return node

    return _frame(rows, walk(_plan(rows)))


def versioned(rows: DataFrame, view: View, graph: Graph) -> DataFrame:
    """The rows with ``_version``, a number that only grows for a key.

    An aggregate gets a hidden ``count(*)``; a projection the source offset, which counts within one partition and
    therefore needs the stream's key in the view's key. Anything else is refused.
    """

    def walk(node: Any) -> tuple[Any, Any]:
        kind = node.nodeName()
        if kind == "Aggregate":
            counted = _frame(rows, node.child()).agg(F.count(F.lit(1)).alias(VERSION))
            alias = _plan(counted).aggregateExpressions().head()
            outputs = node.aggregateExpressions().appended(alias)
            return node.copy(
                node.groupingExpressions(), outputs, node.child(), node.hint()
            ), alias.toAttribute()
        if kind == "Project":
            child, version = walk(node.child())
            return node.copy(node.projectList().appended(version), child), version
        if kind in PASSING:
            child, version = walk(node.child())
            return node.withNewChildren(_seq(rows, [child])), version
        if kind.startswith("StreamingRelation"):
            _check_projection(view, graph)
            return node, next(attribute for attribute in _list(node.output()) if attribute.name() == "offset")
        raise UsageError(
            f"view {view.name!r} cannot run in real time: it uses {kind}",
            expected="a projection or one groupBy of one stream",
            hint="leave out latency='realtime'",
        )

    plan, version = walk(_plan(rows))
    if version.name() != VERSION:
        columns = [F.col(f"`{name}`") for name in rows.columns]
        return _frame(rows, plan).select(*columns, F.col("offset").alias(VERSION))
    return _frame(rows, plan)


def _check_projection(view: View, graph: Graph) -> None:
    for stream in graph.inputs(view).values():
        if stream.pattern is not None or not set(stream.key) <= set(view.key):
            raise UsageError(
                f"view {view.name!r} cannot run in real time: rows of one key may come from several partitions",
                got=f"key {', '.join(view.key)}",
                expected=f"a key with {', '.join(stream.key)} in it, over one topic",
                hint="or leave out latency='realtime'",
            )


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def _frame(rows: DataFrame, plan: Any) -> DataFrame:
    spark = rows.sparkSession
    jvm: Any = spark._jvm  # noqa: SLF001
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)  # noqa: SLF001


def _find(node: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    below = [found for child in _list(node.children()) for found in _find(child, wanted)]
    return [node, *below] if wanted(node) else below


def _list(items: Any) -> list[Any]:
    return [items.apply(index) for index in range(items.size())]


def _set(items: Any) -> list[Any]:
    return _list(items.toSeq())


def _seq(rows: DataFrame, items: list[Any]) -> Any:
    jvm: Any = rows.sparkSession._jvm  # noqa: SLF001
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)
