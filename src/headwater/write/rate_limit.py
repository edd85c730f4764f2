"""Rate limit: how many records may pass in a time, as a token bucket.

"1000/s"              a thousand a second, and after a pause up to a thousand at once
"600/min burst 20"    ten a second, and never more than 20 at once
"""

import re
import threading

import msgspec

from headwater.clock import Clock
from headwater.errors import UsageError

__all__ = ["Bucket", "Limit"]

FORM = re.compile(r"(\d+)/(s|min|h)(?: burst (\d+))?")
SECONDS = {"s": 1, "min": 60, "h": 3600}


class Limit(msgspec.Struct, frozen=True):
    """A rate, and how many records may pass at once after a pause."""

    per_second: float
    burst: int

    @staticmethod
    def parse(text: str) -> "Limit":
        """Reads ``RATE/s``, ``RATE/min`` or ``RATE/h``, each with or without ``burst N``."""
        match = FORM.fullmatch(text.strip())
        if match is None or not int(match[1]) or match[3] == "0":
            raise UsageError("the limit is wrong", got=repr(text), expected="'1000/s' or '600/min burst 20'")
        per_second = int(match[1]) / SECONDS[match[2]]
        return Limit(per_second, int(match[3]) if match[3] else max(1, round(per_second)))


class Bucket:
    """Holds at most ``burst`` tokens, and gains them at the limit's rate.

    Each record takes one. Any thread may call.
    """

    def __init__(self, limit: Limit, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._tokens = float(limit.burst)
        self._filled = clock.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Takes a token; returns False if there is none."""
        with self._lock:
            self._fill()
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True

    def give_back(self) -> None:
        """Returns the token of a record that could not be sent."""
        with self._lock:
            self._tokens = min(self._tokens + 1, self._limit.burst)

    def wait_s(self) -> float:
        """Seconds until there is a token."""
        with self._lock:
            self._fill()
            return max(0.0, (1 - self._tokens) / self._limit.per_second)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        gained = (now - self._filled) * self._limit.per_second
        self._tokens = min(self._tokens + gained, self._limit.burst)
        self._filled = now
