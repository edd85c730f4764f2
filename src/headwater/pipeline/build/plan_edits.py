"""Plan edits: checks and small edits of a query's analyzed plan that DataFrames have no method for.

The ``_version`` of real-time views, different names for the counts of invalid records, whether a view keeps
state for a time, and the Bloom filter, which Spark does not offer as a function.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.declare.graph import Graph
from headwater.declare.spec import View
from headwater.pipeline import refusals
from headwater.pipeline.spark import catalyst
from headwater.pipeline.spark.catalyst import DELAY
from headwater.pipeline.wire.wire import VERSION

__all__ = [
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
"""Nodes that pass on every column of their only child."""
RECORDS = {"LogicalRelation", "StreamingRelation", "StreamingRelationV2"}
"""Nodes that are the records of a topic."""
KEEPING = {
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "SessionWindow",
}
"""Nodes whose state Spark drops by event time."""
CAST_TIME = "precisetimestampconversion(cast("
"""The text in a plan of a window over something that is not a time."""


def watermarks(rows: DataFrame) -> int:
    """The number of declarations of event time in a plan."""
    return len(catalyst.find(catalyst.plan(rows), {"EventTimeWatermark"}))


def keeps_time(rows: DataFrame) -> bool:
    """Whether Spark keeps state until event time has passed: for windows, joins of streams, duplicates."""
    return any(
        _is_bounded(node) for node in catalyst.find(catalyst.plan(rows), {"Aggregate", "Join", *KEEPING})
    )


def check_tables(rows: DataFrame, view: View) -> None:
    """Refuses a table that is used twice: two reads at different positions would share one state."""
    names = observations(rows)
    if any(names.count(name) > 1 for name in names if name.startswith("state current")):
        raise refusals.TABLE_TWICE.error(view=f"view {view.name!r}")


def check_duplicates(rows: DataFrame, view: View) -> None:
    """Refuses steps by Spark's own watermark, which is not the view's: they would keep state for ever."""
    if catalyst.find(catalyst.plan(rows), {"DeduplicateWithinWatermark"}):
        raise refusals.WITHIN_WATERMARK.error(view=f"view {view.name!r}")


def check_windows(rows: DataFrame, view: View) -> None:
    """Refuses a window over text: Spark would look for times in it, and find none."""
    for node in catalyst.find(catalyst.plan(rows), {"Project"}):
        if CAST_TIME not in node.simpleString(catalyst.FIELDS_MAX):
            continue
        for column in catalyst.items(node.projectList()):
            times = catalyst.find(column, {"PreciseTimestampConversion"})
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
            for grouping in catalyst.items(node.groupingExpressions())
            for attribute in catalyst.items(grouping.references().toSeq())
        )
        return any(attribute.metadata().contains(DELAY) for attribute in attributes)
    return kind in KEEPING or (
        kind == "Join" and all(child.isStreaming() for child in catalyst.items(node.children()))
    )


def observations(rows: DataFrame) -> list[str]:
    """The names of the observations in a plan."""
    return catalyst.observations(catalyst.plan(rows))


def observed(name: str) -> str:
    """The name of an observation, without the number that ``name_observations`` has added."""
    return name.partition("#")[0]


def name_observations(rows: DataFrame) -> DataFrame:
    """Numbers the observations of a plan, NAME#n, if two have one name.

    A stream that is used twice is read twice; under one name Spark would report only one of the counts.
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
    """The plan without declarations of event time, if it keeps no state: they would split Spark's code."""
    if not watermarks(rows):
        return rows
    return catalyst.frame(rows, catalyst.without(catalyst.plan(rows), {"EventTimeWatermark"}))


def versioned(rows: DataFrame, view: View, graph: Graph) -> DataFrame:
    """The rows with ``_version``, a number that only grows for a key.

    An aggregate gets a hidden ``count(*)``; a projection the source offset, which counts within one partition
    and therefore needs the stream's key in the view's key. Anything else is refused.
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
    """The rows with columns of the record that each comes from; None if a row may come from several records.

    ``columns``: by their new names.
    """
    added = [f"{of} AS {name}" for name, of in columns.items()]

    def walk(node: Any) -> tuple[Any, list[Any]]:
        kind = node.nodeName()
        if kind in RECORDS and set(columns.values()) <= {a.name() for a in catalyst.items(node.output())}:
            projected = catalyst.plan(catalyst.frame(rows, node).selectExpr("*", *added))
            return projected, catalyst.items(projected.output())[-len(columns) :]
        if kind != "Project" and kind not in PASSING:
            return node, []
        child, places = walk(node.child())
        if kind != "Project":
            return node.withNewChildren(catalyst.seq(rows, [child])), places
        columns_out = node.projectList()
        for place in places:
            columns_out = columns_out.appended(place)
        return node.copy(columns_out, child), places

    plan, places = walk(catalyst.plan(rows))
    return catalyst.frame(rows, plan) if places else None


def grouped_by(rows: DataFrame, key: tuple[str, ...]) -> bool:
    """Whether a plan ends with a groupBy of Spark's, only by columns of the key.

    Then the rows of a key are always in the same partition of Spark's state.
    """
    node = catalyst.plan(rows)
    places = {column.exprId() for column in catalyst.items(node.output()) if column.name() in key}
    while node.nodeName() in {"Project", "Filter", "SubqueryAlias", "CollectMetrics", "EventTimeWatermark"}:
        if node.nodeName() == "Project":
            places = {
                column.exprId()
                for column in _at(node.projectList(), places)
                if column.nodeName() == "AttributeReference"
            }
        node = node.child()
    if node.nodeName() != "Aggregate" or not node.groupingExpressions().size():
        return False
    key_columns = _at(node.aggregateExpressions(), places)
    return all(
        any(column.semanticEquals(group) for column in key_columns)
        for group in catalyst.items(node.groupingExpressions())
    )


def _at(expressions: Any, places: set[Any]) -> list[Any]:
    """The expressions of some columns of a node."""
    columns = [column for column in catalyst.items(expressions) if column.exprId() in places]
    return [column.child() if column.nodeName() == "Alias" else column for column in columns]


def _check_projection(view: View, graph: Graph) -> None:
    for stream in graph.inputs(view).values():
        if stream.pattern is not None or not set(stream.key) <= set(view.key):
            raise refusals.REALTIME_KEY.error(
                got=f"key {', '.join(view.key)}", view=f"view {view.name!r}", key=", ".join(stream.key)
            )


def bloom(column: Column, capacity: int, bits: int) -> Column:
    """An aggregate: the Bloom filter of a column of text, as Spark uses it for joins. Null without values.

    Spark's bitmap functions could build it too, with an aggregate for each hash and sorted rows, for five
    times the work.
    """
    spark = SparkSession.active()
    bridge = catalyst.of(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    child, *sizes = (
        bridge.expression(argument._jc)  # noqa: SLF001
        for argument in (column, F.lit(capacity).cast("bigint"), F.lit(bits).cast("bigint"))
    )
    kind = catalyst.of(spark, "org.apache.spark.sql.catalyst.expressions.aggregate.BloomFilterAggregate")
    return ClassicColumn(bridge.column(kind(child, *sizes).toAggregateExpression()))
