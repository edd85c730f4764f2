"""What a view can do that Spark cannot do on streams, or not as fast: functions from DataFrame to DataFrame.

Each keeps state by key, gives the same answer in a stream and in batch, and can be followed by Spark's own operators.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["calendar", "count", "latest"]


def calendar(rows: "DataFrame", unit: str, *, time: str, zone: str) -> "DataFrame":
    """The rows with ``window``: the day, week, month, quarter or year in which each lies by the clocks of a time zone.

    Group by it as by Spark's own ``window()``, which knows no time zones: days have 23 or 25 hours when clocks change.
    Rows without a time are left out.
    """
    from headwater.pipeline import calendar as dates

    return dates.windowed(rows, unit, time, zone)


def count(rows: "DataFrame", key: str | Sequence[str], *, column: str = "count") -> "DataFrame":
    """How many rows each key has: the columns of the key, and the number."""
    from headwater.pipeline import keyed, operator

    return operator.run(keyed.Count(_names(key), column), rows)


def latest(rows: "DataFrame", key: str | Sequence[str], *, time: str) -> "DataFrame":
    """The row of each key with the greatest time, whatever the order in which they come. Rows without a time are left out."""
    from headwater.pipeline import keyed, operator

    return operator.run(keyed.Latest(_names(key), time), rows)


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
