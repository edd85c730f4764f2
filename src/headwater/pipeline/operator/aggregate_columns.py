"""Aggregates given as Columns: ``F.sum("price")`` is split into its function and its argument.

An argument that is an expression, as in ``F.sum(F.col("price") * F.col("quantity"))``, first becomes a column
of the input.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.errors import UsageError
from headwater.pipeline.operator.aggregate import FUNCTIONS, AggregateCall
from headwater.pipeline.spark import catalyst

__all__ = ["Call", "calls", "with_columns"]

EXPECTED = 'a Column with one aggregate function, like F.sum("price") or F.count("*")'
AFTERWARDS = "give each aggregate a name here, and compute with them in a select() afterwards"


class Call(NamedTuple):
    """One aggregate: a function and its argument; None for ``count(*)``."""

    function: str
    column: Column | None
    name: str = ""
    """The name of the argument, if it is a column of the input; empty for an expression."""


def calls(operator: str, rows: DataFrame, aggregates: Mapping[str, Column]) -> dict[str, Call]:
    """The function and argument of each aggregate. UsageError for the first that is wrong."""
    return {name: _call(f"{operator}: {name}", rows, column) for name, column in aggregates.items()}


def with_columns(
    operator: str, rows: DataFrame, aggregates: Mapping[str, Column]
) -> tuple[DataFrame, dict[str, AggregateCall]]:
    """The rows with a column for each aggregated expression, and the aggregates as functions of columns."""
    taken = {name.lower() for name in rows.columns}
    added: list[Column] = []
    by_name: dict[str, AggregateCall] = {}
    for name, call in calls(operator, rows, aggregates).items():
        argument: str | None = call.name or None
        if call.column is not None and argument is None:
            argument = f"of_{name}"
            while argument.lower() in taken:
                argument += "_"
            taken.add(argument.lower())
            added.append(call.column.alias(argument))
        by_name[name] = AggregateCall(call.function, argument)
    return (rows.select("*", *added) if added else rows), by_name


def _call(what: str, rows: DataFrame, column: Column) -> Call:
    if not isinstance(column, Column):
        raise UsageError(f"{what} is not an aggregate", got=repr(column), expected=EXPECTED)
    aggregate = _aggregate_expression(what, rows, column)
    function = aggregate.aggregateFunction()
    name, arguments = str(function.prettyName()), catalyst.items(function.children())
    if aggregate.isDistinct():
        raise UsageError(
            f"{what} counts distinct values, which is not possible while rows are added and removed",
            got=aggregate.sql(),
            hint="group by the value as well, and count these groups in a second hw.group",
        )
    if name not in FUNCTIONS or len(arguments) != 1:
        raise UsageError(
            f"{what} uses an aggregate function that Headwater does not support",
            got=aggregate.sql(),
            expected=", ".join(FUNCTIONS),
        )
    argument = arguments[0]
    counts_all = name == "count" and not argument.nullable()
    if aggregate.filter().isDefined():
        value = F.lit(1) if counts_all else _column(rows, argument)
        return Call(name, F.when(_column(rows, aggregate.filter().get()), value))
    if counts_all:
        return Call(name, None)
    column_name = str(argument.name()) if argument.nodeName() == "AttributeReference" else ""
    return Call(name, _column(rows, argument), column_name if rows.columns.count(column_name) == 1 else "")


def _aggregate_expression(what: str, rows: DataFrame, column: Column) -> Any:
    """The one aggregate of a Column, as Spark's own expression."""
    try:
        plan = catalyst.plan(rows.select(column.alias("aggregate")))
    except AnalysisException as error:
        raise UsageError(
            f"{what} does not fit the columns of its input",
            got=str(error).partition("\n")[0],
            expected=EXPECTED,
        ) from error
    if plan.nodeName() != "Aggregate":
        raise UsageError(f"{what} is not an aggregate", got=str(column), expected=EXPECTED)
    expression = plan.aggregateExpressions().head().child()
    if expression.nodeName() != "AggregateExpression":
        raise UsageError(
            f"{what} is an expression around aggregates",
            got=str(expression.sql()),
            expected=EXPECTED,
            hint=AFTERWARDS,
        )
    return expression


def _column(rows: DataFrame, expression: Any) -> Column:
    bridge = catalyst.of(rows.sparkSession, "org.apache.spark.sql.classic.ExpressionUtils")
    return ClassicColumn(bridge.column(expression))
