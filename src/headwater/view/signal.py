"""Signal: from the threads that know of something to the coroutine that waits for it."""

import asyncio
import contextlib

__all__ = ["Signal"]


class Signal:
    """Wakes one coroutine from any thread; several sets before it looks are one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the reader with it
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> bool:
        """True when it was set, false when the time is up."""
        try:
            await asyncio.wait_for(self._event.wait(), self._seconds)
        except TimeoutError:
            return False
        self._event.clear()
        return True
