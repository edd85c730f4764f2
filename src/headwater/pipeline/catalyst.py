"""Catalyst: Spark's own plans, looked at and changed from Python. Everything that reaches into them uses these few calls."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

__all__ = ["FIELDS_MAX", "bound", "find", "frame", "invoked", "items", "of", "plan", "seq", "text", "within"]

FIELDS_MAX = 10_000
SHORT = (False, False, FIELDS_MAX, False, False)
"""How ``treeString`` is to write: neither verbose nor with suffixes, all fields, no ids, no output columns."""
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
NODE = re.compile(r"[ :+-]*['~!]*(\w+)")
"""A line of a plan's text: where the node hangs, Spark's marks, its name."""


def plan(rows: DataFrame) -> Any:
    """The analyzed plan of a DataFrame."""
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def frame(rows: DataFrame, changed: Any) -> DataFrame:
    """A plan as a DataFrame of the session that ``rows`` belongs to."""
    spark = rows.sparkSession
    dataset = of(spark, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(spark._jsparkSession, changed), spark)  # noqa: SLF001


def of(spark: SparkSession, name: str) -> Any:
    """A class of the JVM. A chain of attributes would ask the JVM for each part of its name."""
    return getattr(spark._jvm, name)  # noqa: SLF001


def text(node: Any) -> str:
    """A plan as Spark shows it, with all columns of each node."""
    return str(node.treeString(*SHORT))


def find(node: Any, names: Collection[str]) -> list[Any]:
    """The nodes of a plan that have one of these names, from the top down.

    They are looked for in its text, whose lines are numbered as Spark numbers the nodes: to visit each would take five calls for one.
    """
    lines = text(node).splitlines()
    wanted = [number for number, line in enumerate(lines) if _name(line) in names]
    found = [node.apply(number) for number in wanted]
    if all(
        each is not None and each.nodeName() == _name(lines[n]) for each, n in zip(found, wanted, strict=True)
    ):
        return found
    return within(node, lambda each: each.nodeName() in names)  # a text in the query has lines of its own


def _name(line: str) -> str:
    found = NODE.match(line)
    return found[1] if found else ""


def within(node: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """The parts of an expression that are wanted, from the top down; its text shows no names of nodes."""
    below = [found for child in items(node.children()) for found in within(child, wanted)]
    return [node, *below] if wanted(node) else below


def items(sequence: Any) -> list[Any]:
    """A sequence of Scala's as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def seq(rows: DataFrame, found: Sequence[Any]) -> Any:
    """A list as a sequence of Scala's."""
    return of(rows.sparkSession, "org.apache.spark.api.python.PythonUtils").toSeq(list(found))


def bound(rows: DataFrame, sql: str) -> tuple[Any, Any]:
    """The type of an expression over some rows, and the expression as it is computed from one such row."""
    replaced = of(rows.sparkSession, "org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions")
    node = replaced.apply(plan(rows.selectExpr(sql)))
    found = node.projectList().head().child()
    columns = of(rows.sparkSession, f"{EXPRESSIONS}.package$AttributeSeq")(node.child().output())
    references = of(rows.sparkSession, f"{EXPRESSIONS}.BindReferences")
    return found.dataType(), references.bindReference(found, columns, False)


def invoked(spark: SparkSession, target: Any, method: str, kind: Any, argument: Column) -> Column:
    """What a method of an object makes of a column, null or not. The object is sent to the tasks; it must not change."""
    bridge = of(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    object_type = of(spark, "org.apache.spark.sql.types.ObjectType")(target.getClass())
    literal = of(spark, f"{EXPRESSIONS}.Literal")(target, object_type)
    to_seq = of(spark, "org.apache.spark.api.python.PythonUtils").toSeq
    given = to_seq([bridge.expression(argument._jc)])  # noqa: SLF001
    call = of(spark, f"{EXPRESSIONS}.objects.Invoke")
    return ClassicColumn(bridge.column(call(literal, method, kind, given, to_seq([]), False, True, True)))
