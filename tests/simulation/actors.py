"""Actors: synchronous code (a capture, a sink, a driver) in the simulated world. Exactly one runs at a time, and a seed decides who is next.

    with world(seed) as loop:
        hub = Hub(loop, clock, random.Random(seed))
        with hub:                                        # time.sleep, time.monotonic, threading.Event, random.Random() are virtual
            async def life():
                actor = hub.start("capture", feed.run, stop)
                await hub.switches(7)                    # the 7th time from now that any actor is about to continue after a blocking call
                actor.kill()                             # nothing of it is sent from now on, whatever its `finally` blocks try
                actor.sleep(3600)                        # a suspended process: it continues an hour later, and so do its heartbeats
            loop.run_until_complete(life())

An actor is a greenlet. A blocking call gives the hub something to wait for (`Hub.wait`), and the event loop runs until that is done: every such
call is a switch point. The life itself is a coroutine of the loop; it starts actors, lets time pass with ``asyncio.sleep`` and looks at
``actor.done``, ``actor.error``, ``actor.result``. Outside of an actor, while the loop does not run, `Hub.wait` runs the loop itself.

``hub.slack`` stretches waits that end by their time-out (``Event.wait``, an idle ``poll``) to at least so many seconds: actors that wait for days
cost little. What they wait for still wakes them at once.
"""

import asyncio
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Self
from unittest import mock

import greenlet

from simulation.world import Loop, Time

__all__ = ["Actor", "Event", "Hub", "Killed", "current_hub"]

RealEvent = threading.Event
real_sleep = time.sleep
RealRandom = random.Random
LATER_S = (0.0, 0.0, 0.0, 0.001, 0.03)
"""How long after its wait an actor continues: another may come first."""
HELD_S = 0.001
"""So long an actor is held back at the switch point that the life waits for."""

_hubs: list["Hub"] = []


class Killed(BaseException):
    """Unwinds an actor that was killed."""


def current_hub() -> "Hub":
    return _hubs[-1]


