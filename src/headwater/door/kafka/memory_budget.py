"""MemoryBudget: how many bytes all connections together may hold, and what happens when the limit is reached.

    a large request begins        it is not read until other connections have released enough for all of it
    answers are not taken         at half of the limit fetches are answered in small pieces; at the limit the
                                  connection is closed that has made no progress for longest

A connection that got room may always finish, so connections never wait for each other in a circle. One that
holds room without progress while others wait is closed after a while. Progress is to move 64 kB within that
time, or to finish what was begun. Connections that have not authenticated are not counted here
(``listener/unauthenticated.py``). This module does no I/O: it calls connections back.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ANSWER_BYTES_MAX", "BUFFERED_BYTES_MAX", "PROGRESS_BYTES", "Holder", "MemoryBudget"]

BUFFERED_BYTES_MAX = 1 << 28
"""Incomplete requests, and answers that clients have not read, over all connections."""
ANSWER_BYTES_MAX = 1 << 21
"""Records in one answer. More would hold up the event loop, and the client fetches the rest anyway."""
PRESSED_ANSWER_BYTES_MAX = 1 << 16
STALL_S = 10.0
"""How long a connection may make no progress while another one waits for room."""
PROGRESS_BYTES = 1 << 16
"""What it has to move in that time."""


class Holder(Protocol):
    """A connection, as far as the budget needs it."""

    def room_given(self) -> None:
        """Called when there may be room again for a request that was refused."""

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Held:
    size_bytes: int
    since: float
    """When it last made progress."""
    moved_bytes: int = 0
    """The bytes that it has moved since then."""


class MemoryBudget:
    """The budget of one server. The event loop owns it."""

    def __init__(self, limit_bytes: int = BUFFERED_BYTES_MAX, stall_s: float = STALL_S) -> None:
        self.total_bytes = 0
        self._limit_bytes = limit_bytes
        self._stall_s = stall_s
        self._held: OrderedDict[Holder, _Held] = OrderedDict()
        """Connections that hold something; the one that made no progress for longest comes first."""
        self._waiting: OrderedDict[Holder, int] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def answer_bytes_max(self) -> int:
        pressed = self.total_bytes * 2 > self._limit_bytes
        return PRESSED_ANSWER_BYTES_MAX if pressed else ANSWER_BYTES_MAX

    def has_room(self, holder: Holder, size_bytes: int) -> bool:
        """Whether a request may be read now; if not, the holder is called back when it may try again."""
        if next(iter(self._waiting), holder) is holder and self._fits(holder, size_bytes):
            self._waiting.pop(holder, None)
            return True
        self._waiting[holder] = size_bytes
        self._watch()
        return False

    def hold(self, holder: Holder, size_bytes: int, moved_bytes: int = 0) -> None:
        """Reports how much a connection holds now, and how much it has moved since its last report.

        It has made progress if it holds less than before, or has moved enough since its last progress.
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
        """Calls back the first connection that waits; when it holds its room, the next one follows."""
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
