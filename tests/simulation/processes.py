"""Processes of several threads on a machine that loses its power: what drivers of views need beyond `actors`.

``Process``  threads that live, sleep and die together; each is an actor
``Machine``  its folder on a real disk, what of it is synced, and the points of the batch protocol (``points.py``), at each of which a process may be
             switched or ended
"""

import asyncio
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from headwater.client import client
from headwater.pipeline import kill_points
from headwater.pipeline.engine import checkpoint_sync
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.checkpoint_sync import PARTS
from headwater.pipeline.run import state_files
from headwater.pipeline.state import copies, shard
from headwater.pipeline.time import ticks
from headwater.pipeline.time import watermark as times
from simulation.actors import Actor, Hub, current_hub
from simulation.clients import AdminClient, Answer, Producer

__all__ = ["Machine", "Process"]

TICK_PARTITIONS = 4
"""Fewer than there are: a check whether the log answers lists all of them."""
CHAIN_FILES_MAX = 4
"""Fewer than there are, so that state files are merged in a short life."""


class Process:
    """Threads that live and end together."""

    def __init__(self, hub: Hub, name: str, function: Callable[..., Any], *args: Any) -> None:
        self.hub, self.name = hub, name
        self.actors: list[Actor] = []
        self.fatal: tuple[str, int] | None = None
        """The point at which it is ended, and the how manyth time that it comes there."""
        self.main = self.spawn(name, self._live, function, *args)

    def _live(self, function: Callable[..., Any], *args: Any) -> Any:
        """The main thread: with it the others end."""
        try:
            return function(*args)
        finally:
            self.hub.loop.call_soon(self.kill)

    def spawn(self, name: str, function: Callable[..., Any], *args: Any) -> Actor:
        actor = self.hub.start(name, function, *args)
        actor.process = self  # type: ignore[attr-defined]
        self.actors.append(actor)
        return actor

    @property
    def alive(self) -> bool:
        return self.main.alive

    @property
    def error(self) -> BaseException | None:
        return self.main.error

    def kill(self) -> None:
        for actor in self.actors:
            actor.kill()

    def sleep(self, seconds: float) -> None:
        for actor in self.actors:
            actor.sleep(seconds)

    def die(self) -> None:
        """Called by one of its threads: nothing of it comes back."""
        self.hub.loop.call_soon(self.kill)
        self.hub.wait(self.hub.loop.create_future())


def own_process() -> Process | None:
    return getattr(current_hub().actor(), "process", None)


class Thread:
    """A thread of the process that has started it."""

    def __init__(self, *, target: Callable[..., Any], name: str = "", daemon: bool = False) -> None:  # noqa: ARG002
        self._target, self._name = target, name
        self._actor: Actor | None = None

    def start(self) -> None:
        process = own_process()
        assert process is not None
        self._actor = process.spawn(self._name, self._target)

    def is_alive(self) -> bool:
        return self._actor is not None and self._actor.alive

    def join(self) -> None:
        if self._actor is not None and not self._actor.done.done():
            current_hub().wait(asyncio.wait({self._actor.done}))


class Sending(Producer):
    """A producer that sends by itself, as the library does; no caller waits for it."""

    _sending: asyncio.Task | None = None

    def poll(self, timeout: float = 0) -> int:
        if self._sending is None or self._sending.done():
            self._sending = self._hub.task(self._send_all())
            self._sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return super().poll(timeout)

    async def _send_all(self) -> None:
        while self._waiting:
            topic, partition, record, _, until = self._waiting.pop(0)
            await self._deliver(topic, partition, record, until)


def _sending(_: object) -> Sending:
    return Sending({})


class Admin(AdminClient):
    """Deletes topics too."""

    def delete_topics(self, topics: list[str], request_timeout: float = 60) -> dict[str, Answer]:
        return {each: self._asked(request_timeout, lambda each=each: self._delete(each)) for each in topics}

    async def _delete(self, name: str) -> None:
        answer = await self._link.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=1000)
        if answer.responses[0].error_code:
            raise AssertionError(f"{name} cannot be deleted: {answer.responses[0].error_code}")


class Machine:
    """A machine that runs drivers; ``restless`` is the share of points at which another thread may come first."""

    def __init__(self, hub: Hub, chance: random.Random) -> None:
        self.hub, self.chance = hub, chance
        self.folder = Path(
            tempfile.mkdtemp(prefix="life-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self.synced: set[str] = set()
        self.restless = 0.3

    @contextmanager
    def running(self) -> Iterator[None]:
        """Code of the pipeline runs on it."""
        with ExitStack() as patched:
            enter = patched.enter_context
            enter(mock.patch.object(threading, "Thread", Thread))
            enter(mock.patch.object(checkpoint_sync, "_sync", self._sync))
            enter(mock.patch.object(os, "fsync"))
            enter(mock.patch.object(times, "TICK_PARTITIONS", TICK_PARTITIONS))
            enter(mock.patch.object(shard, "CHAIN_FILES_MAX", CHAIN_FILES_MAX))
            enter(mock.patch.object(kill_points, "_meet", self._meet))
            enter(mock.patch.dict(os.environ, {"CRASH_FILE": "/"}))
            enter(mock.patch.object(state_files, "names", self._slowly(state_files.names)))
            enter(mock.patch.object(state_files, "remove", self._slowly(state_files.remove)))
            enter(mock.patch.object(Checkpoint, "last", self._slowly(Checkpoint.last)))
            enter(mock.patch.object(client, "AdminClient", Admin))
            enter(mock.patch.object(ticks, "producer", _sending))
            try:
                yield
            finally:
                self._close_copies()
                shutil.rmtree(self.folder, ignore_errors=True)

    def power_cut(self) -> list[str]:
        """Of what was not synced, files are gone or empty; copies have another folder after a start of the machine."""
        lost = []
        for file in sorted(self.folder.glob("checkpoints/*/*/**/*")):
            inside = file.relative_to(self.folder).parts[3]
            if file.is_file() and inside in PARTS and str(file) not in self.synced:
                match self.chance.randrange(3):
                    case 0:
                        file.unlink()
                    case 1:
                        file.write_bytes(b"")
                    case 2:
                        continue
                lost.append(str(file))
        self._close_copies()
        shutil.rmtree(self.folder / "copies", ignore_errors=True)
        return lost

    def _close_copies(self) -> None:
        mine = [key for key in copies._open_copies if self.folder in key[1].parents]
        for key in mine:
            copies._open_copies.pop(key).close()

    def _slowly(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What looks at files takes a moment, too."""

        def slow(*args: Any) -> Any:
            self._pause()
            return function(*args)

        return slow

    def _pause(self) -> None:
        if own_process() is not None and self.chance.random() < self.restless:
            self.hub.pause()

    def _sync(self, path: str) -> None:
        self.synced.add(path)

    def _meet(self, _: Path, point: str, before: Callable[[], object] | None) -> None:
        process = own_process()
        if process is None:
            return
        if process.fatal is not None and process.fatal[0] == point:
            process.fatal = (point, process.fatal[1] - 1)
            if process.fatal[1] <= 0:
                process.fatal = None
                if before is not None:
                    before()
                process.die()
        self._pause()
