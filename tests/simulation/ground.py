"""Ground: the broker of a life with actors, and what befalls it.

A life with actors derives from it, and is played with `play`:

    class Captured(Ground):
        async def go(self, steps): ...

    play(Captured, seed, steps)
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.record import Record
from simulation.actors import Actor, Hub
from simulation.clients import simulated
from simulation.model import Wrong
from simulation.network import Network
from simulation.world import CARETAKER_S, Disk, Loop, TickingLoop, Time, world
from support.protocol import Client

__all__ = ["ADDRESS", "DAY_S", "HOUR_S", "Ground", "play"]

ADDRESS = "life:9092"
FOLDER = Path("/life")
HOUR_S, DAY_S = 3_600.0, 86_400.0


def play(life: type["Ground"], seed: int, steps: list[tuple[str, int]]) -> None:
    """Lives through a script; raises Wrong, or what the code let escape."""
    with world(seed, TickingLoop) as loop:
        made = life(loop)
        with simulated(loop, made.clock, lambda: made.broker, seed) as (hub, network):
            made.hub, made.network = hub, network
            try:
                loop.run_until_complete(made.go(steps))
            finally:
                made.end()


class Ground:
    """A broker that crashes, and the actors on it. The life's coroutine owns it."""

    hub: Hub
    network: Network

    def __init__(self, loop: Loop) -> None:
        self.loop, self.clock, self.disk = loop, Time(loop), Disk()
        self.chance = random.Random(0)
        self.broker: Broker | None = None

    async def go(self, steps: list[tuple[str, int]]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Gives back what the life has outside of its world."""

    async def open(self) -> None:
        self.broker = Broker(FOLDER, disk=self.disk, clock=self.clock, retention_interval_s=CARETAKER_S)
        self.client = Client(self.broker)

    async def crash(self) -> None:
        """The broker's process is gone, whatever it was doing; actors are not."""
        broker, self.broker = self.broker, None
        mine = asyncio.current_task()
        for task in self.loop.tasks():
            if task is not mine and task not in self.hub.tasks:
                task.cancel()
        await asyncio.sleep(0)
        if broker is not None:
            for timer in (*broker._timers.values(), *broker.transactions._timers.values()):
                timer.cancel()
        self.disk._locked.clear()

    async def killed(self, away_s: float = 0) -> None:
        await self.crash()
        self.disk = self.disk.after_kill()
        await asyncio.sleep(away_s)
        await self.open()

    async def power_cut(self, away_s: float = 0) -> None:
        await self.crash()
        self.disk = self.disk.after_power_cut(self.chance.choice((None, self.chance.getrandbits(30))))
        await asyncio.sleep(away_s)
        await self.open()

    async def restarted(self, away_s: float = 0) -> None:
        await self.broker.close()
        await self.crash()
        self.disk = self.disk.after_power_cut(None)
        await asyncio.sleep(away_s)
        await self.open()

    async def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Lets time pass until something is so; Wrong when it takes too long."""
        limit = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() >= limit:
                raise Wrong(f"{what}: not within {limit_s / 60:.0f} minutes")
            await asyncio.sleep(0.5)

    async def create(self, name: str, partitions: int, **config: str) -> None:
        wanted = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": wanted}
        answer = await self.client.call(
            "CreateTopics", 5, topics=[topic | {"assignments": []}], timeout_ms=1000, validate_only=False
        )
        if answer.topics[0].error_code:
            raise Wrong(f"{name} cannot be created: {ErrorCode(answer.topics[0].error_code).name}")

    async def rows(self, topic: str, partition: int, *, committed: bool = True) -> list[Record]:
        """What a late reader sees of a partition."""
        if topic not in self.broker.catalog.topics:
            return []
        parts = self.broker.catalog.topics[topic].partitions
        start = parts[partition].log_start_offset
        return (await self.client.read(topic, partition, start, committed=committed))[0]

    def failed(self, actor: Actor) -> None:
        """Raises what an actor has ended with."""
        if actor.error is not None:
            raise Wrong(f"{actor.name} ended: {type(actor.error).__name__}: {actor.error}") from actor.error
