"""Calendar windows: the day, week, month, quarter or year of a row by the clocks of a time zone.

A day begins at the first moment of its date and ends where the next one begins. It has 23 or 25 hours when
clocks change; if clocks skip midnight, it begins at the moment to which they jump. All of it is computed by
Spark's expressions, without Python in the plan, and does not depend on the time zone of the session.

Spark drops the state of a window only if the column with the window is marked as event time. An expression
inside ``groupBy`` loses the mark, a column added before keeps it: hence a function from DataFrame to
DataFrame.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import UsageError
from headwater.pipeline.operator import event_rows
from headwater.pipeline.spark import catalyst

__all__ = ["UNITS", "add_window"]

DAY_US = 86_400_000_000
UNITS: dict[str, Callable[[Column], Column]] = {
    "day": lambda date: F.date_add(date, 1),
    "week": lambda date: F.date_add(date, 7),
    "month": lambda date: F.add_months(date, 1),
    "quarter": lambda date: F.add_months(date, 3),
    "year": lambda date: F.add_months(date, 12),
}
"""For each unit: from its first date to the first date of the next one. Weeks begin on Monday."""


def add_window(rows: DataFrame, unit: str, time: str, zone: str) -> DataFrame:
    """The rows that have a time, with ``window`` as the last column."""
    _check(rows, unit, time, zone)
    at = F.col(f"`{time}`")
    mark = rows.schema[time].metadata
    window = _window(at, unit, zone).alias("window", metadata=dict(mark))
    return rows.where(at.isNotNull()).withColumn("window", window)


def _window(at: Column, unit: str, zone: str) -> Column:
    local = F.unix_micros(F.from_utc_timestamp(at, zone))
    days = ((local - F.pmod(local, F.lit(DAY_US))) / DAY_US).cast("int")
    date = _first_date(F.date_from_unix_date(days), unit)
    next_date = UNITS[unit](date)
    # If clocks go back over midnight, the last minutes of a date come after the first ones of the next.
    has_ended = at >= _begin(next_date, zone)
    following = _span(next_date, UNITS[unit](next_date), zone)
    return F.when(has_ended, following).otherwise(_span(date, next_date, zone))


def _span(date: Column, next_date: Column, zone: str) -> Column:
    return F.struct(_begin(date, zone).alias("start"), _begin(next_date, zone).alias("end"))


def _first_date(date: Column, unit: str) -> Column:
    return date if unit == "day" else F.trunc(date, unit).cast("date")


def _begin(date: Column, zone: str) -> Column:
    """The moment at which a date begins; if there are two, the first."""
    return F.to_utc_timestamp(F.timestamp_micros(F.unix_date(date).cast("bigint") * DAY_US), zone)


def _check(rows: DataFrame, unit: str, time: str, zone: str) -> None:
    if unit not in UNITS:
        raise UsageError("calendar: unknown unit", got=repr(unit), expected=", ".join(UNITS))
    event_rows.check_time("calendar", rows.schema, time)
    if event_rows.WINDOW in rows.columns:
        raise UsageError(
            "calendar: its input already has a column 'window'",
            hint='rename it before: .withColumnRenamed("window", …)',
        )
    zones = catalyst.of(rows.sparkSession, "java.time.ZoneId").getAvailableZoneIds()
    if not zones.contains(zone):
        raise UsageError(
            "calendar: unknown time zone", got=repr(zone), expected="a name like 'Europe/Berlin'"
        )
