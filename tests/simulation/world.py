"""The world of a simulated life: one thread, virtual time, a disk that fails as asked. The same seed gives the same life.

``Loop``  an event loop whose clock goes to the next timer at once; a thread's work is a step of its own, later by a time of our choosing
``Time``  the broker's clock on it, which can be set
``Disk``  the disk in memory, with failing and short reads, failing syncs, no room
"""

import asyncio
import errno
import gc
import heapq
import math
import random
import selectors
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from headwater.log.storage.memory import MemoryDisk
from simulation.model import Wrong

__all__ = ["Disk", "Loop", "TickingLoop", "Time", "world"]

CARETAKER_S = 3600.0
"""How often the caretaker looks: every hour instead of every fifteen seconds, as there are weeks to live."""

LONGEST_WAIT_S = 86_400.0
"""As asyncio has it."""

TICK_S = 2.0**-20
"""A power of two: sums of ticks are exact."""


class _Selector(selectors.SelectSelector):
    """Has nothing to wait for."""

    def select(self, timeout: float | None = None) -> list:  # noqa: ARG002
        raise AssertionError("the loop of a life does not wait")


class Loop(asyncio.SelectorEventLoop):
    """Virtual time. ``delay`` gives the seconds that a thread's work waits for its turn, and then takes."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.delay: Callable[[], float] = lambda: 0.0
        super().__init__(_Selector())

    def _run_once(self) -> None:
        """A turn in the order of asyncio's own, without files to wait for: the time until the next timer passes at once."""
        ready, timers = self._ready, self._scheduled
        if len(timers) > 100 and self._timer_cancelled_count * 2 > len(timers):
            timers = self._scheduled = [timer for timer in timers if not timer._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1
        if not ready and not self._stopping:
            if not timers:
                raise Wrong("a hang: nothing will ever happen again")
            self.elapsed += min(max(timers[0]._when - self.elapsed, 0), LONGEST_WAIT_S)
        end = self.elapsed + self._clock_resolution
        while timers and timers[0]._when < end:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  as asyncio does it
                    what = {"message": f"exception in {handle!r}", "exception": error, "handle": handle}
                    self.call_exception_handler(what)

    get_debug = staticmethod(bool)
    """False, at the price of a call into C: every future asks."""

    def tasks(self) -> list[asyncio.Task]:
        """All that are not done, in the order in which they were made: asyncio's own set is in that of their addresses."""
        return sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name().removeprefix("Task-")))

    def call_soon(self, callback, *args, context=None):
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def time(self) -> float:
        return self.elapsed

    def run_in_executor(self, executor, func, *args):  # noqa: ARG002
        done = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  the one who waits gets it
                self.call_later(self.delay(), finish, None, error)
            else:
                self.call_later(self.delay(), finish, result, None)

        def finish(result: object, error: Exception | None) -> None:
            if not done.done():
                done.set_result(result) if error is None else done.set_exception(error)

        self.call_later(self.delay(), work)
        return done


class TickingLoop(Loop):
    """Time goes in ticks of a microsecond, and no timer is early by less than one.

    asyncio runs a timer that is due within the clock's resolution. Where time does not pass by itself, code that sets it again for the rest would do so for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = TICK_S / 4

    def call_at(self, when, callback, *args, context=None):
        return super().call_at(math.ceil(when / TICK_S) * TICK_S, callback, *args, context=context)


class Time:
    """Wall time and elapsed time of a loop. ``step`` sets the wall clock."""

    def __init__(self, loop: Loop, now_ms: int = 1_767_603_600_000) -> None:
        self._loop = loop
        self._base_ms = now_ms

    def now_ms(self) -> int:
        return self._base_ms + int(self._loop.elapsed * 1000)

    def monotonic(self) -> float:
        return self._loop.elapsed

    def step(self, seconds: float) -> None:
        self._base_ms += int(seconds * 1000)


class Disk(MemoryDisk):
    """Reads fail or end early for as long as ``bad`` says so of a path."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: Callable[[Path], bool] | None = None
        self.short: Callable[[Path], bool] | None = None

    def check(self, operation: str, path: Path, size: int = 0) -> None:
        if operation == "read" and self.bad is not None and self.bad(path):
            raise OSError(errno.EIO, f"{path.name}: bad sector")
        super().check(operation, path, size)

    def open(self, path: Path, *, create: bool = False):
        file = super().open(path, create=create)
        if self.short is None:
            return file
        return _ShortFile(file, self, path)

    def after_power_cut(self, seed: int | None) -> "Disk":
        return self._become(self.power_cut(seed))

    def after_kill(self) -> "Disk":
        """What the page cache keeps: everything that was written, and what of it was synced."""
        return self._become(self)

    def _become(self, other: MemoryDisk) -> "Disk":
        after = Disk()
        after._names = {folder: dict(files) for folder, files in other._names.items()}
        after._durable = {folder: dict(files) for folder, files in other._durable.items()}
        after._renamed, after._moved = dict(other._renamed), list(other._moved)
        return after


class _ShortFile:
    def __init__(self, file, disk: Disk, path: Path) -> None:
        self._file, self._disk, self._path = file, disk, path

    def read(self, length: int, position: int) -> bytes:
        data = self._file.read(length, position)
        return (
            data[: len(data) // 2] if self._disk.short is not None and self._disk.short(self._path) else data
        )

    def __getattr__(self, name: str):
        return getattr(self._file, name)


def _uuid(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128), version=4)


@contextmanager
def world(seed: int, make: type[Loop] = Loop) -> Iterator[Loop]:
    """A loop for one life; ids are drawn from the seed too. What the life leaves in circles is collected after it."""
    chance = random.Random(seed)
    loop = make()
    collects = gc.isenabled()
    gc.disable()
    asyncio.set_event_loop(loop)
    with mock.patch.object(uuid, "uuid4", partial(_uuid, chance)):
        try:
            yield loop
        finally:
            for task in loop.tasks():
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()
            if collects:
                gc.enable()
