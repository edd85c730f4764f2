"""A life with captures: a scripted database, its capture, and a broker and processes that die, against what readers of the change topics must see.

A committed reader sees every transaction of the database once, whole, and each key in order; the newest record of each key is the row of the table, also
for a reader that comes after compaction; and the database forgets nothing that the log does not have.
"""

import asyncio
import random
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from headwater.capture.loop import lifecycle, newest_rows
from headwater.capture.loop.control import send
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.lifecycle import restart
from headwater.capture.messages import Command
from headwater.errors import FencedError, MachineError
from simulation.actors import Actor
from simulation.capturecheck import NAME, TABLES, Readers
from simulation.database import RESTART, Change, Row, Script
from simulation.ground import ADDRESS, DAY_S, HOUR_S
from simulation.world import Loop

__all__ = ["Captured", "script"]

KEYS = 7
LARGE = 40
CHOICES: dict[str, int] = {
    "traffic": 20,
    "kill": 8,
    "kill_often": 3,
    "zombie": 5,
    "twice": 4,
    "broker_kill": 4,
    "broker_power_cut": 5,
    "broker_restart": 2,
    "broker_away": 2,
    "slow_network": 2,
    "lossy_network": 3,
    "database_away": 3,
    "pause": 3,
    "remove": 2,
    "begin_again": 2,
    "table_again": 2,
    "rows_again": 2,
    "days": 5,
    "rows_lost": 2,
    "old_rows": 2,
    "clock_step": 1,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2500",
    "segment.ms": str(6 * 3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(2 * 86_400_000),
}


def script(seed: int, steps: int) -> list[tuple[str, int]]:
    """What happens in a life, and the seed of each step."""
    chance = random.Random(seed)
    kinds = chance.choices(list(CHOICES), weights=list(CHOICES.values()), k=steps)
    begun = ("begin", chance.getrandbits(32))
    return [begun, *((kind, chance.getrandbits(32)) for kind in kinds), ("end", 0)]


class Captured(Readers):
    """The capture ``shop`` of two tables."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.folder = Path(tempfile.mkdtemp(prefix="captured-"))
        self.feeds: list[tuple[Actor, Feed, threading.Event]] = []
        self.removed = False
        self.values = 0
        self._patch = mock.patch.object(newest_rows, "LOCKED_S", 0.0)
        self._patch.start()

    def end(self) -> None:
        for actor, feed, _ in self.feeds:
            actor.kill()
            feed._completion.close()
        self._patch.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def go(self, steps: list[tuple[str, int]]) -> None:
        await self.open()
        self.hub.slack = 1.0
        for kind, seed in steps:
            self.chance = random.Random(seed)
            await getattr(self, f"step_{kind}")()

    # ---- processes -------------------------------------------------------------------------------------

    def start(self) -> Actor:
        """One more process of the capture."""
        stop = threading.Event()
        source = Script(self.database, NAME, random.Random(self.chance.getrandbits(32)))
        feed = Feed(
            NAME,
            source,
            ADDRESS,
            partitions=self.partitions,
            config=COMPACTED if self.compacted else None,
            folder=self.folder,
        )
        actor = self.hub.start(f"capture {len(self.feeds)}", feed.run, stop)
        self.feeds.append((actor, feed, stop))
        return actor

    def kill(self, actor: Actor) -> None:
        """The operating system closes its files."""
        actor.kill()
        for each, feed, _ in self.feeds:
            if each is actor:
                feed._completion.close()

    def supervise(self) -> None:
        """One runs, unless it was removed; what ended has ended for a reason."""
        for actor, _, _ in self.feeds:
            if not isinstance(actor.error, FencedError):
                self.failed(actor)
        self.feeds = [each for each in self.feeds if each[0].alive]
        if not self.feeds and not self.removed:
            self.start()

    async def operate(self, function: Any, *args: Any) -> None:
        """What an operator does from another process, once more if the capture came in between or the log was away."""
        for _ in range(20):
            actor = self.hub.start("operator", function, *args)
            async with asyncio.timeout(HOUR_S):
                await actor.done
            if not isinstance(actor.error, FencedError | MachineError):
                break
        self.failed(actor)

    async def some_time(self, seconds: float) -> None:
        limit = self.loop.time() + seconds
        while self.loop.time() < limit:
            self.supervise()
            await asyncio.sleep(min(10, seconds))

    # ---- the database ----------------------------------------------------------------------------------

    def transact(self) -> None:
        changes: list[Change] = []
        rows = {table: dict(found) for table, found in self.database.rows.items()}
        for _ in range(self.chance.choice((1, 1, 2, 3, 9))):
            table = self.chance.choice(TABLES)
            change = self.change(table, rows[table])
            changes.append(change)
            if change.op == "t":
                rows[table].clear()
                continue
            rows[table].pop(change.key if change.old_key is None else change.old_key, None)
            if change.after is not None:
                rows[table][change.key] = change.after
        self.database.commit(changes, self.clock.now_ms(), self.chance)

    def change(self, table: str, rows: dict[int, Row]) -> Change:
        self.values += 1
        key = self.chance.randrange(KEYS)
        fresh = {"id": key, "v": self.values, "big": f"{self.values} " * (LARGE if table == "note" else 1)}
        if self.chance.random() < 0.04:
            return Change(table, "t")
        before = rows.get(key)
        if before is None:
            return Change(table, "c", key, after=fresh)
        if self.chance.random() < 0.2:
            return Change(table, "d", key, before=before)
        if self.chance.random() < 0.6:
            fresh["big"] = before["big"]
        free = [each for each in range(KEYS) if each not in rows]
        if free and self.chance.random() < 0.2:
            other = self.chance.choice(free)
            return Change(table, "u", other, key, before, fresh | {"id": other})
        return Change(table, "u", key, None, before, fresh)

    async def traffic(self, count: int | None = None) -> None:
        for _ in range(count or self.chance.randint(1, 6)):
            self.transact()
            await asyncio.sleep(self.chance.choice((0, 0, 0.01, 1, 20)))

    # ---- steps -----------------------------------------------------------------------------------------

    async def step_begin(self) -> None:
        self.compacted = self.chance.random() < 0.4
        self.partitions = self.chance.randint(1, 2)
        for _ in range(self.chance.randint(0, 8)):
            self.transact()
        self.supervise()
        await self.traffic()
        if self.chance.random() < 0.5:
            await self.look()

    async def step_traffic(self) -> None:
        self.supervise()
        await self.traffic()
        await self.some_time(self.chance.choice((0, 5, 60)))

    async def interrupted(self) -> Actor | None:
        """Traffic, until a process of the capture has come to some switch point."""
        self.supervise()
        work = self.hub.task(self.traffic())
        reached = self.hub.task(self.hub.switches(self.chance.randint(1, 120)))
        await asyncio.wait({reached}, timeout=60)
        if not work.done():
            await work
        if not reached.done():
            reached.cancel()
            return None
        return reached.result()

    async def step_kill(self) -> None:
        await self.interrupted()
        for actor, _, _ in self.feeds:
            self.kill(actor)
        await asyncio.sleep(self.chance.choice((0, 0, 30, HOUR_S)))
        self.supervise()
        await self.traffic(1)

    async def step_kill_often(self) -> None:
        """It dies again and again soon after its start."""
        for _ in range(5):
            self.supervise()
            self.transact()
            reached = self.hub.task(self.hub.switches(self.chance.randint(1, 60)))
            await asyncio.wait({reached}, timeout=60)
            reached.cancel()
            for actor, _, _ in self.feeds:
                self.kill(actor)

    async def step_zombie(self) -> None:
        """It is suspended for longer than anybody waits, and another takes its place; then it wakes up."""
        self.supervise()
        await self.interrupted()
        for actor, _, _ in self.feeds:
            actor.sleep(self.chance.choice((20.0, 90.0, HOUR_S)))
        self.start()
        await self.traffic()
        await self.some_time(self.chance.choice((5, 100, HOUR_S + 60)))
        await self.traffic()

    async def step_twice(self) -> None:
        """A second process of it is started."""
        self.supervise()
        await self.interrupted()
        self.start()
        await self.traffic()
        await self.some_time(60)

    async def step_broker_kill(self) -> None:
        await self.interrupted()
        await self.killed(self.chance.choice((0, 0, 4, 200)))
        await self.some_time(self.chance.choice((0, 30)))

    async def step_broker_power_cut(self) -> None:
        await self.interrupted()
        await self.power_cut(self.chance.choice((0, 0, 4, 200)))
        await self.some_time(self.chance.choice((0, 30)))

    async def step_broker_restart(self) -> None:
        await self.interrupted()
        await self.restarted(self.chance.choice((0, 4)))

    async def step_broker_away(self) -> None:
        """Longer than transactions live."""
        await self.interrupted()
        work = self.hub.task(self.traffic())
        await self.power_cut(self.chance.choice((1000, 2 * HOUR_S)))
        await work

    async def step_slow_network(self) -> None:
        self.network.slow = True
        await self.traffic()
        await self.some_time(600)
        self.network.slow = False

    async def step_lossy_network(self) -> None:
        self.network.losses = self.chance.choice((0.05, 0.3))
        await self.traffic()
        await self.some_time(120)
        self.network.losses = 0.0

    async def step_database_away(self) -> None:
        self.database.away = True
        await self.traffic()
        await self.some_time(self.chance.choice((1, 60, HOUR_S)))
        self.database.away = False

    async def step_pause(self) -> None:
        """Paused for a while; commands come twice, and are obeyed by the process that runs then."""
        if self.removed:
            return
        self.pauses += 1
        await self.operate(_ask, "pause")
        await self.traffic()
        if self.chance.random() < 0.5:
            for actor, _, _ in self.feeds:
                self.kill(actor)
        await self.some_time(self.chance.choice((1, 60)))
        if self.chance.random() < 0.3:
            await self.step_broker_power_cut()
        await self.operate(_ask, "resume")
        await self.traffic()

    async def step_remove(self) -> None:
        """It leaves the database, and comes back."""
        self.supervise()
        self.removed = True
        await self.operate(lifecycle.remove, ADDRESS, NAME, RESTART)
        await self.traffic()
        await asyncio.sleep(self.chance.choice((1, 60, HOUR_S)))
        await self.until(lambda: not any(actor.alive for actor, _, _ in self.feeds), HOUR_S, "it ends")
        self.supervise()
        await self.operate(lifecycle.add, ADDRESS, NAME)
        self.removed = False
        self.supervise()

    async def step_begin_again(self) -> None:
        """`headwater capture snapshot NAME`: who runs is shut out."""
        await self.interrupted()
        await self.operate(restart, ADDRESS, NAME, RESTART)
        await self.traffic(1)  # with its next commit it learns that it is shut out
        await self.some_time(self.chance.choice((0, 30)))

    async def step_table_again(self) -> None:
        table = self.chance.choice(TABLES)
        await self.operate(_ask, "snapshot", table, False)
        await self.interrupted()
        if self.chance.random() < 0.4:
            await self.step_kill()

    async def step_rows_again(self) -> None:
        table = self.chance.choice((*TABLES, "unknown"))
        await self.operate(_ask, "snapshot", table)
        await self.interrupted()

    async def step_days(self) -> None:
        """Little traffic for days; the caretaker compacts."""
        self.hub.slack = 900.0
        limit = self.loop.time() + self.chance.choice((6 * HOUR_S, DAY_S, 3 * DAY_S))
        while self.loop.time() < limit:
            self.supervise()
            await self.traffic(1)
            await asyncio.sleep(self.chance.uniform(HOUR_S, 8 * HOUR_S))
        self.hub.slack = 1.0
        await self.look()

    async def step_rows_lost(self) -> None:
        """The file beside the capture is gone with a machine."""
        await self.interrupted()
        for actor, _, _ in self.feeds:
            self.kill(actor)
        for path in self.folder.iterdir():
            path.unlink()
        self.supervise()
        await self.traffic()

    async def step_old_rows(self) -> None:
        """The file beside the capture is brought back from an older copy."""
        for actor, _, _ in self.feeds:
            self.kill(actor)
        copy = self.folder.with_name(f"{self.folder.name}-copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        self.supervise()
        await self.traffic()
        await self.interrupted()
        for actor, _, _ in self.feeds:
            self.kill(actor)
        shutil.rmtree(self.folder)
        copy.rename(self.folder)
        self.supervise()
        await self.traffic()

    async def step_clock_step(self) -> None:
        self.clock.step(self.chance.choice((-HOUR_S, -60, 60, HOUR_S)))
        await self.traffic()

    async def step_end(self) -> None:
        self.chance = random.Random(1)
        await self.look()
        self.hub.slack = 900.0
        for _ in range(6):
            await self.traffic(1)
            await asyncio.sleep(DAY_S / 2)
        self.hub.slack = 1.0
        await self.look()


def _ask(do: Any, table: str = "", incremental: bool = True) -> None:
    """A command of its own each time that it is sent."""
    send(ADDRESS, NAME, Command(do, table=table, incremental=incremental))
