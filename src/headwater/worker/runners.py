"""Runners: what calls handlers, several at once, and tells the worker what came of each.

Threads for plain functions, one event loop for coroutines. A handler that was given up keeps its thread until
it ends; the thread is replaced. A coroutine is cancelled.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from headwater.worker.call import Call
from headwater.worker.outcome import Failed, Outcome
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
        self._busy: set[Task] = set()
        """Tasks whose handlers run, or soon will, and were not given up."""

    def start(self, task: Task) -> None:
        with self._lock:
            self._busy.add(task)
            needed = len(self._busy) > self._threads
            self._threads += needed
        if needed:
            threading.Thread(target=self._work, name=f"worker {self._name}", daemon=True).start()
        self._tasks.put(task)

    def give_up(self, task: Task) -> None:
        with self._lock:
            if task in self._busy:
                self._busy.remove(task)
                self._threads -= 1

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            outcome = self._call.run(task)
            with self._lock:
                was_given_up = task not in self._busy
                self._busy.discard(task)
            self._finished(task, outcome)
            if was_given_up:
                return  # another thread has its place


class Coroutines:
    """One event loop in a thread of its own."""

    def __init__(self, name: str, call: Call, finished: Finished) -> None:
        self._call = call
        self._finished = finished
        self._loop = asyncio.new_event_loop()
        self._running: dict[Task, asyncio.Task[Outcome]] = {}
        """Belongs to the loop."""
        threading.Thread(target=self._work, name=f"worker {name}", daemon=True).start()

    def start(self, task: Task) -> None:
        self._loop.call_soon_threadsafe(self._begin, task)

    def give_up(self, task: Task) -> None:
        self._loop.call_soon_threadsafe(self._cancel, task)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, task: Task) -> None:
        running = self._running[task] = self._loop.create_task(self._call.run_async(task))
        running.add_done_callback(partial(self._end, task))

    def _end(self, task: Task, ended: "asyncio.Task[Outcome]") -> None:
        del self._running[task]
        self._finished(task, Failed("CancelledError") if ended.cancelled() else ended.result())

    def _cancel(self, task: Task) -> None:
        if task in self._running:
            self._running[task].cancel()

    def _stop(self) -> None:
        """Cancels what runs, and ends the loop once that had its chance to end."""
        for running in self._running.values():
            running.cancel()
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)
