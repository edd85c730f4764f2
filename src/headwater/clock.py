"""The only source of time: everything that asks for the time is given a clock."""

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Wall time and elapsed time. Implementations never go backwards in ``monotonic``."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, as Kafka timestamps are."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, for time-outs."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
