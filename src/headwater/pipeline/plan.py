"""Plan: small edits of a query's analyzed plan, for what DataFrames have no call for.

The ``_version`` of real-time views, one name for each count of invalid records, whether a view keeps something for a time and what it
needs of time otherwise, and the Bloom filter that Spark keeps to itself.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.graph import Graph, View
from headwater.pipeline import catalyst, refusals
from headwater.pipeline.wire import VERSION

__all__ = [
    "DELAY",
    "bloom",
    "check_duplicates",
    "check_tables",
    "check_windows",
    "grouped_by",
    "keeps_time",
    "name_observations",
    "observations",
    "observed",
    "timeless",
    "traced",
    "versioned",
    "watermarks",
]

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
RECORDS = {"LogicalRelation", "StreamingRelation", "StreamingRelationV2"}
"""Nodes that are the records of a topic."""
KEEPING = {
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "SessionWindow",
}
"""Nodes whose state Spark forgets by event time."""
CAST_TIME = "precisetimestampconversion(cast("
"""What a window over something else than a time looks like in a plan."""
DELAY = "spark.watermarkDelayMs"
"""What Spark writes into the description of a column with event time."""


def watermarks(rows: DataFrame) -> int:
    """How often event time is declared in a plan."""
    return len(catalyst.find(catalyst.plan(rows), {"EventTimeWatermark"}))


def keeps_time(rows: DataFrame) -> bool:
    """Whether Spark keeps something in this plan until event time has passed it: windows, joins of streams, duplicates."""
    return any(
        _is_bounded(node) for node in catalyst.find(catalyst.plan(rows), {"Aggregate", "Join", *KEEPING})
    )


def check_tables(rows: DataFrame, view: View) -> None:
    """Refuses a table that is used twice: each use would be read at positions of its own, and both would share one state."""
    names = observations(rows)
    if any(names.count(name) > 1 for name in names if name.startswith("state current")):
        raise refusals.TABLE_TWICE.error(view=f"view {view.name!r}")


def check_duplicates(rows: DataFrame, view: View) -> None:
    """Refuses what goes by the delay of Spark's own watermark, which is none of the view's: it would keep what it has seen for ever."""
    if catalyst.find(catalyst.plan(rows), {"DeduplicateWithinWatermark"}):
        raise refusals.WITHIN_WATERMARK.error(view=f"view {view.name!r}")


def check_windows(rows: DataFrame, view: View) -> None:
    """Refuses a window over text: Spark would read times in it, and find none."""
    for node in catalyst.find(catalyst.plan(rows), {"Project"}):
        if CAST_TIME not in node.simpleString(catalyst.FIELDS_MAX):
            continue
        for each in catalyst.items(node.projectList()):
            times = catalyst.within(each, lambda part: part.nodeName() == "PreciseTimestampConversion")
            for cast in (part for time in times for part in catalyst.items(time.children())):
                if cast.nodeName() == "Cast" and cast.child().dataType().typeName() == "string":
                    raise refusals.TEXT_WINDOW.error(
                        got=f"{cast.child().sql()}, a string", view=f"view {view.name!r}"
                    )


def _is_bounded(node: Any) -> bool:
    kind = node.nodeName()
    if kind == "Aggregate":
        attributes = (
            attribute
            for each in catalyst.items(node.groupingExpressions())
            for attribute in catalyst.items(each.references().toSeq())
        )
        return any(attribute.metadata().contains(DELAY) for attribute in attributes)
    return kind in KEEPING or (
        kind == "Join" and all(child.isStreaming() for child in catalyst.items(node.children()))
    )


def observations(rows: DataFrame) -> list[str]:
    """The names of what is observed in a plan."""
    return catalyst.observations(catalyst.plan(rows))


def observed(name: str) -> str:
    """The name that an observation was given."""
    return name.partition("#")[0]


def name_observations(rows: DataFrame) -> DataFrame:
    """Numbers the observations of a plan, NAME#n, if two have one name.

    A stream that is used twice is read twice, at positions of their own; under one name Spark reports only one count.
    """
    names = observations(rows)
    if len(names) == len(set(names)):
        return rows
    seen = 0

    def walk(node: Any) -> Any:
        nonlocal seen
        children = [walk(child) for child in catalyst.items(node.children())]
        node = node.withNewChildren(catalyst.seq(rows, children)) if children else node
        if node.nodeName() == "CollectMetrics":
            seen += 1
            return node.copy(f"{node.name()}#{seen}", node.metrics(), node.child(), node.dataframeId())
        return node

    return catalyst.frame(rows, walk(catalyst.plan(rows)))


def timeless(rows: DataFrame) -> DataFrame:
    """The plan without its declarations of event time, for one that keeps nothing for a time: Spark compiles no query across them."""

    def walk(node: Any) -> Any:
        children = [walk(child) for child in catalyst.items(node.children())]
        if node.nodeName() == "EventTimeWatermark":
            return children[0]
        return node.withNewChildren(catalyst.seq(rows, children)) if children else node

    return catalyst.frame(rows, walk(catalyst.plan(rows))) if watermarks(rows) else rows


def versioned(rows: DataFrame, view: View, graph: Graph) -> DataFrame:
    """The rows with ``_version``, a number that only grows for a key.

    An aggregate gets a hidden ``count(*)``; a projection the source offset, which counts within one partition and
    therefore needs the stream's key in the view's key. Anything else is refused.
    """

    def walk(node: Any) -> tuple[Any, Any]:
        kind = node.nodeName()
        if kind == "Aggregate":
            counted = catalyst.frame(rows, node.child()).agg(F.count(F.lit(1)).alias(VERSION))
            alias = catalyst.plan(counted).aggregateExpressions().head()
            outputs = node.aggregateExpressions().appended(alias)
            return node.copy(
                node.groupingExpressions(), outputs, node.child(), node.hint()
            ), alias.toAttribute()
        if kind == "Project":
            child, version = walk(node.child())
            return node.copy(node.projectList().appended(version), child), version
        if kind in PASSING:
            child, version = walk(node.child())
            return node.withNewChildren(catalyst.seq(rows, [child])), version
        if kind.startswith("StreamingRelation"):
            _check_projection(view, graph)
            return node, next(
                attribute for attribute in catalyst.items(node.output()) if attribute.name() == "offset"
            )
        raise refusals.REALTIME_STEP.error(view=f"view {view.name!r}", kind=kind)

    plan, version = walk(catalyst.plan(rows))
    if version.name() != VERSION:
        columns = [F.col(f"`{name}`") for name in rows.columns]
        return catalyst.frame(rows, plan).select(*columns, F.col("offset").alias(VERSION))
    return catalyst.frame(rows, plan)


def traced(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame | None:
    """The rows with columns of the record that each was made of, by their new names; None when a row may come of several records."""
    given = [f"{of} AS {name}" for name, of in columns.items()]

    def walk(node: Any) -> tuple[Any, list[Any]]:
        kind = node.nodeName()
        if kind in RECORDS and set(columns.values()) <= {a.name() for a in catalyst.items(node.output())}:
            made = catalyst.plan(catalyst.frame(rows, node).selectExpr("*", *given))
            return made, catalyst.items(made.output())[-len(columns) :]
        if kind != "Project" and kind not in PASSING:
            return node, []
        child, places = walk(node.child())
        if kind != "Project":
            return node.withNewChildren(catalyst.seq(rows, [child])), places
        listed = node.projectList()
        for each in places:
            listed = listed.appended(each)
        return node.copy(listed, child), places

    plan, places = walk(catalyst.plan(rows))
    return catalyst.frame(rows, plan) if places else None


def grouped_by(rows: DataFrame, key: tuple[str, ...]) -> bool:
    """Whether rows come out of a groupBy of Spark's, with all that it groups by in their key: those of one key are in one partition then, and stay."""
    node = catalyst.plan(rows)
    places = {each.exprId() for each in catalyst.items(node.output()) if each.name() in key}
    while node.nodeName() in {"Project", "Filter", "SubqueryAlias", "CollectMetrics", "EventTimeWatermark"}:
        if node.nodeName() == "Project":
            places = {
                each.exprId()
                for each in _at(node.projectList(), places)
                if each.nodeName() == "AttributeReference"
            }
        node = node.child()
    if node.nodeName() != "Aggregate" or not node.groupingExpressions().size():
        return False
    named = _at(node.aggregateExpressions(), places)
    return all(
        any(each.semanticEquals(group) for each in named)
        for group in catalyst.items(node.groupingExpressions())
    )


