"""Wakeup: threads wake a coroutine that waits for them."""

import asyncio
import contextlib

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes one coroutine from any thread. Several calls of `set` before it waits wake it once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the reader with it
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> bool:
        """True if it was set, False if the time is up."""
        try:
            await asyncio.wait_for(self._event.wait(), self._seconds)
        except TimeoutError:
            return False
        self._event.clear()
        return True
