"""Stage: a view's rows on their way into its topic, as the last operator of its plan."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import UsageError
from headwater.graph import View
from headwater.pipeline import changing, operator, plan, wire, writing
from headwater.pipeline.differing import NO_ROWS, ORDER, PUBLISH, Appending, Differing
from headwater.pipeline.forget import Forgetting
from headwater.pipeline.operator import Logic, Site
from headwater.pipeline.ready import Ready

__all__ = ["staged"]


def staged(rows: DataFrame, view: View, site: Site, *, judged: bool) -> DataFrame:
    """What comes out is only what the shards have written."""
    weighted = wire.WEIGHT in rows.columns
    logic = _logic(view, weighted=weighted)
    site.add(PUBLISH, logic, rows)
    if view.append and wire.GONE in rows.columns:
        rows = rows.where(f"NOT coalesce({wire.GONE}, false)")
    key = wire.key_expression(rows.schema, view.key)
    columns = [writing.value(rows, view).alias("_value"), F.expr(key).alias("_key")]
    if weighted:
        columns.append(F.col(wire.WEIGHT))
    elif not view.append and (traced := plan.traced(rows, {ORDER: "offset"})) is not None:
        rows = traced
        columns.append(F.col(ORDER))
    if view.emit == "ready":
        until = changing.until_expression(rows.schema, view.key)
        if until is None or not judged:
            raise UsageError(
                f"view {view.name!r} has no rows that become complete",
                expected="a window over event time in its key, for emit='ready'",
                hint="group by F.window(...), or leave out emit='ready'",
            )
        columns.append(F.expr(until).alias("_until"))
    keyed = rows.select(*columns)
    placed = operator.sharded(keyed, site, logic.timed) if logic.keeps else _as_they_are(keyed, site)
    return operator.shell(PUBLISH, logic, placed, NO_ROWS)


def _as_they_are(keyed: DataFrame, site: Site) -> DataFrame:
    """Rows that are compared with none need not meet others of their key: each task is a shard of its own, and none is moved."""
    return keyed.coalesce(site.shards).selectExpr("*", "spark_partition_id() AS _shard")


def _logic(view: View, *, weighted: bool) -> Logic:
    if view.emit == "ready":
        return Ready(weighted=weighted)
    logic: Logic = Appending() if view.append else Differing(weighted=weighted)
    return logic if view.forget is None else Forgetting(logic=logic, after=view.forget)
