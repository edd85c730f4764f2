"""Catalyst: Spark's own plans, looked at and changed from Python. Everything that reaches into them uses these few calls."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

__all__ = [
    "FIELDS_MAX",
    "bound",
    "find",
    "frame",
    "invoked",
    "items",
    "mentions",
    "observations",
    "of",
    "plan",
    "seq",
    "within",
]

FIELDS_MAX = 10_000
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


def plan(rows: DataFrame) -> Any:
    """The analyzed plan of a DataFrame."""
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def frame(rows: DataFrame, changed: Any) -> DataFrame:
    """A plan as a DataFrame of the session that ``rows`` belongs to."""
    spark = rows.sparkSession
    dataset = of(spark, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(spark._jsparkSession, changed), spark)  # noqa: SLF001


def of(spark: SparkSession, name: str) -> Any:
    """A class of the JVM. A chain of attributes would ask for each part of its name, and what is no class is looked for in every jar, some ten times."""
    return getattr(spark._jvm, name)  # noqa: SLF001


def find(node: Any, names: Collection[str]) -> list[Any]:
    """The nodes of a plan that have one of these names, from the top down."""
    found = _nodes(node._gateway_client).find(node, " ".join(names))  # noqa: SLF001
    return [found.get(index) for index in range(found.size())]


def mentions(node: Any, name: str) -> bool:
    """Whether any node of a plan has a column of this name."""
    return bool(_nodes(node._gateway_client).mentions(node, name))  # noqa: SLF001


def observations(node: Any) -> list[str]:
    """The names of what is observed in a plan, from the top down."""
    found = str(_nodes(node._gateway_client).observations(node))  # noqa: SLF001
    return found.splitlines()


class _Nodes:
    """The calls of ``jvm/Nodes.java``: a class is asked for each of its methods, and again each time."""

    def __init__(self, client: Any) -> None:
        found = JavaClass("headwater.Nodes", client)
        self.find, self.mentions, self.observations = found.find, found.mentions, found.observations


_nodes = lru_cache(1)(_Nodes)


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


def invoked(spark: SparkSession, target: Any, method: str, kind: Any, *arguments: Column) -> Column:
    """What a method of an object makes of columns, null or not. The object is sent to the tasks; it must not change."""
    bridge = of(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    object_type = of(spark, "org.apache.spark.sql.types.ObjectType")(target.getClass())
    literal = of(spark, f"{EXPRESSIONS}.Literal")(target, object_type)
    to_seq = of(spark, "org.apache.spark.api.python.PythonUtils").toSeq
    given = to_seq([bridge.expression(each._jc) for each in arguments])  # noqa: SLF001
    call = of(spark, f"{EXPRESSIONS}.objects.Invoke")
    return ClassicColumn(bridge.column(call(literal, method, kind, given, to_seq([]), False, True, True)))
