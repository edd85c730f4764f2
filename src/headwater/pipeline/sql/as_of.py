"""As of: tables as of the time of an event, in a query.

    SELECT o.order_id, o.cents * r.percent AS tax
    FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.region = r.region

Spark accepts this only with a constant time. So the query is changed before Spark resolves its names: the
table gets another name, the time becomes the last condition of the join, and ``rewrite.py`` makes hw.enrich
from both.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from headwater.declare import sql_scan
from headwater.declare.spec import Stream
from headwater.errors import UsageError
from headwater.pipeline import refusals
from headwater.pipeline.spark import catalyst
from headwater.pipeline.sql.renumbering import Names
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["Past", "read"]


class Past(NamedTuple):
    """A table that is read as of a time."""

    table: DataFrame
    valid: str
    """Its column with the time from which a row is valid."""
    version: str
    """The column with the id of the version that was found."""


def read(
    spark: SparkSession, view: str, text: str, inputs: Mapping[str, DataFrame], tables: Mapping[str, Stream]
) -> tuple[DataFrame, dict[str, Past]]:
    """A query as Spark analyzes it, and its tables as of a time, by their new names."""
    what = f"view {view!r}"
    text, travels = sql_scan.travels(what, text)
    if not travels:
        return spark.sql(text), {}
    query = _Query(what, spark, inputs, tables)
    query.travels |= {travel.name: travel for travel in travels}
    plan = query.walk(query.parser.parsePlan(text))
    if len(query.pasts) < len(travels):
        raise query.misplaced(travels[0].table)
    return catalyst.frame(next(iter(inputs.values())), plan), query.pasts


class _Query:
    """A query whose names are not resolved yet. ``what`` names its view in errors."""

    def __init__(
        self, what: str, spark: SparkSession, inputs: Mapping[str, DataFrame], tables: Mapping[str, Stream]
    ) -> None:
        session: Any = spark._jsparkSession  # noqa: SLF001
        self.parser = session.sessionState().sqlParser()
        self.travels: dict[str, sql_scan.Travel] = {}
        self.pasts: dict[str, Past] = {}
        self._spark = spark
        self._what = what
        self._inputs = inputs
        self._tables = tables

    def misplaced(self, table: str) -> UsageError:
        return refusals.AS_OF_PLACE.error(got=table, view=self._what)

    def walk(self, node: Any) -> Any:
        if node.nodeName() == "Join" and (travel := self._travel(node.right())) is not None:
            return self._join(node, travel)
        if (misplaced := self._travel(node)) is not None:
            raise self.misplaced(misplaced.table)
        children = catalyst.items(node.children())
        if not children:
            return node
        return node.withNewChildren(self._seq([self.walk(child) for child in children]))

    def _travel(self, node: Any) -> sql_scan.Travel | None:
        """The table as of a time that a node reads, with or without an alias; None for other nodes."""
        relation = node.child() if node.nodeName() == "SubqueryAlias" else node
        if relation.nodeName() != "UnresolvedRelation":
            return None
        return self.travels.get(".".join(map(str, catalyst.items(relation.multipartIdentifier()))))

    def _join(self, node: Any, travel: sql_scan.Travel) -> Any:
        """The join with a last condition: the time is not before the row is valid."""
        if node.condition().isEmpty():
            raise self.misplaced(travel.table)
        past = self.pasts[travel.name] = self._past(travel)
        right = node.right()
        if right.nodeName() != "SubqueryAlias":
            alias = self._of("AliasIdentifier")(travel.table)
            right = self._of("plans.logical.SubqueryAlias")(alias, right)
        moment = self.parser.parseExpression(f"{travel.time} >= `{right.alias()}`.`{past.valid}`")
        both = self._of("expressions.And")(node.condition().get(), moment)
        left, condition = self.walk(node.left()), catalyst.of(self._spark, "scala.Option").apply(both)
        return node.copy(left, right, node.joinType(), condition, node.hint())

    def _of(self, name: str) -> Any:
        return catalyst.of(self._spark, f"org.apache.spark.sql.catalyst.{name}")

    def _past(self, travel: sql_scan.Travel) -> Past:
        name = travel.table
        if name not in self._inputs or not self._tables[name].table:
            table_names = ", ".join(other for other, stream in self._tables.items() if stream.table)
            raise refusals.AS_OF_TABLE.error(
                got=name, view=self._what, tables=table_names or "one of the application"
            )
        table = self._inputs[name]
        past = Past(table, self._valid(name, table), Names(table.columns).new("version"))
        shown = table.drop(WEIGHT).withColumn(past.version, F.lit(None).cast("string"))
        shown.createOrReplaceTempView(f"`{travel.name}`")
        return past

    def _valid(self, name: str, table: DataFrame) -> str:
        """The column with the time from which a row is valid: the one in its key, or its declared time."""
        spec = self._tables[name]
        times = [name for name in spec.key if isinstance(table.schema[name].dataType, TimestampType)]
        if len(times) == 1:
            return times[0]
        if spec.time and not times:
            return spec.time
        raise refusals.NO_VALID_TIME.error(view=self._what, table=repr(name), name=name)

    def _seq(self, nodes: list[Any]) -> Any:
        return catalyst.seq(next(iter(self._inputs.values())), nodes)
