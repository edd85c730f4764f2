"""Policies for late records, the values of ``late=`` of a view.

A record is late if its event time is before the view's watermark; one exactly at the watermark is not. Only
views with state that depends on event time (windows, joins within a time bound) have a watermark; all others
process every record whenever it arrives.
"""

from typing import Literal

import msgspec

from headwater.declare.duration import duration_us

__all__ = ["ARRIVAL", "Late", "correct", "drop", "side"]

ARRIVAL = "_arrival"
"""As ``time`` of a stream: the time at which a record is written to the log. For events without a time; a
replay finds the same."""


class Late(msgspec.Struct, frozen=True):
    """A policy.

    Late records up to ``horizon`` before the watermark still count; older ones are published separately or
    only counted.
    """

    policy: Literal["drop", "side", "correct"]
    horizon: str = "0 seconds"

    @property
    def horizon_us(self) -> int:
        return duration_us(self.horizon)


def drop() -> Late:
    """Late records are counted and left out."""
    return Late("drop")


def side() -> Late:
    """Late records are left out and published to ``<view>.late``, each with the watermark of its batch.

    The default.
    """
    return Late("side")


def correct(horizon: str) -> Late:
    """Late records up to ``horizon`` before the watermark still count; older ones go to ``<view>.late``."""
    return Late("correct", horizon)
