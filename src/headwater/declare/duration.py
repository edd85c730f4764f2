"""Durations as text: '10 minutes', and in short '10s' where one writes many of them."""

import re

from headwater.errors import UsageError

__all__ = ["DURATION", "duration_us", "pause_ms"]


UNITS_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
DURATION = re.compile(r"(\d+) (millisecond|second|minute|hour|day)s?")


def duration_us(text: str) -> int:
    """A duration, like '10 minutes', in microseconds."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a duration", expected="a whole number and a unit, like '10 minutes'"
        )
    return int(match[1]) * UNITS_US[match[2]]


SHORT_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SHORT = re.compile(r"(\d+) ?(ms|s|min|h|d)")


def pause_ms(text: str) -> int:
    """A pause, like '10s', '500ms' or '10 minutes', in milliseconds."""
    match = SHORT.fullmatch(text) if isinstance(text, str) else None
    if match is not None:
        return int(match[1]) * SHORT_MS[match[2]]
    if isinstance(text, str) and DURATION.fullmatch(text):
        return duration_us(text) // 1_000
    raise UsageError(
        f"{text!r} is not a duration", expected="'500ms', '10s', '5min', '2h', '1d', or in words '10 minutes'"
    )
