"""Open ends: the times at which rows of a view become complete, as far as the watermark has not passed them.

A row is complete once the watermark has passed the end of its window. While inputs are silent, the driver
publishes each time that this happens (``pipeline/run/completion.py``), so it must know the ends that are to
come. There may be very many, such as those of sessions, or of all windows of a backlog. They are rounded up
to seconds, and a few are kept: a row that ends between two of them is said to be complete at the later one.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["ENDS_MAX", "ends_in", "open_ends"]

ENDS_MAX = 32
LAST = 16
"""Of a backlog, most ends are passed with its last batch: these will not be."""
SECOND_US = 1_000_000


def ends_in(rows: pa.Table, watermark: int) -> tuple[int, ...]:
    """The open ends of the rows of a shard: of their column ``_until``, if they have one."""
    if "_until" not in rows.column_names:
        return ()
    times = rows.column("_until").drop_null().to_numpy()
    return _few(np.unique(-(-times[times > watermark] // SECOND_US)))


def open_ends(ends: Iterable[int], watermark: int) -> tuple[int, ...]:
    """Those after the watermark, the earliest first."""
    times = sorted({-(-end // SECOND_US) for end in ends if end > watermark})
    return _few(np.array(times, np.int64))


def _few(seconds: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """At most `ENDS_MAX`, in microseconds: the last ones, and some that are spread over the others."""
    if len(seconds) > ENDS_MAX:
        spread = np.linspace(0, len(seconds) - LAST, ENDS_MAX - LAST, endpoint=False, dtype=np.int64)
        seconds = np.append(seconds[spread], seconds[-LAST:])
    return tuple(second * SECOND_US for second in seconds.tolist())
