"""Attention: the time during which a driver has really looked at its log.

A partition counts as idle by what has elapsed while somebody looked at it and it brought nothing. A driver that is suspended, a machine
that sleeps, a log that does not answer and a clock that is set are no looking: a producer may have been cut off for as long, and what
it brings afterwards is not late. So time is counted here from look to look, by the clock that nobody sets, and a long way
between two looks counts as a short one.
"""

import math
import threading
from typing import NamedTuple

from headwater.clock import Clock

__all__ = ["GAP_S", "Attention", "When"]

GAP_S = 2.0
"""So much is counted between two looks at most."""
SET_MS = 100
"""Time of day and elapsed time that differ by more were set; less is how clocks are kept right."""


class When(NamedTuple):
    """When something has happened, by a driver's attention: not before the one, and not after the other."""

    earliest_ms: int
    latest_ms: int


class Attention:
    """Milliseconds that begin with the time of day and then count attention alone. Any thread may call; they never go back."""

    def __init__(self, clock: Clock, *, gap_s: float = GAP_S) -> None:
        """``gap_s``: 0 for a run that only takes what is there and looks at nothing; infinite for a clock that a test moves."""
        self._clock = clock
        self._gap_s = gap_s
        self._lock = threading.Lock()
        self._now_ms = float(clock.now_ms())
        self._looked = clock.monotonic()
        self._wall_ms = clock.now_ms()
        self._set_ms = 0
        """When the clock was last set: up to then it was not."""

    def look(self) -> int:
        """The log has just answered: what has elapsed since the last look counts, as far as it can."""
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
        """A look, and when that was which the time of day says was a moment ago, and was after ``since_ms`` of attention. If the clock was set meanwhile, nothing else is known."""
        looked = self.look()
        if math.isinf(self._gap_s):
            return When(looked, looked)
        ago = max(0, self._clock.now_ms() - planned_ms)
        return When(since_ms if self._set_ms >= since_ms else max(since_ms, looked - ago), looked)
