"""Plan checks: what Spark cannot do on a stream, or would do differently each time, before a view starts."""

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headwater.declare.query.unstable import unrepeatable
from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.pipeline import refusals
from headwater.pipeline.build.query import first_line
from headwater.pipeline.spark import catalyst

__all__ = ["check_stream"]

FIRST_ROWS = {"GlobalLimit", "LocalLimit", "Offset", "Tail"}
STEPS = {"Aggregate", "Filter", "Generate", "Join", "Project", "Sample", "Sort", "Window", *FIRST_ROWS}
CHECKER = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"
UPDATE = "org.apache.spark.sql.streaming.OutputMode"
UNSTABLE = {
    "CurrentBatchTimestamp": "current_timestamp",
    "CurrentDate": "current_date",
    "CurrentTime": "current_time",
    "CurrentTimestamp": "current_timestamp",
    "InputFileName": "input_file_name",
    "LocalTimestamp": "localtimestamp",
    "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "Now": "now",
    "Rand": "rand",
    "RandStr": "randstr",
    "Randn": "randn",
    "Shuffle": "shuffle",
    "Uniform": "uniform",
    "Uuid": "uuid",
}
"""Expressions of Spark by their class, and the functions that make them."""


def check_stream(rows: DataFrame, view: View) -> None:
    """Raises UsageError, naming the view, for a query that cannot run as a stream."""
    what, plan = f"view {view.name!r}", catalyst.plan(rows)
    for node in catalyst.find(plan, {"Sort", "Window", *FIRST_ROWS}):
        kind = node.nodeName()
        if kind == "Window":
            raise refusals.STREAM_RANKED.error(view=what)
        if kind in FIRST_ROWS:
            raise refusals.STREAM_LIMITED.error(view=what)
        if getattr(node, "global")():  # not the order inside a partition, which our operators need
            raise refusals.STREAM_SORTED.error(view=what)
    _check_repeatable(what, plan)
    _check_by_spark(what, rows, plan)


def _check_repeatable(what: str, plan: Any) -> None:
    if unstable_part := catalyst.part(plan, UNSTABLE, STEPS):
        unstable, expression = unstable_part
        raise unrepeatable(what, UNSTABLE[unstable.nodeName()], str(expression.sql()), None)


def _check_by_spark(what: str, rows: DataFrame, plan: Any) -> None:
    """Spark checks this itself, but only when a query starts."""
    checker = catalyst.of(rows.sparkSession, CHECKER)
    try:
        checker.checkForStreaming(plan, catalyst.of(rows.sparkSession, UPDATE).Update())
    except PySparkException as error:
        line = first_line(error)
        if line.startswith("Distinct aggregations"):
            raise refusals.STREAM_OF_DISTINCT.error(view=what) from error
        raise UsageError(f"{what} cannot run as a stream: {line}") from error
