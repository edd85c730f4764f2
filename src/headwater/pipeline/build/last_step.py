"""Last step: the publication of a view's rows, as the last operator of its plan."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.spec import View
from headwater.pipeline import refusals
from headwater.pipeline.build import plan_edits
from headwater.pipeline.build.window_ends import END
from headwater.pipeline.operator.apply import sharded
from headwater.pipeline.operator.building import Site
from headwater.pipeline.operator.logic import Logic
from headwater.pipeline.operator.shell import shell
from headwater.pipeline.output.changed_rows import NO_ROWS, ORDER, PUBLISH, AppendedRows, ChangedRows
from headwater.pipeline.output.complete_rows import CompleteRows
from headwater.pipeline.output.expiry import Expiry
from headwater.pipeline.state.layouts import (
    COUNTED,
    COUNTED_FORGETTING,
    COUNTED_WAITING,
    FORGETTING,
    GROUPS,
    PLAIN,
    WAITING,
)
from headwater.pipeline.wire import json_writer, wire

__all__ = ["publication"]


def publication(rows: DataFrame, view: View, site: Site, *, until: str | None, in_groups: bool) -> DataFrame:
    """The plan with the publication at its end.

    It has no rows of the view, only notes of what the shards have written.
    ``until``: SQL for the time when a row is complete (``window_ends.py``).
    With ``in_groups`` the shards may be the partitions of a groupBy, if the plan ends with one: its rows are
    not moved again.
    """
    weighted = wire.WEIGHT in rows.columns
    logic = _logic(view, weighted=weighted)
    if (
        in_groups
        and not weighted
        and isinstance(logic, ChangedRows)
        and plan_edits.grouped_by(rows, view.key)
    ):
        logic = ChangedRows(layout=GROUPS)
    site.add(PUBLISH, logic, rows)
    if view.append and wire.GONE in rows.columns:
        rows = rows.where(f"NOT coalesce({wire.GONE}, false)")
    key = wire.key_expression(rows.schema, view.key)
    columns = [json_writer.value(rows, view).alias("_value"), F.expr(key).alias("_key")]
    if weighted:
        columns.append(F.col(wire.WEIGHT))
    elif not view.append and (traced := plan_edits.traced(rows, {ORDER: "offset"})) is not None:
        rows = traced
        columns.append(F.col(ORDER))
    if view.emit == "ready" and (until is None or END in rows.columns):
        raise refusals.NEVER_COMPLETE.error(view=f"view {view.name!r}")
    if until is not None:
        columns.append(F.expr(until).alias(wire.UNTIL))
    keyed = rows.select(*columns)
    return shell(PUBLISH, logic, _placed(keyed, site, logic), NO_ROWS)


def _placed(keyed: DataFrame, site: Site, logic: Logic) -> DataFrame:
    """The rows with their ``_shard``.

    Each task is a shard, and no row is moved, if the rows of a key are in one task already or need not be.
    """
    if logic.layout == GROUPS:
        return keyed.selectExpr("*", "spark_partition_id() AS _shard")
    if not logic.keeps:
        return keyed.coalesce(site.shards).selectExpr("*", "spark_partition_id() AS _shard")
    return sharded(keyed, site, logic.timed)


def _logic(view: View, *, weighted: bool) -> Logic:
    if view.emit == "ready":
        return CompleteRows(weighted=weighted, layout=COUNTED_WAITING if weighted else WAITING)
    counted = weighted and not view.append
    logic: Logic = (
        AppendedRows() if view.append else ChangedRows(weighted=counted, layout=COUNTED if counted else PLAIN)
    )
    if view.forget is None:
        return logic
    form = COUNTED_FORGETTING if counted else FORGETTING
    return Expiry(logic=logic, after=view.forget, layout=form)
