"""Calendar: the day, week or month in which a row lies, as the clocks of a time zone have it.

A day begins at the first moment of its date and ends where the next one begins: it has 23 or 25 hours when clocks change, and a
midnight that clocks skip is the moment to which they jump. All of it is arithmetic of Spark's, without Python in the plan and
whatever time zone the session has.

Spark forgets the state of a group by its window only if the column that holds it is marked as event time. An expression inside
``groupBy`` loses the mark, a column made before it keeps it: hence a function from DataFrame to DataFrame.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from headwater.errors import UsageError
from headwater.pipeline import catalyst

__all__ = ["UNITS", "windowed"]

DAY_US = 86_400_000_000
UNITS: dict[str, Callable[[Column], Column]] = {
    "day": lambda date: F.date_add(date, 1),
    "week": lambda date: F.date_add(date, 7),
    "month": lambda date: F.add_months(date, 1),
    "quarter": lambda date: F.add_months(date, 3),
    "year": lambda date: F.add_months(date, 12),
}
"""From the first date of one to the first date of the next. Weeks begin on Monday."""


def windowed(rows: DataFrame, unit: str, time: str, zone: str) -> DataFrame:
    """The rows that have a time, with ``window`` as the last column."""
    _check(rows, unit, time, zone)
    at = F.col(f"`{time}`")
    mark = rows.schema[time].metadata
    window = _window(at, unit, zone).alias("window", metadata=dict(mark))
    return rows.where(at.isNotNull()).withColumn("window", window)


def _window(at: Column, unit: str, zone: str) -> Column:
    local = F.unix_micros(F.from_utc_timestamp(at, zone))
    days = ((local - F.pmod(local, F.lit(DAY_US))) / DAY_US).cast("int")
    date = _first(F.date_from_unix_date(days), unit)
    after = UNITS[unit](date)
    # Where clocks go back over midnight, the last minutes of a date come after the first ones of the next.
    begun = at >= _begin(after, zone)
    return F.when(begun, _between(after, UNITS[unit](after), zone)).otherwise(_between(date, after, zone))


def _between(date: Column, after: Column, zone: str) -> Column:
    return F.struct(_begin(date, zone).alias("start"), _begin(after, zone).alias("end"))


def _first(date: Column, unit: str) -> Column:
    return date if unit == "day" else F.trunc(date, unit).cast("date")


def _begin(date: Column, zone: str) -> Column:
    """The moment at which a date begins; where that happens twice, the first."""
    return F.to_utc_timestamp(F.timestamp_micros(F.unix_date(date).cast("bigint") * DAY_US), zone)


def _check(rows: DataFrame, unit: str, time: str, zone: str) -> None:
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    if unit not in UNITS:
        raise UsageError(
            "hw.calendar: this is no part of a calendar", got=repr(unit), expected=", ".join(UNITS)
        )
    if not isinstance(kinds.get(time), TimestampType):
        got = kinds[time].simpleString() if time in kinds else f"columns {', '.join(kinds)}"
        raise UsageError(f"hw.calendar: column {time!r} is no timestamp", got=got)
    if "window" in kinds:
        raise UsageError("hw.calendar: there is a column 'window' already", hint="rename it before")
    zones = catalyst.of(rows.sparkSession, "java.time.ZoneId").getAvailableZoneIds()
    if not zones.contains(zone):
        raise UsageError(
            "hw.calendar: unknown time zone", got=repr(zone), expected="a name like 'Europe/Berlin'"
        )
