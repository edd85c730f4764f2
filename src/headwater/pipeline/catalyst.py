"""Catalyst: Spark's own plans, looked at and changed from Python. Everything that reaches into them uses these few calls."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

__all__ = ["find", "frame", "items", "plan", "seq"]


def plan(rows: DataFrame) -> Any:
    """The analyzed plan of a DataFrame."""
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def frame(rows: DataFrame, changed: Any) -> DataFrame:
    """A plan as a DataFrame of the session that ``rows`` belongs to."""
    spark = rows.sparkSession
    jvm: Any = spark._jvm  # noqa: SLF001
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, changed), spark)  # noqa: SLF001


def find(node: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """The nodes of a plan, or of an expression, that are wanted, from the top down."""
    below = [found for child in items(node.children()) for found in find(child, wanted)]
    return [node, *below] if wanted(node) else below


def items(sequence: Any) -> list[Any]:
    """A sequence of Scala's as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def seq(rows: DataFrame, found: Sequence[Any]) -> Any:
    """A list as a sequence of Scala's."""
    jvm: Any = rows.sparkSession._jvm  # noqa: SLF001
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(found))
