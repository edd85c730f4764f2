"""Attention: the time during which a driver has really looked at its log.

A partition is idle if it has brought nothing for a time in which the driver looked at it. While a driver is
suspended, a machine sleeps or a log does not answer, nothing is looked at: a producer may have been cut off
for as long, and what it sends afterwards is not late. So time is counted from look to look, by the monotonic
clock, and a long time between two looks counts as a short one. Setting the wall clock adds nothing.
"""

import math
import threading
from typing import NamedTuple

from headwater.clock import Clock

__all__ = ["GAP_S", "Attention", "When"]

GAP_S = 2.0
"""At most this much is counted between two looks."""
SET_MS = 100
"""If wall-clock time and elapsed time differ by more, the clock was set.

Smaller differences are corrections.
"""


class When(NamedTuple):
    """When something has happened, in a driver's attention: between these two moments."""

    earliest_ms: int
    latest_ms: int


class Attention:
    """Milliseconds that begin with the wall-clock time and then count attention.

    They never go back. Thread-safe.
    """

    def __init__(self, clock: Clock, *, gap_s: float = GAP_S) -> None:
        """``gap_s``: 0 for a run that only reads what is there; infinite for a clock that a test moves."""
        self._clock = clock
        self._gap_s = gap_s
        self._lock = threading.Lock()
        self._now_ms = float(clock.now_ms())
        self._looked = clock.monotonic()
        self._wall_ms = clock.now_ms()
        self._set_ms = 0
        """When the clock was last known to be right before it was set."""

    def look(self) -> int:
        """The log has just answered: counts the time since the last look, up to the limit."""
        with self._lock:
            now, wall_ms = self._clock.monotonic(), self._clock.now_ms()
            if abs(wall_ms - self._wall_ms - (now - self._looked) * 1000) > SET_MS:
                self._set_ms = int(self._now_ms)
            self._wall_ms = wall_ms
            self._now_ms += min(now - self._looked, self._gap_s) * 1000
            self._looked = now
            return int(self._now_ms)

    def now_ms(self) -> int:
        """As of the last look."""
        with self._lock:
            return int(self._now_ms)

    def when(self, planned_ms: int, since_ms: int) -> When:
        """Looks, and converts a wall-clock time of a moment ago, not before ``since_ms`` of attention.

        If the clock was set in between, only ``since_ms`` is known.
        """
        looked = self.look()
        if math.isinf(self._gap_s):
            return When(looked, looked)
        ago = max(0, self._clock.now_ms() - planned_ms)
        return When(since_ms if self._set_ms >= since_ms else max(since_ms, looked - ago), looked)