def _at(expressions: Any, places: set[Any]) -> list[Any]:
    """What is computed for some columns of a node."""
    found = [each for each in catalyst.items(expressions) if each.exprId() in places]
    return [each.child() if each.nodeName() == "Alias" else each for each in found]


def _check_projection(view: View, graph: Graph) -> None:
    for stream in graph.inputs(view).values():
        if stream.pattern is not None or not set(stream.key) <= set(view.key):
            raise refusals.REALTIME_KEY.error(
                got=f"key {', '.join(view.key)}", view=f"view {view.name!r}", key=", ".join(stream.key)
            )


def bloom(column: Column, capacity: int, bits: int) -> Column:
    """An aggregate: the Bloom filter of a column of text, with which Spark speeds up joins. Null when there are no values.

    From Spark's bitmap functions it could be made too, with an aggregate for each hash and sorted rows: five times the work.
    """
    spark = SparkSession.active()
    bridge = catalyst.of(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    child, *sizes = (
        bridge.expression(each._jc)  # noqa: SLF001
        for each in (column, F.lit(capacity).cast("bigint"), F.lit(bits).cast("bigint"))
    )
    kind = catalyst.of(spark, "org.apache.spark.sql.catalyst.expressions.aggregate.BloomFilterAggregate")
    return ClassicColumn(bridge.column(kind(child, *sizes).toAggregateExpression()))
