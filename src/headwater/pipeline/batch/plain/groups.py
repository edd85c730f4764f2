"""Operators over one input as a plain batch: groupBy and window functions of Spark's."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import WindowSpec

from headwater.declare.duration import duration_us
from headwater.declare.table import Newest
from headwater.pipeline.batch.plain import tables
from headwater.pipeline.batch.plain.tables import micros
from headwater.pipeline.operator.aggregate_columns import Call, calls
from headwater.pipeline.wire.wire import quoted

__all__ = ["count", "distinct", "group", "latest", "sessions", "sliding", "versions"]

AT = "_plain_at"
Names = str | Sequence[str]


def count(rows: DataFrame, key: Names, *, column: str = "count") -> DataFrame:
    return rows.groupBy(*_columns(key)).agg(F.count(F.lit(1)).alias(column))


def group(rows: DataFrame, /, by: Names, **aggregates: Column | Newest) -> DataFrame:
    results = [
        (_newest(aggregate) if isinstance(aggregate, Newest) else aggregate).alias(name)
        for name, aggregate in aggregates.items()
    ]
    return rows.groupBy(*_columns(by)).agg(*results) if results else rows.select(*_columns(by)).distinct()


def latest(rows: DataFrame, key: Names, *, time: str) -> DataFrame:
    """All rows of a key with the greatest time: the view must have one of them."""
    order = Window.partitionBy(*_columns(key)).orderBy(F.col(quoted(time)).desc())
    timely = rows.where(F.col(quoted(time)).isNotNull())
    return timely.withColumn("_rank", F.rank().over(order)).where("_rank = 1").drop("_rank").distinct()


def distinct(rows: DataFrame, key: Names, *, time: str, within: str) -> DataFrame:
    """Each row that is more than ``within`` after the last accepted one, in the order of their times."""
    row = F.struct(*[F.col(quoted(name)) for name in rows.columns])
    timed_row = F.struct(micros(F.col(quoted(time))).alias("at"), row.alias("row"))
    timely = rows.where(F.col(quoted(time)).isNotNull())
    lists = timely.groupBy(*_columns(key)).agg(F.sort_array(F.collect_list(timed_row)).alias("_rows"))
    none = F.slice(F.col("_rows"), 1, 0)

    def accept(before: Column, row: Column) -> Column:
        last = F.try_element_at(before, F.lit(-1))["at"]
        far = F.coalesce(row["at"] - last > duration_us(within), F.lit(True))
        return F.when(far, F.concat(before, F.array(row))).otherwise(before)

    accepted = F.aggregate("_rows", none, accept)
    return lists.select(F.inline(F.transform(accepted, lambda row: row["row"])))


def sessions(rows: DataFrame, /, key: Names, *, time: str, gap: str, **aggregates: Column) -> DataFrame:
    gap_us = duration_us(gap)
    timed = _timed(rows, time)
    order = Window.partitionBy(*_columns(key)).orderBy(AT)
    begins = F.when(F.col(AT) - F.lag(AT).over(order) > gap_us, 1).otherwise(0)
    marked = timed.withColumn("_begins", begins).withColumn("_session", F.sum("_begins").over(order))
    grouped = marked.groupBy(*_columns(key), "_session").agg(
        _window(F.min(AT), F.max(AT) + gap_us),
        *(_aggregate(call).alias(name) for name, call in calls("sessions", rows, aggregates).items()),
    )
    return grouped.drop("_session")


def sliding(rows: DataFrame, /, key: Names, *, time: str, size: str, **aggregates: Column) -> DataFrame:
    size_us = duration_us(size)
    order = Window.partitionBy(*_columns(key)).orderBy(AT).rangeBetween(1 - size_us, Window.currentRow)
    windows = _timed(rows, time).select(
        *_columns(key),
        _window(F.col(AT) - size_us, F.col(AT)),
        *(_aggregate(call, order).alias(name) for name, call in calls("sliding", rows, aggregates).items()),
    )
    return windows.dropDuplicates([*_names(key), "window"])


def versions(changes: DataFrame, key: Names, *, time: str) -> DataFrame:
    spans = tables.spans(changes, _names(key), time)
    shown = [F.col(quoted(name)) for name in tables.columns(changes)]
    since = [] if "valid_from" in changes.columns else [F.timestamp_micros(tables.FROM).alias("valid_from")]
    until = F.timestamp_micros(tables.TO).alias("valid_to")
    return spans.select(*shown, *since, until, F.col(tables.VERSION).alias("version"))


# ---- parts ---------------------------------------------------------------------------------------------


def _names(key: Names) -> list[str]:
    return [key] if isinstance(key, str) else list(key)


def _columns(key: Names) -> list[Column]:
    return [F.col(quoted(name)) for name in _names(key)]


def _timed(rows: DataFrame, time: str) -> DataFrame:
    return rows.withColumn(AT, micros(F.col(quoted(time)))).where(f"{AT} IS NOT NULL")


def _window(start: Column, end: Column) -> Column:
    both = F.struct(F.timestamp_micros(start).alias("start"), F.timestamp_micros(end).alias("end"))
    return both.alias("window")


def _aggregate(call: Call, over: WindowSpec | None = None) -> Column:
    """An aggregate.

    First and last use the time in `AT`: of several values at one time, the smallest or the greatest.
    """
    column = F.lit(1) if call.column is None else call.column
    placed = F.when(column.isNotNull(), F.struct(F.col(AT).alias("at"), column.alias("value")))
    match call.function:
        case "first":
            aggregated = F.min(placed)
        case "last":
            aggregated = F.max(placed)
        case function:
            of = {"avg": F.avg, "count": F.count, "max": F.max, "min": F.min, "sum": F.sum}
            aggregated = of[function](column)
    if over is not None:
        aggregated = aggregated.over(over)
    return aggregated["value"] if call.function in ("first", "last") else aggregated


def _newest(newest: Newest) -> Column:
    order = [F.col(quoted(name)).alias(f"o{n}") for n, name in enumerate(newest.order)]
    shown = [F.col(quoted(name)).alias(f"c{n}") for n, name in enumerate(newest.columns)]
    first = F.slice(F.sort_array(F.collect_list(F.struct(*order, *shown)), asc=False), 1, newest.limit)
    if newest.bare:
        return F.transform(first, lambda row: row["c0"])
    return F.transform(
        first, lambda row: F.struct(*(row[f"c{n}"].alias(name) for n, name in enumerate(newest.columns)))
    )
