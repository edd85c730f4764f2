"""Catalyst: Spark's own plans, read and changed from Python through these few functions."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.pipeline.spark import class_handles

__all__ = [
    "DELAY",
    "EXPRESSIONS",
    "FIELDS_MAX",
    "bound",
    "column",
    "find",
    "forget_run",
    "frame",
    "invoked",
    "items",
    "mentions",
    "observations",
    "of",
    "optimized",
    "package",
    "part",
    "plan",
    "projected",
    "reads",
    "seq",
    "within",
    "without",
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
    """A class of the JVM, by its full name."""
    return class_handles.handle(_client(spark), name)


def package(spark: SparkSession, name: str = EXPRESSIONS) -> Any:
    """A package of the JVM, whose classes are its attributes."""
    return class_handles.Package(_client(spark), name)


def _client(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway._gateway_client  # noqa: SLF001


def find(node: Any, names: Collection[str]) -> list[Any]:
    """The nodes of a plan that have one of these names, from the top down."""
    nodes = _nodes(node._gateway_client).find(node, " ".join(names))  # noqa: SLF001
    return [nodes.get(index) for index in range(nodes.size())]


def part(node: Any, names: Collection[str], steps: Collection[str] = ()) -> tuple[Any, Any] | None:
    """The first part with one of these names in the expressions of a node, and the expression that has it.

    ``steps``: searches all nodes of a plan with one of these names instead, from the top down.
    """
    parts = _nodes(node._gateway_client).part(node, " ".join(names), " ".join(steps))  # noqa: SLF001
    return (parts.get(0), parts.get(1)) if parts.size() else None


def column(node: Any, name: str) -> Any:
    """The column of this name in the output of a plan, or None."""
    return _nodes(node._gateway_client).column(node, name)  # noqa: SLF001


def reads(node: Any, kind: str, names: Collection[str]) -> bool:
    """Whether a node of this kind reads a column with one of these names."""
    return bool(_nodes(node._gateway_client).reads(node, kind, " ".join(names)))  # noqa: SLF001


def without(node: Any, names: Collection[str]) -> Any:
    """A plan without its nodes of these names, each of which has one child."""
    return _nodes(node._gateway_client).without(node, " ".join(names))  # noqa: SLF001


def mentions(node: Any, name: str) -> bool:
    """Whether any node of a plan has a column of this name."""
    return bool(_nodes(node._gateway_client).mentions(node, name))  # noqa: SLF001


def observations(node: Any) -> list[str]:
    """The names of the observations in a plan, from the top down."""
    names = str(_nodes(node._gateway_client).observations(node))  # noqa: SLF001
    return names.splitlines()


def forget_run(node: Any) -> None:
    """Lets a physical plan run once more: forgets the metrics and the state files of its last run."""
    _nodes(node._gateway_client).forgetRun(node)  # noqa: SLF001


def _nodes(client: Any) -> Any:
    """The methods of ``jvm/Nodes.java``."""
    return class_handles.handle(client, "headwater.Nodes")


def within(node: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """The wanted parts of an expression, from the top down."""
    below = [part for child in items(node.children()) for part in within(child, wanted)]
    return [node, *below] if wanted(node) else below


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
