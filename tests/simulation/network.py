"""The network of a simulated life: real encoded requests to the handlers of the broker that is up now, or a lost connection.

``Network``     the way to the life's broker; latencies and losses by the seed
``Link``        one client's questions: ConnectionError when the broker is away or dies before its answer is here
``Connection``  takes the place of ``headwater.client.bulk.connection.BrokerConnection``: several requests on their way, answers in order
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from headwater.client.bulk.connection import ANSWER_S, VERSIONS
from headwater.log.broker import Broker
from headwater.protocol.kafka.codec import Message, layout
from simulation.actors import Actor, Hub, current_hub
from support.protocol import Client, build

__all__ = ["Connection", "Link", "Network", "current_network"]

DELAYS_S = (0.0, 0.0, 0.0, 0.0005, 0.002, 0.02)
SLOW_S = (0.0, 0.02, 0.5, 5.0, 20.0)

_networks: list["Network"] = []


def current_network() -> "Network":
    return _networks[-1]


class Network:
    """``broker`` gives the broker that is up, or None. ``slow`` makes each way take up to 20 s."""

    def __init__(self, hub: Hub, broker: Callable[[], Broker | None]) -> None:
        self.hub, self.broker = hub, broker
        self.chance = random.Random(hub.chance.getrandbits(32))
        self.slow = False
        self.losses = 0.0
        """The share of answers that are lost, with their connection."""

    def delay(self) -> float:
        return self.chance.choice(SLOW_S if self.slow else DELAYS_S)


class Link:
    """A client's connection, made again when the broker was. Belongs to the actor that has made it."""

    def __init__(self, network: "Network | None" = None) -> None:
        self.network = network or current_network()
        self.hub = self.network.hub
        self.owner: Actor | None = self.hub.actor()
        self._broker: Broker | None = None
        self._client: Client | None = None

    async def ask(self, name: str, version: int, *, within_s: float = ANSWER_S, **fields: Any) -> Message:
        """ConnectionError when the broker is away or goes away; the request may have been served. TimeoutError after ``within_s``."""
        await self.arrived()
        message = build(layout(name, "request"), "", fields)
        broker = self.connect()
        served = self.hub.loop.create_task(self.carry(name, version, message))
        await asyncio.wait({served}, timeout=within_s)
        if not served.done():
            raise TimeoutError(f"{name} was not answered")
        return await self.brought(served, broker)

    async def arrived(self) -> None:
        """Before a request leaves: its process is awake, and there."""
        if self.owner is not None:
            await self.owner.awake()
        await asyncio.sleep(self.network.delay())
        if self.owner is not None:
            await self.owner.awake()

    def connect(self) -> Broker:
        broker = self.network.broker()
        if broker is None:
            raise ConnectionRefusedError("the broker is away")
        if broker is not self._broker:
            self._broker, self._client = broker, Client(broker)
        return broker

    async def carry(self, name: str, version: int, message: Message) -> Message:
        """The request on its way: a task that dies with the broker."""
        client = self._client
        await asyncio.sleep(self.network.delay())
        if self.owner is not None and self.owner.lost:
            raise ConnectionResetError("lost with its sender")
        return await client.exchange(name, version, message)

    async def brought(self, served: asyncio.Task, broker: Broker) -> Message:
        """The answer on its way back."""
        if served.cancelled():
            raise ConnectionResetError("the broker died")
        answer = served.result()
        await asyncio.sleep(self.network.delay())
        if self.network.broker() is not broker or self.network.chance.random() < self.network.losses:
            raise ConnectionResetError("the answer was lost")
        return answer


class Connection:
    """See `headwater.client.bulk.connection.BrokerConnection`: OSError when it is lost."""

    def __init__(self, _access: object, _host: str, _port: int, timeout_s: float) -> None:
        self._hub = current_hub()
        self._link = Link()
        self._lost = False
        self._waiting: deque[asyncio.Task] = deque()
        self._last: asyncio.Event | None = None
        self._limit_s = ANSWER_S
        self._broker = self._hub.wait(self._reached(timeout_s))

    async def _reached(self, timeout_s: float) -> Broker:
        async with asyncio.timeout(timeout_s):
            await self._link.arrived()
            return self._link.connect()

    def ask(self, name: str, message: Message) -> Message:
        self.send(name, message)
        return self.receive()

    def send(self, name: str, message: Message) -> None:
        self._hub.check()
        if self._lost or self._link.network.broker() is not self._broker:
            self._lost = True
            raise BrokenPipeError("the connection is lost")
        before, self._last = self._last, asyncio.Event()
        work = self._in_order(name, message, before, self._last)
        self._waiting.append(self._hub.loop.create_task(work))

    async def _in_order(
        self, name: str, message: Message, before: asyncio.Event | None, there: asyncio.Event
    ) -> Message:
        """Requests arrive in the order in which they were sent; their answers may be ready in any."""
        client = self._link._client
        await asyncio.sleep(self._link.network.delay())
        if before is not None:
            await before.wait()
        owner = self._link.owner
        if self._lost or (owner is not None and owner.lost):
            raise ConnectionResetError("lost with its sender")
        served = self._hub.loop.create_task(client.exchange(name, VERSIONS[name], message))
        there.set()
        return await served

    def receive(self) -> Message:
        served = self._waiting.popleft()
        try:
            return self._hub.wait(self._answer(served))
        except OSError:
            self.close()
            raise

    async def _answer(self, served: asyncio.Task) -> Message:
        await asyncio.wait({served}, timeout=self._limit_s)
        if not served.done():
            raise TimeoutError("the broker says nothing")
        return await self._link.brought(served, self._broker)

    def settle(self, timeout_s: float) -> None:
        self._limit_s = timeout_s
        while self._waiting:
            self.receive()

    def close(self) -> None:
        """What is on its way may still arrive."""
        if self._link.network.chance.random() < 0.5:
            self._lost = True
        for task in self._waiting:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.clear()
