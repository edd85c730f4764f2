"""The only source of time: everything that asks for the time is given a clock."""

import time
from typing import Protocol

__all__ = ["Clock", "SteadyClock", "SystemClock"]


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


class SteadyClock:
    """Another clock's wall time at the start, and from there on what has elapsed: for dues and time-outs that a clock which is set must not move."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ms = clock.now_ms()
        self._start = clock.monotonic()

    def now_ms(self) -> int:
        return self._start_ms + round((self._clock.monotonic() - self._start) * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic()
