"""Reach: how far views have read, for requests that wait for it.

All requests share one consumer, in a thread of its own that begins with the first of them: a console that nobody asks so pays nothing.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headwater.access import Log
from headwater.errors import Behind, HeadwaterError, MachineError
from headwater.position import Position
from headwater.view.signal import Signal
from headwater.wait import Follower, History

__all__ = ["Reach"]

ANSWER_S = 5.0
"""How long the log may take to say whether a view has results."""
POLL_S = 0.25
LOOK_S = 1.0
"""Without news for so long, a request looks whether the view's results are still there."""

logger = logging.getLogger(__name__)


class Reach:
    """Answers coroutines of one event loop; `close` may be called from any thread, once or twice."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._wakes: set[Callable[[], None]] = set()
        self._follower: Follower | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        # One thread for questions to the log: while it is away they queue up here, and not where tables are read.
        self._asking = ThreadPoolExecutor(1, "reach-ask")

    async def covering(self, view: str, position: Position) -> Position:
        """The position of the view's topic that holds what it made of ``position``, as soon as there is one.

        Waits without limit: the caller has one. Raises what `Follower.follow` and `History.covering` raise.
        """
        signal = Signal(LOOK_S)
        with self._lock:
            self._wakes.add(signal.set)
        try:
            follower = await self._follow(view)
            while True:
                found = follower.covering(view, position)
                if found is not None:
                    return found
                if not await signal.wait() or self._stopping.is_set():
                    follower = await self._follow(view)
        finally:
            with self._lock:
                self._wakes.discard(signal.set)

    def behind(self, view: str, position: Position, seconds: float) -> Behind:
        """The error for a request whose time is over."""
        follower = self._follower
        if follower is None:
            return History(view).behind(position, seconds)
        return follower.behind(view, position, seconds)

    def close(self) -> None:
        """Ends the thread; requests that wait get an error."""
        self._stopping.set()
        self._wake()
        self._asking.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    async def _follow(self, view: str) -> Follower:
        if self._stopping.is_set():
            raise MachineError("the console is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._asking, self._ask, view)

    def _ask(self, view: str) -> Follower:
        with self._lock:
            if self._follower is None:
                self._follower = Follower(self._log, timeout_s=ANSWER_S)
                self._thread = threading.Thread(
                    target=self._run, args=(self._follower,), name="reach", daemon=True
                )
                self._thread.start()
            follower = self._follower
        follower.follow(view)
        return follower

    def _run(self, follower: Follower) -> None:
        try:
            while not self._stopping.is_set():
                if follower.poll(POLL_S):
                    self._wake()
        except HeadwaterError as error:
            logger.warning("results of views are read anew: %s", error)
        finally:
            with self._lock:
                self._follower = None
            follower.close()

    def _wake(self) -> None:
        with self._lock:
            for wake in self._wakes:
                wake()
