"""Clocks: the only source of time. Everything that needs the time gets a clock."""

import time
from typing import Protocol

__all__ = ["Clock", "SteadyClock", "SystemClock"]


class Clock(Protocol):
    """Wall time and elapsed time. ``monotonic`` never goes backwards."""

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
    """Wall time that does not move when the clock is set: for deadlines and time-outs.

    It is the wall time of another clock at the start, plus the time elapsed since.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ms = clock.now_ms()
        self._start = clock.monotonic()

    def now_ms(self) -> int:
        return self._start_ms + round((self._clock.monotonic() - self._start) * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic()
