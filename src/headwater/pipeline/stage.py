"""Stage: a view's rows on their way into its topic, as the last operator of its plan."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.graph import View
from headwater.pipeline import changing, operator, plan, refusals, wire, writing
from headwater.pipeline.differing import NO_ROWS, ORDER, PUBLISH, Appending, Differing
from headwater.pipeline.forget import Forgetting
from headwater.pipeline.layout import (
    COUNTED,
    COUNTED_FORGETTING,
    COUNTED_WAITING,
    FORGETTING,
    GROUPS,
    PLAIN,
    WAITING,
)
from headwater.pipeline.operator import Logic, Site
from headwater.pipeline.ready import Ready

__all__ = ["staged"]


def staged(rows: DataFrame, view: View, site: Site, *, judged: bool, in_groups: bool) -> DataFrame:
    """What comes out is only what the shards have written.

    With ``in_groups`` the shards may be the partitions of a groupBy, when the plan ends with one: its rows are not moved again.
    """
    weighted = wire.WEIGHT in rows.columns
    logic = _logic(view, weighted=weighted)
    if in_groups and not weighted and isinstance(logic, Differing) and plan.grouped_by(rows, view.key):
        logic = Differing(layout=GROUPS)
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
            raise refusals.NEVER_COMPLETE.error(view=f"view {view.name!r}")
        columns.append(F.expr(until).alias("_until"))
    keyed = rows.select(*columns)
    return operator.shell(PUBLISH, logic, _placed(keyed, site, logic), NO_ROWS)


def _placed(keyed: DataFrame, site: Site, logic: Logic) -> DataFrame:
    """The rows with their ``_shard``. Each task is a shard of its own, and no row is moved, when those of a key have met already, or need not meet."""
    if logic.layout == GROUPS:
        return keyed.selectExpr("*", "spark_partition_id() AS _shard")
    if not logic.keeps:
        return keyed.coalesce(site.shards).selectExpr("*", "spark_partition_id() AS _shard")
    return operator.sharded(keyed, site, logic.timed)


def _logic(view: View, *, weighted: bool) -> Logic:
    if view.emit == "ready":
        return Ready(weighted=weighted, layout=COUNTED_WAITING if weighted else WAITING)
    counted = weighted and not view.append
    logic: Logic = (
        Appending() if view.append else Differing(weighted=counted, layout=COUNTED if counted else PLAIN)
    )
    if view.forget is None:
        return logic
    form = COUNTED_FORGETTING if counted else FORGETTING
    return Forgetting(logic=logic, after=view.forget, layout=form)
