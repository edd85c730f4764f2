"""Catalyst: Spark's own plans, read and changed from Python through these few functions."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

__all__ = [
    "DELAY",
    "FIELDS_MAX",
    "bound",
    "find",
    "forget_run",
    "frame",
    "invoked",
    "items",
    "mentions",
    "observations",
    "of",
    "optimized",
    "plan",
    "projected",
    "seq",
    "within",
    "within_all",
]

FIELDS_MAX = 10_000
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


DELAY = "spark.watermarkDelayMs"
"""The key in the metadata of a column with event time."""


def plan(rows: DataFrame) -> Any:
    """The analyzed plan of a DataFrame."""
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def optimized(rows: DataFrame) -> Any:
    """The optimized plan of a DataFrame: without columns that no one reads."""
    return rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001


def projected(rows: DataFrame, below: Any, expressions: Sequence[Any]) -> Any:
    """A plan that computes expressions over another plan, both of the session of ``rows``."""
    columns = of(rows.sparkSession, "org.apache.spark.sql.classic.ExpressionUtils")
    child = frame(rows, below)
    return plan(child.select(*(ClassicColumn(columns.column(expression)) for expression in expressions)))


def frame(rows: DataFrame, changed: Any) -> DataFrame:
    """A plan as a DataFrame of the session that ``rows`` belongs to."""
    spark = rows.sparkSession
    dataset = of(spark, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(spark._jsparkSession, changed), spark)  # noqa: SLF001


def of(spark: SparkSession, name: str) -> Any:
    """A class of the JVM, by its full name.

    A chain of attributes would look up each part of the name, and search all jars for those that are
    packages.
    """
    return getattr(spark._jvm, name)  # noqa: SLF001


def find(node: Any, names: Collection[str]) -> list[Any]:
    """The nodes of a plan that have one of these names, from the top down."""
    nodes = _nodes(node._gateway_client).find(node, " ".join(names))  # noqa: SLF001
    return [nodes.get(index) for index in range(nodes.size())]


def mentions(node: Any, name: str) -> bool:
    """Whether any node of a plan has a column of this name."""
    return bool(_nodes(node._gateway_client).mentions(node, name))  # noqa: SLF001


def observations(node: Any) -> list[str]:
    """The names of the observations in a plan, from the top down."""
    names = str(_nodes(node._gateway_client).observations(node))  # noqa: SLF001
    return names.splitlines()


def forget_run(node: Any) -> None:
    """Lets a physical plan run once more: forgets the metrics and the state files of its last run."""
    _nodes(node._gateway_client).forget_run(node)  # noqa: SLF001


class _Nodes:
    """The methods of ``jvm/Nodes.java``, looked up once: py4j would ask the JVM for a method at each call."""

    def __init__(self, client: Any) -> None:
        nodes = JavaClass("headwater.Nodes", client)
        self.find, self.mentions, self.observations = nodes.find, nodes.mentions, nodes.observations
        self.forget_run = nodes.forgetRun


_nodes = lru_cache(1)(_Nodes)


def within(node: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """The wanted parts of an expression, from the top down."""
    below = [part for child in items(node.children()) for part in within(child, wanted)]
    return [node, *below] if wanted(node) else below


def within_all(nodes: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """The wanted parts of several expressions."""
    return [part for node in items(nodes) for part in within(node, wanted)]


def items(sequence: Any) -> list[Any]:
    """A sequence of Scala's as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def seq(rows: DataFrame, values: Sequence[Any]) -> Any:
    """A list as a sequence of Scala's."""
    return of(rows.sparkSession, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))


def bound(rows: DataFrame, sql: str) -> tuple[Any, Any]:
    """The type of an expression over some rows, and the expression bound to one such row."""
    replaced = of(rows.sparkSession, "org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions")
    node = replaced.apply(plan(rows.selectExpr(sql)))
    expression = node.projectList().head().child()
    columns = of(rows.sparkSession, f"{EXPRESSIONS}.package$AttributeSeq")(node.child().output())
    references = of(rows.sparkSession, f"{EXPRESSIONS}.BindReferences")
    return expression.dataType(), references.bindReference(expression, columns, False)


def invoked(spark: SparkSession, target: Any, method: str, kind: Any, *arguments: Column) -> Column:
    """The result of an object's method on columns, null or not.

    The object goes to the tasks; it must not change.
    """
    bridge = of(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    object_type = of(spark, "org.apache.spark.sql.types.ObjectType")(target.getClass())
    literal = of(spark, f"{EXPRESSIONS}.Literal")(target, object_type)
    to_seq = of(spark, "org.apache.spark.api.python.PythonUtils").toSeq
    expressions = to_seq([bridge.expression(argument._jc) for argument in arguments])  # noqa: SLF001
    call = of(spark, f"{EXPRESSIONS}.objects.Invoke")
    return ClassicColumn(
        bridge.column(call(literal, method, kind, expressions, to_seq([]), False, True, True))
    )
