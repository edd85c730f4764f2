"""Strangers: connections that have not authenticated yet, where the broker has users.

    bytes    an incomplete request, or answers that are not read, are at most 64 kB; with more it is closed
    time     it authenticates within some seconds, or is closed, whatever it sends in that time
    number   if there are too many, the oldest is closed: clients authenticate with their first requests

They do not count in the memory budget (``memory_budget.py``), so none of them takes room that a user waits
for. This module does no I/O.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol

__all__ = ["AUTHENTICATION_S", "STRANGERS_MAX", "STRANGER_BYTES_MAX", "Strangers"]

STRANGER_BYTES_MAX = 1 << 16
AUTHENTICATION_S = 10.0
"""From the connection, TLS included, to the last message of SASL; clients need some round trips."""
STRANGERS_MAX = 512
"""Together they hold at most 32 MB."""


class Stranger(Protocol):
    """A connection, as far as it is needed here."""

    def close(self, reason: str) -> None: ...


class Strangers:
    """The strangers of one server. The event loop owns it."""

    def __init__(self) -> None:
        self._timers: OrderedDict[Stranger, asyncio.TimerHandle] = OrderedDict()

    def enter(self, stranger: Stranger) -> None:
        """A connection was made."""
        reason = f"it has not authenticated within {AUTHENTICATION_S:g} s"
        loop = asyncio.get_running_loop()
        self._timers[stranger] = loop.call_later(AUTHENTICATION_S, stranger.close, reason)
        if len(self._timers) > STRANGERS_MAX:
            oldest = next(iter(self._timers))
            self.leave(oldest)
            oldest.close(f"it has not authenticated, and {STRANGERS_MAX} others have connected since")

    def leave(self, stranger: Stranger) -> None:
        """It has authenticated or ended; may be called twice."""
        timer = self._timers.pop(stranger, None)
        if timer is not None:
            timer.cancel()
