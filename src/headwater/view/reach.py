"""Reach: how far views have read, and up to when they are complete.

All requests share one consumer, in a thread of its own that begins with the first of them: a console that nobody asks so pays nothing.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headwater.access import Log
from headwater.errors import Behind, HeadwaterError, MachineError
from headwater.position import Position
from headwater.view import ready
from headwater.view.signal import Signal
from headwater.wait import Follower, History

__all__ = ["Reach"]

ANSWER_S = 5.0
"""How long the log may take to say whether a view has results."""
POLL_S = 0.25
LOOK_S = 1.0
"""Without news for so long, a request looks whether the view's results are still there."""
FIRST_S = 2.0
"""So long the first request for a view waits at most until its results were read once."""
AGAIN_S = 5.0
"""After so long, whoever asks what a view is complete up to makes us look whether it has results by now, without waiting for that."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class _Look:
    """A look for the results of a view, in a task of its own that ends within `FIRST_S`."""

    begun: float
    first: bool
    task: asyncio.Task[None]


class Reach:
    """Answers coroutines of one event loop; `close` may be called from any thread, once or twice."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._wakes: dict[Callable[[], None], str] = {}
        self._looks: dict[str, _Look] = {}
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
        end = self.watch(view, signal.set)
        try:
            follower = await self._follow(view)
            while True:
                found = follower.covering(view, position)
                if found is not None:
                    return found
                if not await signal.wait() or self._stopping.is_set():
                    follower = await self._follow(view)
        finally:
            end()

    async def settle(self, view: str) -> None:
        """Makes `complete` know the view: waits until its results were read once, for `FIRST_S` at most and never a second time.

        A view without results and a log that is away are no errors here.
        """
        look = self._looks.get(view)
        now = asyncio.get_running_loop().time()
        if look is None or (look.task.done() and now >= look.begun + AGAIN_S):
            look = _Look(now, look is None, asyncio.create_task(self._look(view)))
            self._looks[view] = look
        if look.first and not look.task.done():
            await asyncio.wait([look.task])

    def complete(self, view: str, held: Position) -> str | None:
        """Up to when the rows of a table at a position are complete, as `headwater.view.ready` writes times; never waits.

        None for a view that says nothing of it (real-time views have no results), or that was not settled.
        """
        follower = self._follower
        found = None if follower is None else follower.complete(view, held)
        return None if found is None else ready.text(found)

    def columns(self, view: str) -> Mapping[str, str]:
        """The types of a view's columns, by its newest result; none of a view without results, or that was not settled."""
        follower = self._follower
        return {} if follower is None else follower.columns(view)

    def watch(self, view: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls ``wake`` from another thread after new results of a view, until the returned function is called."""
        with self._lock:
            self._wakes[wake] = view

        def end() -> None:
            with self._lock:
                self._wakes.pop(wake, None)

        return end

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

    async def _look(self, view: str) -> None:
        signal = Signal(FIRST_S)
        end = self.watch(view, signal.set)
        try:
            with contextlib.suppress(HeadwaterError, TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    follower = await self._follow(view)
                    while not follower.caught_up(view) and not self._stopping.is_set():
                        await signal.wait()
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
            logger.warning("results of views are read anew: %s", error)
        finally:
            with self._lock:
                self._follower = None
            follower.close()

    def _wake(self, views: Collection[str] | None = None) -> None:
        with self._lock:
            for wake, view in self._wakes.items():
                if views is None or view in views:
                    wake()
