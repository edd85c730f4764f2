"""What a view can do that Spark cannot do on streams, or not as fast: functions from DataFrame to DataFrame.

Each keeps state by key, gives the same answer in a stream and in batch, and can be followed by Spark's own operators.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["count", "latest", "sessions"]


def count(rows: "DataFrame", key: str | Sequence[str], *, column: str = "count") -> "DataFrame":
    """How many rows each key has: the columns of the key, and the number."""
    from headwater.pipeline import keyed, operator

    return operator.run(keyed.Count(_names(key), column), rows)


def latest(rows: "DataFrame", key: str | Sequence[str], *, time: str) -> "DataFrame":
    """The row of each key with the greatest time, whatever the order in which they come. Rows without a time are left out."""
    from headwater.pipeline import keyed, operator

    return operator.run(keyed.Latest(_names(key), time), rows)


def sessions(
    rows: "DataFrame", key: str | Sequence[str], *, time: str, gap: str, **aggregates: str
) -> "DataFrame":
    """The sessions of each key: runs of its events with no more than ``gap`` between one and the next.

    A row has the key, ``window`` (from the first event to ``gap`` after the last), and the aggregates, like ``n="count(*)"``,
    ``landing="first(page)"``. It comes out with every batch that changes it; the view's key is the key and ``window``.
    """
    from headwater.pipeline import operator, windowed
    from headwater.pipeline.aggregate import parsed
    from headwater.pipeline.sessions import Sessions

    gap_us = windowed.length_us("sessions", "gap", gap)
    found = parsed("sessions", aggregates, rows.schema)
    return operator.run(Sessions(key=_names(key), time=time, gap_us=gap_us, aggregates=found), rows)


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
