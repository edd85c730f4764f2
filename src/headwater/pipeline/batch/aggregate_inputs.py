"""Aggregate inputs: the rows that a query computes before any aggregate has them.

A record on which they fail is at fault itself. What fails later fails on a row that many records have made.
"""

from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from headwater.pipeline.operator.logic import GROUPS
from headwater.pipeline.spark import catalyst

__all__ = ["below"]


class _Part(NamedTuple):
    """A part of a plan."""

    plans: list[Any]
    """What it computes before any aggregate; itself, if it has none."""
    aggregates: bool


def below(rows: DataFrame) -> list[DataFrame]:
    """The rows of an ordinary DataFrame before any aggregate; itself, if it has none."""
    plan = catalyst.optimized(rows)
    return [catalyst.frame(rows, part) for part in _part(rows, plan).plans]


def _part(rows: DataFrame, node: Any) -> _Part:
    parts = [_part(rows, child) for child in catalyst.items(node.children())]
    if any(part.aggregates for part in parts):
        return _Part([plan for part in parts for plan in part.plans], aggregates=True)
    if node.nodeName() == "Aggregate":
        return _Part([_arguments(rows, node)], aggregates=True)
    if node.nodeName() == "MapInArrow" and node.functionExpr().name() in GROUPS:
        return _Part([node.child()], aggregates=True)
    return _Part([node], aggregates=False)


def _arguments(rows: DataFrame, aggregate: Any) -> Any:
    """The keys of an aggregate and the arguments of its functions, as a plan."""
    columns = catalyst.items(aggregate.aggregateExpressions())
    functions = [part for column in columns for part in catalyst.find(column, {"AggregateExpression"})]
    wanted = [
        *catalyst.items(aggregate.groupingExpressions()),
        *(part for function in functions for part in catalyst.items(function.aggregateFunction().children())),
        *(part for function in functions for part in catalyst.items(function.filter().toList())),
    ]
    return catalyst.projected(rows, aggregate.child(), wanted)
