"""What a view can do that Spark cannot do on streams, or not as fast: functions from DataFrame to DataFrame.

Each keeps state by key, gives the same answer in a stream and in batch, and can be followed by Spark's own operators.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["corrected_time", "count", "latest"]


def corrected_time(
    rows: "DataFrame",
    device: str | Sequence[str],
    *,
    occurred: str,
    sent: str,
    received: str,
    bound: str = "7 days",
    transit: str = "1 minute",
    window: str = "1 hour",
) -> "DataFrame":
    """When things happened, by our clock, although devices' clocks are wrong: all rows with ``corrected`` and ``correction``.

    ``occurred`` and ``sent`` are times of the device's clock, ``received`` of ours, which is the stream's ``time``. Corrected times are
    at most ``bound`` before ``received``, never after it. ``transit``: how long a record is under way at most. Samples of the device's
    clock count for ``window``. A row comes out once, when the watermark has passed its ``received``.
    """
    from headwater.pipeline import clocks

    logic = clocks.Clocks(
        key=_names(device),
        occurred=occurred,
        sent=sent,
        received=received,
        behind=bound,
        transit=transit,
        window=window,
    )
    return clocks.corrected(logic, rows)


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
