"""Query: a view's function or SQL applied to its inputs, the same way as a stream and in batch."""

import sys
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater import operators, sql
from headwater.errors import UsageError
from headwater.graph import Stream, View
from headwater.pipeline import algebra, refusals, travel
from headwater.pipeline.plan import watermarks
from headwater.pipeline.wire import WEIGHT

__all__ = ["build", "first_line"]

SUBQUERY = "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY"
"""What Spark calls a subquery in an expression of a stream."""
KEYS = {"device", "key", "on"}
"""Arguments of operators that name columns; ``on`` may say LEFT = RIGHT."""


def build(
    spark: SparkSession, view: View, inputs: Mapping[str, DataFrame], streams: Mapping[str, Stream]
) -> DataFrame:
    """The view's DataFrame. Nothing runs; whatever Spark has against the query is a UsageError that names the view. ``streams`` are its inputs as declared."""
    try:
        rows = _apply(spark, view, inputs, streams)
    except PySparkException as error:
        if error.getCondition() == SUBQUERY and any(each.table for each in streams.values()):
            raise refusals.SUBQUERY.error(view=f"view {view.name!r}") from error
        raise UsageError(f"view {view.name!r}: {first_line(error)}") from error
    if not isinstance(rows, DataFrame):
        raise UsageError(f"view {view.name!r} returns no DataFrame", got=type(rows).__name__)
    if not any(frame.isStreaming for frame in inputs.values()):
        return rows
    if not rows.isStreaming:
        raise refusals.NO_INPUTS.error(view=f"view {view.name!r}")
    _check_watermarks(view, rows)
    return rows


def _apply(
    spark: SparkSession, view: View, inputs: Mapping[str, DataFrame], streams: Mapping[str, Stream]
) -> DataFrame:
    if view.function is not None:
        module = sys.modules.get(view.function.__module__)
        if module is not None and module.__name__.startswith("headwater_app_"):
            register_pickle_by_value(module)  # workers cannot import the application file
        return view.function(**inputs)
    text, calls = sql.expanded(view.query or "", operators.__all__)
    for name, frame in inputs.items():
        frame.drop(WEIGHT).createOrReplaceTempView(f"`{name}`")  # it follows the rows without being named
    for call in calls:
        _applied(view, call, inputs).drop(WEIGHT).createOrReplaceTempView(call.name)
    rows, pasts = travel.read(spark, view.name, text, inputs, streams)
    return algebra.translated(view.name, rows, pasts)


def _applied(view: View, call: sql.Call, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of an operator in a query. A key is a text too, with commas between columns; so are the times of two streams."""
    function: Callable[..., DataFrame] = getattr(operators, call.operator)
    for stream in call.streams:
        if stream not in inputs:
            raise UsageError(
                f"view {view.name!r}: {call.operator} takes a stream", got=stream, expected=", ".join(inputs)
            )
    form = signature(function)
    given = {name: _argument(name, text) for name, text in call.arguments.items()}
    try:
        bound = form.bind(*(inputs[stream] for stream in call.streams), **given)
    except TypeError as error:
        frames = sum(each.annotation == "DataFrame" for each in form.parameters.values())
        expected = ", ".join(f"{name} => '…'" for name in list(form.parameters)[frames:])
        raise UsageError(f"view {view.name!r}: {call.operator}: {error}", expected=expected) from error
    return function(*bound.args, **bound.kwargs)


def _argument(name: str, text: str) -> Any:
    parts = tuple(map(str.strip, text.split(",")))
    if name == "on" and "=" in text:
        pairs = (part.partition("=") for part in parts)
        return {left.strip(): right.strip() for left, _, right in pairs}
    return parts if name in KEYS or (name == "time" and len(parts) > 1) else text


def _check_watermarks(view: View, rows: DataFrame) -> None:
    """Each reading of a stream declares event time once; more than that comes from the view itself."""
    relations = rows._jdf.queryExecution().analyzed().collectLeaves().size()  # noqa: SLF001
    if watermarks(rows) > relations:
        raise refusals.OWN_WATERMARK.error(view=f"view {view.name!r}")


def first_line(error: BaseException) -> str:
    """The first line of a Spark error that says something to a person."""
    text = str(getattr(error, "desc", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and "Python worker" in lines[0]:
        return _raised(text)
    return lines[0] if lines else type(error).__name__


def _raised(text: str) -> str:
    """What was raised in a Python worker: the first line below its stack trace."""
    below = text.partition("Traceback (most recent call last):")[2].splitlines()[1:]
    return next((line for line in below if line and not line.startswith(" ")), "an error in a Python worker")
