"""Query: a view's function or SQL over plain inputs, with plain operators instead of ours."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from headwater.declare import sql_scan
from headwater.declare.spec import Stream, View
from headwater.declare.substitute import substituted
from headwater.pipeline.asof import table_changes
from headwater.pipeline.batch.plain import groups, joins, tables
from headwater.pipeline.batch.plain.moment import At
from headwater.pipeline.build import query
from headwater.pipeline.wire.wire import quoted

__all__ = ["build", "operators"]

ALIAS = re.compile(r"\s+(?:as\s+)?(?!(?:on|using)\b)(?:[a-z_]\w*|`[^`]+`)", re.IGNORECASE)


def build(
    spark: SparkSession,
    view: View,
    inputs: Mapping[str, DataFrame],
    streams: Mapping[str, Stream],
    at: At,
) -> DataFrame:
    """The view's rows. Raises UsageError for a view that needs one of our operators."""
    if view.query is not None:
        text, pasts = _replace_travels(view, inputs, streams)
        view = msgspec.structs.replace(view, query=text)
        inputs = {**inputs, **pasts}
    with substituted(operators(at)):
        return query.build(spark, view, inputs, streams)


def operators(at: At) -> dict[str, Callable[..., Any]]:
    """A plain operator for each of ours, at one moment."""

    def corrected_time(*_: Any, **__: Any) -> DataFrame:
        raise at.impossible(
            "corrected_time",
            "the error of a device's clock is estimated step by step, which SQL cannot express",
        )

    def valid(rows: DataFrame, *, since: str = "", until: str = "") -> DataFrame:
        now = F.timestamp_micros(F.lit(at.clock_us("valid")))
        if since:
            rows = rows.where(F.col(quoted(since)).isNull() | (F.col(quoted(since)) <= now))
        return rows.where(F.col(quoted(until)).isNull() | (F.col(quoted(until)) > now)) if until else rows

    return {
        "corrected_time": corrected_time,
        "count": groups.count,
        "distinct": groups.distinct,
        "enrich": partial(joins.enrich, at),
        "group": groups.group,
        "join": joins.join,
        "latest": groups.latest,
        "match": joins.match,
        "sessions": groups.sessions,
        "sliding": groups.sliding,
        "unmatched": partial(joins.unmatched, at),
        "valid": valid,
        "versions": _versions,
    }


def _versions(changes: DataFrame, key: groups.Names, *, time: str) -> DataFrame:
    offered = table_changes.offered(changes)
    if offered is not None and time not in offered.key:
        changes = offered.changes()
    return groups.versions(changes, key, time=time)


def _replace_travels(
    view: View, inputs: Mapping[str, DataFrame], streams: Mapping[str, Stream]
) -> tuple[str, dict[str, DataFrame]]:
    """The query with LATERAL subqueries for tables as of a time, and the versions of these tables by name."""
    text, travels = sql_scan.travels(f"view {view.name!r}", view.query or "")
    pasts: dict[str, DataFrame] = {}
    for travel in travels:
        table, name = inputs[travel.table], quoted(travel.name)
        spec = streams[travel.table]
        times = [n for n in spec.key if isinstance(table.schema[n].dataType, TimestampType)]
        offered = table_changes.offered(table)
        changes = table if times or offered is None else offered.changes()
        on = [n for n in spec.key if n not in times]
        pasts[travel.name] = tables.spans(changes, on, times[0] if times else spec.time)
        shown = [*map(quoted, tables.columns(changes)), f"{tables.VERSION} AS {quoted(_free(table))}"]
        moment = f"unix_micros({travel.time})"
        held = f"{moment} >= {tables.FROM} AND ({tables.TO} IS NULL OR {moment} < {tables.TO})"
        lateral = f"LATERAL (SELECT {', '.join(shown)} FROM {name} WHERE {held})"  # noqa: S608  our own names
        at = text.index(name)
        rest = text[at + len(name) :]
        alias = "" if ALIAS.match(rest) else f" AS {quoted(travel.table)}"
        text = text[:at] + lateral + alias + rest
    return text, pasts


def _free(table: DataFrame) -> str:
    """A name for the column with the version that the table does not use."""
    name, number = "version", 1
    while name in table.columns:
        number += 1
        name = f"version_{number}"
    return name
