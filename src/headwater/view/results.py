"""ViewProgress: how far views have read, and up to when they are complete.

All requests share one consumer in a thread that starts with the first request: a console without requests
pays nothing.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headwater.access import Log
from headwater.errors import HeadwaterError, MachineError, NotReachedError
from headwater.follow.follower import Follower, History
from headwater.position import Position
from headwater.result import LeftOut
from headwater.view.tables import completeness
from headwater.view.wakeup import Wakeup

__all__ = ["ViewProgress"]

ANSWER_S = 5.0
"""How long the log may take to say whether a view has results."""
POLL_S = 0.25
LOOK_S = 1.0
"""After so long without news, a request checks that the view still has results."""
FIRST_S = 2.0
"""How long the first request for a view may wait until its results were read once."""
AGAIN_S = 5.0
"""After so long, a request for the completeness of a view starts another look for its results, without
waiting."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class _Look:
    """A look for the results of a view, in a task that ends within `FIRST_S`."""

    begun: float
    first: bool
    task: asyncio.Task[None]


class ViewProgress:
    """Answers coroutines of one event loop. `close` may be called from any thread, and twice."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._wakes: dict[Callable[[], None], str] = {}
        self._looks: dict[str, _Look] = {}
        self._follower: Follower | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        # One thread for questions to the log: while the log is away they queue here, not with reads of
        # tables.
        self._asking = ThreadPoolExecutor(1, "reach-ask")

    async def covering(self, view: str, position: Position) -> Position:
        """The position of the view's topic at which everything before ``position`` is included.

        Waits for it without limit: the caller has one. Raises what `Follower.follow` and
        `History.covering` raise.
        """
        wakeup = Wakeup(LOOK_S)
        end = self.watch(view, wakeup.set)
        try:
            follower = await self._follow(view)
            while True:
                reached = follower.covering(view, position)
                if reached is not None:
                    return reached
                if not await wakeup.wait() or self._stopping.is_set():
                    follower = await self._follow(view)
        finally:
            end()

    async def settle(self, view: str) -> None:
        """Waits until the results of a view were read once, so that `complete` can answer.

        It waits `FIRST_S` at most, and only for the first request. A view without results and a log that
        is away are not errors here.
        """
        look = self._looks.get(view)
        now = asyncio.get_running_loop().time()
        if look is None or (look.task.done() and now >= look.begun + AGAIN_S):
            look = _Look(now, look is None, asyncio.create_task(self._look(view)))
            self._looks[view] = look
        if look.first and not look.task.done():
            await asyncio.wait([look.task])

    def complete(self, view: str, held: Position) -> str | None:
        """Up to when the rows of a table at a position are complete, as text of `completeness`; never waits.

        None if the view has no results (real-time views have none), or was not settled.
        """
        follower = self._follower
        time_us = None if follower is None else follower.complete(view, held)
        return None if time_us is None else completeness.text(time_us)

    def columns(self, view: str) -> Mapping[str, str]:
        """The types of a view's columns in its newest result.

        Empty without results, or if it was not settled.
        """
        follower = self._follower
        return {} if follower is None else follower.columns(view)

    def left_out(self, view: str) -> LeftOut | None:
        """How many records a view has left out; None without results, or if it was not settled."""
        follower = self._follower
        return None if follower is None else follower.left_out(view)

    def watch(self, view: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls ``wake`` from another thread after new results of a view; the returned function ends that."""
        with self._lock:
            self._wakes[wake] = view

        def end() -> None:
            with self._lock:
                self._wakes.pop(wake, None)

        return end

    def not_reached(self, view: str, position: Position, seconds: float) -> NotReachedError:
        """The error of a request whose time is over."""
        follower = self._follower
        if follower is None:
            return History(view).not_reached(position, seconds)
        return follower.not_reached(view, position, seconds)

    def close(self) -> None:
        """Ends the thread; waiting requests get an error."""
        self._stopping.set()
        self._wake()
        self._asking.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    async def _look(self, view: str) -> None:
        wakeup = Wakeup(FIRST_S)
        end = self.watch(view, wakeup.set)
        try:
            with contextlib.suppress(HeadwaterError, TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    follower = await self._follow(view)
                    while not follower.caught_up(view) and not self._stopping.is_set():
                        await wakeup.wait()
        finally:
            end()

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
                if news := follower.poll(POLL_S):
                    self._wake(news)
        except HeadwaterError as error:
            logger.warning("results of views are read again: %s", error)
        finally:
            with self._lock:
                self._follower = None
            follower.close()

    def _wake(self, views: Collection[str] | None = None) -> None:
        with self._lock:
            for wake, view in self._wakes.items():
                if views is None or view in views:
                    wake()