class Actor(greenlet.greenlet):
    """One process of one thread."""

    def __init__(self, hub: "Hub", name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(self._live, parent=hub.greenlet)
        self.hub, self.name = hub, name
        self._function, self._args = function, args
        self.result: Any = None
        self.error: BaseException | None = None
        self.killed = False
        self.lost = False
        """Whether what it had sent and not arrived yet is lost with it."""
        self.done = hub.loop.create_future()
        self._asleep_until = 0.0
        self._waiting: list[Callable[[], None]] = []

    def _live(self) -> None:
        try:
            self.result = self._function(*self._args)
        except Killed:
            self.killed = True
        except BaseException as error:  # noqa: BLE001  the life looks at it
            self.error = error
        if not self.done.done():
            self.done.set_result(None)

    @property
    def alive(self) -> bool:
        return not self.killed and not self.done.done()

    @property
    def asleep(self) -> bool:
        return self.hub.loop.time() < self._asleep_until

    def kill(self) -> None:
        """The process is gone at this point of its work. Only the life calls."""
        if not self.alive:
            return
        self.killed = True
        self.lost = self.hub.chance.random() < 0.5
        if self:  # it has begun
            self.throw(Killed)
            if not self.dead:
                raise AssertionError(f"{self.name} survives that it was killed")
        if not self.done.done():
            self.done.set_result(None)

    def sleep(self, seconds: float) -> None:
        """The process is suspended from its next switch point on."""
        self._asleep_until = self.hub.loop.time() + seconds

    async def awake(self) -> None:
        """For what works beside it in its process: not while it sleeps, never after its end."""
        while self.asleep:  # noqa: ASYNC110  it may be put to sleep again
            await asyncio.sleep(self._asleep_until - self.hub.loop.time())
        if self.killed:
            raise asyncio.CancelledError


class Hub:
    """The actors of one life."""

    def __init__(self, loop: Loop, clock: Time, chance: random.Random) -> None:
        self.loop, self.clock, self.chance = loop, clock, chance
        self.greenlet = greenlet.getcurrent()
        self._thread = threading.get_ident()
        self.slack = 0.0
        self.tasks: weakref.WeakSet[asyncio.Task] = weakref.WeakSet()
        """Tasks that belong to actors and not to the broker: a crash of the broker must spare them."""
        self.actors: list[Actor] = []
        self._awaited: list[tuple[list[int], Actor | None, asyncio.Future]] = []
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        _hubs.append(self)
        enter = self._patches.enter_context
        enter(mock.patch.object(time, "sleep", self.nap))
        enter(mock.patch.object(time, "monotonic", self.loop.time))
        enter(mock.patch.object(time, "time_ns", self._time_ns))
        enter(mock.patch.object(threading, "Event", Event))
        enter(mock.patch.object(random, "Random", _Random))
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors:
            actor.kill()
        self._patches.close()
        _hubs.remove(self)

    def _time_ns(self) -> int:
        return self.clock.now_ms() * 1_000_000

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> Actor:
        """A new process, which begins with the next turn of the loop."""
        actor = Actor(self, name, function, args)
        self.actors = [*(each for each in self.actors if each.alive), actor]
        self.loop.call_soon(self._continue, actor)
        return actor

    def actor(self) -> Actor | None:
        """Whose code runs."""
        found = greenlet.getcurrent()
        return found if isinstance(found, Actor) else None

    def check(self) -> None:
        """Killed for one that is: every call that reaches the outside begins with it."""
        actor = self.actor()
        if actor is not None and not actor.alive:
            raise Killed

    def task(self, work: Awaitable[Any]) -> asyncio.Task:
        """Work of an actor's process beside its thread."""
        made = asyncio.ensure_future(work, loop=self.loop)
        self.tasks.add(made)
        return made

    def wait(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Any:
        """Blocks the calling actor until it is done, and gives its result; TimeoutError leaves it as it is."""
        actor = self.actor()
        if actor is None:
            return self.loop.run_until_complete(
                awaitable if timeout is None else asyncio.wait_for(awaitable, timeout)
            )
        if not actor.alive:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise Killed
        waiting = awaitable if isinstance(awaitable, asyncio.Future) else self.task(awaitable)
        woken = [False]

        def ready(*_: object) -> None:
            if not woken[0]:
                woken[0] = True
                self.loop.call_later(self.chance.choice(LATER_S), self._arrive, actor)

        waiting.add_done_callback(ready)
        timer = None if timeout is None else self.loop.call_later(timeout, ready)
        try:
            self.greenlet.switch()
        except Killed:
            if waiting is not awaitable:
                waiting.cancel()
            raise
        finally:
            woken[0] = True
            waiting.remove_done_callback(ready)
            if timer is not None:
                timer.cancel()
        if not waiting.done():
            raise TimeoutError
        return waiting.result()

    def pause(self) -> None:
        """A switch point without anything to wait for."""
        self.nap(0)

    def nap(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:  # a thread that other tests have left, such as py4j's
            real_sleep(seconds)
            return
        if self.actor() is None and self.loop.is_running():
            raise AssertionError("the life itself must not block: await asyncio.sleep")
        self.wait(self._sleeping(seconds))

    async def _sleeping(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, self.slack) if seconds else 0)

    async def switches(self, count: int, actor: Actor | None = None) -> Actor | None:
        """Waits for so many switch points, of one actor or of all; who has come there, held back for the moment."""
        reached = self.loop.create_future()
        self._awaited.append(([count], actor, reached))
        return await reached

    def _arrive(self, actor: Actor) -> None:
        """The wait of an actor is over: this is a switch point."""
        if not actor.alive:
            return
        held = 0.0
        for entry in tuple(self._awaited):
            left, wanted, reached = entry
            if wanted in {None, actor}:
                left[0] -= 1
                if left[0] <= 0:
                    self._awaited.remove(entry)
                    if not reached.done():
                        reached.set_result(actor)
                        held = HELD_S
        self.loop.call_later(held, self._continue, actor)

    def _continue(self, actor: Actor) -> None:
        if not actor.alive:
            return
        if actor.asleep:
            self.loop.call_at(actor._asleep_until, self._continue, actor)
            return
        actor.switch()


class Event(RealEvent):
    """An event in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[asyncio.Future] = []

    def set(self) -> None:
        super().set()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def wait(self, timeout: float | None = None) -> bool:
        if not _hubs or _hubs[-1].actor() is None:
            return super().wait(timeout)
        hub = _hubs[-1]
        hub.check()
        if not self.is_set():
            waiter = hub.loop.create_future()
            self._waiters.append(waiter)
            try:
                hub.wait(waiter, None if timeout is None else max(timeout, hub.slack))
            except TimeoutError:
                pass
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.is_set()


class _Random(RealRandom):
    """Chance of the code under test: drawn from the life's seed."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __init__(self, seed: object = None) -> None:
        super().__init__(_hubs[-1].chance.getrandbits(32) if seed is None else seed)
