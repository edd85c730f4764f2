"""Query: a view's function or SQL over plain inputs, with plain operators in the place of ours."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from headwater import sql
from headwater.graph import Stream, View
from headwater.pipeline import history, query
from headwater.pipeline.plain import groups, joins, tables
from headwater.pipeline.plain.moment import At
from headwater.pipeline.wire import quoted
from headwater.substitute import substituted

__all__ = ["build", "operators"]

ALIAS = re.compile(r"\s+(?:as\s+)?(?!(?:on|using)\b)(?:[a-z_]\w*|`[^`]+`)", re.IGNORECASE)


def build(
    spark: SparkSession,
    view: View,
    inputs: Mapping[str, DataFrame],
    streams: Mapping[str, Stream],
    at: At,
) -> DataFrame:
    """The view's rows. UsageError for one that uses what only our operators can do."""
    if view.query is not None:
        text, pasts = _travelled(view, inputs, streams)
        view = msgspec.structs.replace(view, query=text)
        inputs = {**inputs, **pasts}
    with substituted(operators(at)):
        return query.build(spark, view, inputs, streams)


def operators(at: At) -> dict[str, Callable[..., Any]]:
    """A plain operator for each of ours, at one moment."""

    def corrected_time(*_: Any, **__: Any) -> DataFrame:
        raise at.impossible(
            "corrected_time", "what a device's clock is off by is worked out step by step, in no form of SQL"
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
    known = history.offered(changes)
    if known is not None and time not in known.key:
        changes = known.changes()
    return groups.versions(changes, key, time=time)


def _travelled(
    view: View, inputs: Mapping[str, DataFrame], streams: Mapping[str, Stream]
) -> tuple[str, dict[str, DataFrame]]:
    """A query in which a table as of a time is a LATERAL subquery of its versions, and those by the names that they have there."""
    text, found = sql.travels(f"view {view.name!r}", view.query or "")
    pasts: dict[str, DataFrame] = {}
    for each in found:
        table, name = inputs[each.table], quoted(each.name)
        spec = streams[each.table]
        times = [n for n in spec.key if isinstance(table.schema[n].dataType, TimestampType)]
        known = history.offered(table)
        changes = table if times or known is None else known.changes()
        on = [n for n in spec.key if n not in times]
        pasts[each.name] = tables.spans(changes, on, times[0] if times else spec.time)
        shown = [*map(quoted, tables.columns(changes)), f"{tables.VERSION} AS {quoted(_free(table))}"]
        moment = f"unix_micros({each.time})"
        held = f"{moment} >= {tables.FROM} AND ({tables.TO} IS NULL OR {moment} < {tables.TO})"
        lateral = f"LATERAL (SELECT {', '.join(shown)} FROM {name} WHERE {held})"  # noqa: S608  names of ours
        at = text.index(name)
        rest = text[at + len(name) :]
        alias = "" if ALIAS.match(rest) else f" AS {quoted(each.table)}"
        text = text[:at] + lateral + alias + rest
    return text, pasts


def _free(table: DataFrame) -> str:
    """The name of the column with the version, which no column of the table has."""
    name, number = "version", 1
    while name in table.columns:
        number += 1
        name = f"version_{number}"
    return name
