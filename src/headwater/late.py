"""Late: what becomes of a record that comes after its time, as a view says it with ``late=``.

A record is late when its event time is before the view's watermark; one exactly at the watermark is not. Only views that keep
something for a time (windows, joins within a time) have a watermark; all others take every record whenever it comes.
"""

import re
from typing import Literal

import msgspec

from headwater.errors import UsageError

__all__ = ["ARRIVAL", "DURATION", "Late", "correct", "drop", "duration_us", "side"]

UNITS_US = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
ARRIVAL = "_arrival"
"""As a stream's ``time``: when its records came into the log, for events that do not say when they happened. A replay finds the same."""
DURATION = re.compile(r"(\d+) (millisecond|second|minute|hour|day)s?")


class Late(msgspec.Struct, frozen=True):
    """A policy. Records up to ``horizon`` behind the watermark still count; older ones are published apart or only counted."""

    policy: Literal["drop", "side", "correct"]
    horizon: str = "0 seconds"

    @property
    def horizon_us(self) -> int:
        return duration_us(self.horizon)


def drop() -> Late:
    """Late records are counted and left out."""
    return Late("drop")


def side() -> Late:
    """Late records are left out and published to ``<view>.late``, each with the watermark that it missed. The default."""
    return Late("side")


def correct(horizon: str) -> Late:
    """Late records change the result until they are ``horizon`` behind the watermark; later ones go to ``<view>.late``."""
    return Late("correct", horizon)


def duration_us(text: str) -> int:
    """A length of time, like '10 minutes', in microseconds."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise UsageError(
            "this is no length of time", got=repr(text), expected="a number and a unit, like '10 minutes'"
        )
    return int(found[1]) * UNITS_US[found[2]]
