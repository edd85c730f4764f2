"""Runners: what calls handlers, several at once, and tells the worker what came of each.

Threads for plain functions, one event loop for coroutines. A handler that was given up keeps its thread until
it ends; the thread is replaced. A coroutine is cancelled.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from headwater.worker.call import Call
from headwater.worker.outcome import Outcome
from headwater.worker.work_list import Task

__all__ = ["Coroutines", "Finished", "Runner", "Threads"]

Finished = Callable[[Task, Outcome], None]
"""Called in any thread when a handler has ended."""


class Runner(Protocol):
    """Calls handlers. Its methods are called by the worker's thread."""

    def start(self, task: Task) -> None:
        """Calls the handler of a message soon."""

    def give_up(self, task: Task) -> None:
        """The handler takes too long: another one gets its place."""

    def close(self) -> None:
        """Nothing is started any more. Does not wait for handlers that run."""


class Threads:
    """As many threads as handlers have run at once."""

    def __init__(self, name: str, call: Call, finished: Finished) -> None:
        self._name = name
        self._call = call
        self._finished = finished
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        """Threads that run a handler which was not given up, or soon will."""
        self._given_up: set[Task] = set()

    def start(self, task: Task) -> None:
        with self._lock:
            self._busy += 1
            needed = self._busy > self._threads
            self._threads += needed
        if needed:
            threading.Thread(target=self._work, name=f"worker {self._name}", daemon=True).start()
        self._tasks.put(task)

    def give_up(self, task: Task) -> None:
        with self._lock:
            self._given_up.add(task)
            self._threads -= 1
            self._busy -= 1

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            outcome = self._call.run(task)
            with self._lock:
                was_given_up = task in self._given_up
                self._given_up.discard(task)
                self._busy -= not was_given_up
            self._finished(task, outcome)
            if was_given_up:
                return  # another thread has its place


class Coroutines:
    """One event loop in a thread of its own."""

    def __init__(self, name: str, call: Call, finished: Finished) -> None:
        self._call = call
        self._finished = finished
        self._loop = asyncio.new_event_loop()
        self._running: dict[Task, asyncio.Task[None]] = {}
        """Belongs to the loop."""
        threading.Thread(target=self._loop.run_forever, name=f"worker {name}", daemon=True).start()

    def start(self, task: Task) -> None:
        self._loop.call_soon_threadsafe(self._begin, task)

    def give_up(self, task: Task) -> None:
        self._loop.call_soon_threadsafe(self._cancel, task)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)

    def _begin(self, task: Task) -> None:
        self._running[task] = self._loop.create_task(self._run(task))

    def _cancel(self, task: Task) -> None:
        if task in self._running:
            self._running[task].cancel()

    def _stop(self) -> None:
        for running in self._running.values():
            running.cancel()
        self._loop.call_soon(self._loop.stop)

    async def _run(self, task: Task) -> None:
        try:
            outcome = await self._call.run_async(task)
        finally:
            del self._running[task]
        self._finished(task, outcome)
