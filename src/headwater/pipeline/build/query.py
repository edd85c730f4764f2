"""Query: a view's function or SQL applied to its inputs, the same way as a stream and in batch."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater import own_frames
from headwater.declare import operators, sql_scan
from headwater.declare.parameters import plain_function
from headwater.declare.query.sql_outline import place
from headwater.declare.spec import Stream, View
from headwater.declare.table import Table, frame_of
from headwater.errors import HeadwaterError, UsageError, one_line
from headwater.pipeline import refusals
from headwater.pipeline.build.plan_edits import watermarks
from headwater.pipeline.build.python_errors import raised
from headwater.pipeline.sql import as_of, rewrite
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["build", "first_line"]

SUBQUERY = "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY"
"""Spark's error for a subquery in an expression of a stream."""
POSITION = re.compile(r";? ?\(?line (?P<line>\d+),? pos (?P<column>\d+)\)?;?")
"""The place of an error of Spark in a query."""
SQLSTATE = re.compile(r" ?SQLSTATE: \w+")
"""What Spark adds to a message for programs."""
KEYS = {"device", "key", "on"}
"""Arguments of operators that name columns; ``on`` may be LEFT = RIGHT."""


def build(
    spark: SparkSession, view: View, inputs: Mapping[str, DataFrame], streams: Mapping[str, Stream]
) -> DataFrame:
    """The view's DataFrame. Nothing runs.

    Raises UsageError, naming the view, for all errors of Spark. ``streams``: the inputs as declared.
    """
    try:
        rows = _apply(spark, view, inputs, streams)
    except PySparkException as error:
        if error.getCondition() == SUBQUERY and any(stream.table for stream in streams.values()):
            raise refusals.SUBQUERY.error(view=f"view {view.name!r}") from error
        raise _refused(view, error) from error
    except HeadwaterError:
        raise
    except Exception as error:
        raise UsageError(
            f"view {view.name!r}: {type(error).__name__}: {one_line(error)}",
            got=own_frames.shown(own_frames.of_error(error)),
        ) from error
    if not isinstance(rows, DataFrame):
        raise UsageError(
            f"view {view.name!r} does not return rows",
            got=type(rows).__name__,
            expected="a DataFrame or a Table",
        )
    if not any(frame.isStreaming for frame in inputs.values()):
        return rows
    if not rows.isStreaming:
        raise refusals.NO_INPUTS.error(view=f"view {view.name!r}")
    _check_watermarks(view, rows)
    return rows


def _refused(view: View, error: PySparkException) -> UsageError:
    """An error of Spark, with the place in the query, or in the person's function."""
    line = first_line(error)
    if view.query is None:
        frames = own_frames.of_error(error)
        return UsageError(f"view {view.name!r}: {line}", got=own_frames.shown(frames))
    match = POSITION.search(line)
    if match is None:
        return UsageError(f"view {view.name!r}: {line}")
    text, _ = sql_scan.expanded(view.query, operators.__all__)
    text, _ = sql_scan.travels(f"view {view.name!r}", text)
    before = sum(len(query_line) for query_line in text.splitlines(keepends=True)[: int(match["line"]) - 1])
    return UsageError(
        f"view {view.name!r}: {POSITION.sub('', line).strip()}",
        got=place(text, before + int(match["column"])),
    )


def _apply(
    spark: SparkSession, view: View, inputs: Mapping[str, DataFrame], streams: Mapping[str, Stream]
) -> DataFrame:
    if view.function is not None:
        module = sys.modules.get(plain_function(view.function).__module__)
        if module is not None and module.__name__.startswith("headwater_app_"):
            register_pickle_by_value(module)  # workers cannot import the application file
        arguments = {name: Table(rows) if streams[name].table else rows for name, rows in inputs.items()}
        result = view.function(**arguments)
        return result.rows if isinstance(result, Table) else result
    text, calls = sql_scan.expanded(view.query or "", operators.__all__)
    for name, frame in inputs.items():
        frame.drop(WEIGHT).createOrReplaceTempView(f"`{name}`")  # it follows the rows without being selected
    for call in calls:
        _applied(view, call, inputs).drop(WEIGHT).createOrReplaceTempView(call.name)
    rows, pasts = as_of.read(spark, view.name, text, inputs, streams)
    return rewrite.rewrite(view.name, rows, pasts)


def _applied(view: View, call: sql_scan.Call, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of an operator in a query. Keys and the times of two streams are texts with commas."""
    function: Callable[..., DataFrame] = getattr(operators, call.operator)
    for stream in call.streams:
        if stream not in inputs:
            raise UsageError(
                f"view {view.name!r}: {call.operator} takes a stream", got=stream, expected=", ".join(inputs)
            )
    form = signature(function)
    arguments = {
        name: _argument(name, text) if name in form.parameters else F.expr(text)  # an aggregate
        for name, text in call.arguments.items()
    }
    try:
        bound = form.bind(*(inputs[stream] for stream in call.streams), **arguments)
    except TypeError as error:
        frames = sum(
            str(parameter.annotation).startswith("DataFrame") for parameter in form.parameters.values()
        )
        expected = ", ".join(f"{name} => '…'" for name in list(form.parameters)[frames:])
        raise UsageError(f"view {view.name!r}: {call.operator}: {error}", expected=expected) from error
    return frame_of(function(*bound.args, **bound.kwargs))


def _argument(name: str, text: str) -> Any:
    parts = tuple(map(str.strip, text.split(",")))
    if name == "on" and "=" in text:
        pairs = (part.partition("=") for part in parts)
        return {left.strip(): right.strip() for left, _, right in pairs}
    return parts if name in KEYS or (name == "time" and len(parts) > 1) else text


def _check_watermarks(view: View, rows: DataFrame) -> None:
    """Refuses more declarations of event time than streams that are read: the view has made them."""
    relations = rows._jdf.queryExecution().analyzed().collectLeaves().size()  # noqa: SLF001
    if watermarks(rows) > relations:
        raise refusals.OWN_WATERMARK.error(view=f"view {view.name!r}")


CALLED = "An error occurred while calling "
"""The first line of an error in Java, for py4j."""
FAILED_TASK = re.compile(r"Lost task .*?\(TID \d+\) \(.*?\): (.*)")
JAVA_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+: ")


def first_line(error: BaseException) -> str:
    """The first line of a Spark error that helps a person, without Spark's numbers for it."""
    text = str(getattr(error, "desc", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    in_python = raised(text) if "Traceback (most recent call last):" in text else ""
    line = in_python or (_of_java(lines) if lines else type(error).__name__)
    return SQLSTATE.sub("", line)


def _of_java(lines: Sequence[str]) -> str:
    """What an error of Spark says; of one that py4j passes on, why the task has failed."""
    if not lines[0].startswith(CALLED) or len(lines) == 1:
        return lines[0]
    said = lines[1].removeprefix(": ")
    task = FAILED_TASK.search(said)
    return JAVA_CLASS.sub("", task[1] if task else said).partition(" Consider setting ")[0]
