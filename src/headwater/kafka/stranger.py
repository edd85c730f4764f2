"""Strangers: connections that have not said who they are yet, where the broker has users.

    bytes    what one of them has begun to send, or does not take, is at most 64 kB; more closes it
    time     it says who it is within some seconds, or is closed; what it sends meanwhile does not count
    number   when there are too many, the oldest goes: a client that authenticates does so with its first requests

They are not in the account of all connections (``flow.py``): so none of them takes room that a user waits for. There are no sockets in here.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol

__all__ = ["AUTHENTICATION_S", "STRANGERS_MAX", "STRANGER_BYTES_MAX", "Strangers"]

STRANGER_BYTES_MAX = 1 << 16
AUTHENTICATION_S = 10.0
"""From the connection, TLS included, to the last message of SASL; clients need some round trips."""
STRANGERS_MAX = 512
"""With what each may hold, 32 MB."""


class Stranger(Protocol):
    """A connection, as seen from here."""

    def close(self, reason: str) -> None: ...


class Strangers:
    """Those of one server. The event loop owns it."""

    def __init__(self) -> None:
        self._timers: OrderedDict[Stranger, asyncio.TimerHandle] = OrderedDict()

    def enter(self, stranger: Stranger) -> None:
        """A connection has been made."""
        reason = f"it has not said who it is within {AUTHENTICATION_S:g} s"
        loop = asyncio.get_running_loop()
        self._timers[stranger] = loop.call_later(AUTHENTICATION_S, stranger.close, reason)
        if len(self._timers) > STRANGERS_MAX:
            oldest = next(iter(self._timers))
            self.leave(oldest)
            oldest.close(f"it has not said who it is, and {STRANGERS_MAX} others have come since")

    def leave(self, stranger: Stranger) -> None:
        """It has said who it is, or has ended; it may be called twice."""
        timer = self._timers.pop(stranger, None)
        if timer is not None:
            timer.cancel()
