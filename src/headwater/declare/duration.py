"""Durations as text: '10 minutes'."""

import re

from headwater.errors import UsageError

__all__ = ["DURATION", "duration_us"]


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
