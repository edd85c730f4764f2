"""Flow: how many bytes all connections together may hold, and who has to wait or go when they are reached.

    a large request begins        waits, unread, until others give back enough for the whole of it
    answers are not taken         half the limit reached: fetches are answered in small pieces
                                  all of it reached: the connection goes that has made no progress for longest

Somebody who has been given room may always finish, so nobody waits in a circle; who holds room and does nothing with it while
others wait is closed after a while. To do something is to move 64 kB within that time, or to be done with what was begun: a byte now and then
is nothing. Connections that have not said who they are do not count here (``stranger.py``). There are no sockets in here: connections are told through two callbacks.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ANSWER_BYTES_MAX", "BUFFERED_BYTES_MAX", "PROGRESS_BYTES", "Flow", "Holder"]

BUFFERED_BYTES_MAX = 1 << 28
"""Requests that have not arrived whole, and answers that clients have not taken, over all connections."""
ANSWER_BYTES_MAX = 1 << 21
"""Records in one answer, whatever a fetch asks for: more would hold up the event loop, and the client asks again anyway."""
PRESSED_ANSWER_BYTES_MAX = 1 << 16
STALL_S = 10.0
"""How long a holder may do nothing while somebody waits for room."""
PROGRESS_BYTES = 1 << 16
"""Fewer in that time are nothing."""


class Holder(Protocol):
    """A connection, as seen from here."""

    def room_given(self) -> None:
        """There is room again for what was refused."""

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Held:
    size_bytes: int
    since: float
    """When it last made progress."""
    moved_bytes: int = 0
    """What it has moved since then."""


class Flow:
    """The account of one server. The event loop owns it."""

    def __init__(self, limit_bytes: int = BUFFERED_BYTES_MAX, stall_s: float = STALL_S) -> None:
        self.total_bytes = 0
        self._limit_bytes = limit_bytes
        self._stall_s = stall_s
        self._held: OrderedDict[Holder, _Held] = OrderedDict()
        """Who holds something; who has made no progress for longest comes first."""
        self._waiting: OrderedDict[Holder, int] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def answer_bytes_max(self) -> int:
        pressed = self.total_bytes * 2 > self._limit_bytes
        return PRESSED_ANSWER_BYTES_MAX if pressed else ANSWER_BYTES_MAX

    def has_room(self, holder: Holder, size_bytes: int) -> bool:
        """Whether a request may be taken in; if not, the holder is called once it may ask again."""
        if next(iter(self._waiting), holder) is holder and self._fits(holder, size_bytes):
            self._waiting.pop(holder, None)
            return True
        self._waiting[holder] = size_bytes
        self._watch()
        return False

    def hold(self, holder: Holder, size_bytes: int, moved_bytes: int = 0) -> None:
        """Says how much a connection holds now, and how much it has moved since it last said so.

        It has made progress when it holds less than before, or has moved enough since it last did.
        """
        held = self._held.get(holder)
        before_bytes = held.size_bytes if held else 0
        self.total_bytes += size_bytes - before_bytes
        if not size_bytes:
            self._held.pop(holder, None)
        elif held is None:
            self._held[holder] = _Held(size_bytes, asyncio.get_running_loop().time())
        else:
            held.size_bytes = size_bytes
            held.moved_bytes += moved_bytes
            if size_bytes < before_bytes or held.moved_bytes >= PROGRESS_BYTES:
                held.since, held.moved_bytes = asyncio.get_running_loop().time(), 0
                self._held.move_to_end(holder)
        while self.total_bytes > self._limit_bytes and len(self._held) > 1:
            self._evict("all connections together hold too much, and it has made no progress for longest")
        self._wake()

    def forget(self, holder: Holder) -> None:
        """A connection has ended."""
        self._waiting.pop(holder, None)
        self.hold(holder, 0)

    def _evict(self, reason: str) -> None:
        holder, held = self._held.popitem(last=False)
        self.total_bytes -= held.size_bytes
        holder.close(reason)

    def _wake(self) -> None:
        """Calls the first who waits; who is served then wakes the next one by holding."""
        if not self._waiting:
            return
        holder, size_bytes = next(iter(self._waiting.items()))
        if self._fits(holder, size_bytes):
            holder.room_given()

    def _fits(self, holder: Holder, size_bytes: int) -> bool:
        own = self._held.get(holder)
        others_bytes = self.total_bytes - (own.size_bytes if own else 0)
        return not others_bytes or others_bytes + size_bytes <= self._limit_bytes

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._stall_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        stalled = asyncio.get_running_loop().time() - self._stall_s
        while self._held and next(iter(self._held.values())).since <= stalled:
            self._evict(f"it has made no progress for {self._stall_s:g} s while others wait for room")
        self._wake()
        self._watch()
