"""Travel: tables as of the time of an event, in a query.

    SELECT o.order_id, o.cents * r.percent AS tax FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.region = r.region

Spark knows this only with a time that stands in the query. So the query is changed before Spark resolves its names: the table gets a name of its own, the
time becomes the last condition of the join, and ``algebra.py`` makes hw.enrich of both.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from headwater import sql
from headwater.errors import UsageError
from headwater.graph import Stream
from headwater.pipeline import catalyst, refusals
from headwater.pipeline.columns import Names
from headwater.pipeline.wire import WEIGHT

__all__ = ["Past", "read"]


class Past(NamedTuple):
    """A table of which the row is wanted that held at a time."""

    table: DataFrame
    valid: str
    """Its column with the time from which a row holds."""
    version: str
    """The column with the id of the version that was met."""


def read(
    spark: SparkSession, view: str, text: str, inputs: Mapping[str, DataFrame], tables: Mapping[str, Stream]
) -> tuple[DataFrame, dict[str, Past]]:
    """A query as Spark reads it, and the tables in it as of a time, by the names that they have there now."""
    what = f"view {view!r}"
    text, found = sql.travels(what, text)
    if not found:
        return spark.sql(text), {}
    reading = _Reading(what, spark, inputs, tables)
    reading.travels |= {each.name: each for each in found}
    plan = reading.walk(reading.parser.parsePlan(text))
    if len(reading.pasts) < len(found):
        raise reading.misplaced(found[0].table)
    return catalyst.frame(next(iter(inputs.values())), plan), reading.pasts


class _Reading:
    """A query whose names are not resolved yet. ``what`` names its view in errors."""

    def __init__(
        self, what: str, spark: SparkSession, inputs: Mapping[str, DataFrame], tables: Mapping[str, Stream]
    ) -> None:
        session: Any = spark._jsparkSession  # noqa: SLF001
        self.parser = session.sessionState().sqlParser()
        self.travels: dict[str, sql.Travel] = {}
        self.pasts: dict[str, Past] = {}
        self._spark = spark
        self._what = what
        self._inputs = inputs
        self._tables = tables

    def misplaced(self, table: str) -> UsageError:
        return refusals.AS_OF_PLACE.error(got=table, view=self._what)

    def walk(self, node: Any) -> Any:
        if node.nodeName() == "Join" and (found := self._travel(node.right())) is not None:
            return self._joined(node, found)
        if (lost := self._travel(node)) is not None:
            raise self.misplaced(lost.table)
        children = catalyst.items(node.children())
        if not children:
            return node
        return node.withNewChildren(self._seq([self.walk(child) for child in children]))

    def _travel(self, node: Any) -> sql.Travel | None:
        """What a table as of a time is, with or without a name of its own; None for anything else."""
        relation = node.child() if node.nodeName() == "SubqueryAlias" else node
        if relation.nodeName() != "UnresolvedRelation":
            return None
        return self.travels.get(".".join(map(str, catalyst.items(relation.multipartIdentifier()))))

    def _joined(self, node: Any, found: sql.Travel) -> Any:
        """A join whose last condition is that the time is not before the row holds."""
        if node.condition().isEmpty():
            raise self.misplaced(found.table)
        past = self.pasts[found.name] = self._past(found)
        right = node.right()
        if right.nodeName() != "SubqueryAlias":
            named = self._of("AliasIdentifier")(found.table)
            right = self._of("plans.logical.SubqueryAlias")(named, right)
        moment = self.parser.parseExpression(f"{found.time} >= `{right.alias()}`.`{past.valid}`")
        both = self._of("expressions.And")(node.condition().get(), moment)
        left, condition = self.walk(node.left()), catalyst.of(self._spark, "scala.Option").apply(both)
        return node.copy(left, right, node.joinType(), condition, node.hint())

    def _of(self, name: str) -> Any:
        return catalyst.of(self._spark, f"org.apache.spark.sql.catalyst.{name}")

    def _past(self, found: sql.Travel) -> Past:
        name = found.table
        if name not in self._inputs or not self._tables[name].table:
            known = ", ".join(each for each, stream in self._tables.items() if stream.table)
            raise refusals.AS_OF_TABLE.error(
                got=name, view=self._what, tables=known or "one of the application"
            )
        table = self._inputs[name]
        past = Past(table, self._valid(name, table), Names(table.columns).new("version"))
        shown = table.drop(WEIGHT).withColumn(past.version, F.lit(None).cast("string"))
        shown.createOrReplaceTempView(f"`{found.name}`")
        return past

    def _valid(self, name: str, table: DataFrame) -> str:
        """The column with the time from which a row of a table holds: the one in its key, or its declared time."""
        spec = self._tables[name]
        times = [each for each in spec.key if isinstance(table.schema[each].dataType, TimestampType)]
        if len(times) == 1:
            return times[0]
        if spec.time and not times:
            return spec.time
        raise refusals.NO_VALID_TIME.error(view=self._what, table=repr(name), name=name)

    def _seq(self, found: list[Any]) -> Any:
        return catalyst.seq(next(iter(self._inputs.values())), found)
