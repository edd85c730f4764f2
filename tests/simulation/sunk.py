"""A life with a sink: its loops, a store in memory and a topic that is deleted, compacted and cut off, against what the store must have.

Once a sink has caught up, a keyed store has the newest committed record of each key, one of a stream has each record once, the offsets in it are the ends of the
partitions, and the dead letters are those of the records that no store takes.
"""

import asyncio
import random

import msgspec

from headwater.errors import HeadwaterError, UsageError
from headwater.record import TRANSACTIONAL, Record, encode_batch
from headwater.sink.loop.loop import Loop
from headwater.sink.store import SinkFeed
from simulation import world as worlds
from simulation.actors import Actor
from simulation.ground import ADDRESS, DAY_S, HOUR_S
from simulation.memorystore import MemoryTarget
from simulation.model import Wrong
from simulation.sinkcheck import SINK, TOPIC, Stored

__all__ = ["Sunk", "script"]

SESSION_MS = 1_800_000
SLACK_S, QUIET_S = 20.0, 600.0
KEYS = 6
AGAIN_S = 5.0
CHOICES: dict[str, int] = {
    "traffic": 20,
    "kill": 7,
    "zombie": 5,
    "another": 5,
    "stopped": 3,
    "broker_kill": 4,
    "broker_power_cut": 4,
    "broker_restart": 2,
    "broker_away": 2,
    "slow_network": 2,
    "lossy_network": 2,
    "store_away": 4,
    "store_loses": 4,
    "store_slow": 3,
    "restored": 3,
    "made_again": 4,
    "more_partitions": 2,
    "paused": 3,
    "days": 4,
    "days_without": 3,
    "clock_step": 1,
}
SLOWEST_S = 2 * HOUR_S
"""The longest that a store takes for an answer."""
CONFIGS = {
    "table": {
        "cleanup_policy": "compact",
        "segment_bytes": "1500",
        "segment_ms": str(6 * 3_600_000),
        "min_cleanable_dirty_ratio": "0.1",
        "delete_retention_ms": str(86_400_000),
    },
    "kept": {"retention_ms": str(2 * 86_400_000), "segment_ms": str(6 * 3_600_000), "segment_bytes": "1500"},
    "stream": {
        "retention_ms": str(2 * 86_400_000),
        "segment_ms": str(6 * 3_600_000),
        "segment_bytes": "1500",
    },
}
"""A compacted topic and one with retention for a keyed sink, and one for a sink that appends."""


def script(seed: int, steps: int) -> list[tuple[str, int]]:
    """What happens in a life, and the seed of each step."""
    chance = random.Random(seed)
    kinds = chance.choices(list(CHOICES), weights=list(CHOICES.values()), k=steps)
    begun = ("begin", chance.getrandbits(32))
    return [begun, *((kind, chance.getrandbits(32)) for kind in kinds), ("end", 0)]


class Sunk(Stored):
    """One sink of one topic, in up to three processes."""

    def __init__(self, loop: worlds.Loop) -> None:
        super().__init__(loop)
        self.members: list[tuple[Actor, list[Loop]]] = []
        self.wanted = 1
        self.numbers = 0
        self.resting = False

    async def go(self, steps: list[tuple[str, int]]) -> None:
        await self.open()
        self.hub.slack = SLACK_S
        if steps[0][0] != "begin":  # a script that was cut down
            await self.step_begin()
        for kind, seed in steps:
            self.chance = random.Random(seed)
            await getattr(self, f"step_{kind}")()

    # ---- processes -------------------------------------------------------------------------------------

    def start(self) -> Actor:
        loops: list[Loop] = []
        actor = self.hub.start(f"sink {len(self.members)}", self.follow, loops)
        self.members.append((actor, loops))
        return actor

    def follow(self, loops: list[Loop]) -> None:
        """As `headwater.sink.loop.sinks.Sinks` does it: a loop that ends for another reason than a wrong declaration is made again."""
        feed = SinkFeed(SINK, TOPIC, ("id",), {}, append=self.append)
        self.table  # noqa: B018  it is there before its first process
        while not (loops and loops[-1]._stopping.is_set()):
            target = MemoryTarget(self.tables)
            loops[:] = [
                Loop(
                    ADDRESS,
                    SINK,
                    TOPIC,
                    target,
                    lambda: feed,
                    paused=lambda: self.resting,
                    session_ms=SESSION_MS,
                )
            ]
            try:
                loops[0].run()
            except UsageError:
                raise
            except HeadwaterError:
                self.hub.nap(AGAIN_S)

    def supervise(self) -> None:
        for actor, _ in self.members:
            self.failed(actor)
        self.members = [each for each in self.members if each[0].alive]
        while len(self.members) < self.wanted:
            self.start()

    async def some_time(self, seconds: float) -> None:
        limit = self.loop.time() + seconds
        while self.loop.time() < limit:
            self.supervise()
            await asyncio.sleep(min(30, seconds))

    # ---- records ---------------------------------------------------------------------------------------

    def record(self) -> tuple[int, Record]:
        self.numbers += 1
        number, now = self.numbers, self.clock.now_ms()
        at = self.chance.randrange(self.partitions)
        key: str | None = f"k{at}.{self.chance.randrange(KEYS)}"
        value: bytes | None = msgspec.json.encode({"id": key, "n": number, "pad": "x" * 60})
        odd = self.chance.random()
        if odd < 0.05:
            value = msgspec.json.encode({"id": key, "n": number, "bad": True})
        elif odd < 0.08:
            value = b"{no row %d" % number
        elif odd < 0.22 and not self.append:
            value = None
        return at, Record(key.encode(), value, (), now)

    async def traffic(self, batches: int | None = None) -> None:
        """Batches of a producer, some of them in transactions that are aborted."""
        for _ in range(batches or self.chance.randint(1, 5)):
            parts: dict[int, list[Record]] = {}
            for _ in range(self.chance.randint(1, 6)):
                at, record = self.record()
                parts.setdefault(at, []).append(record)
            await self.write(parts, self.chance.choice((None, True, True, False)))
            await asyncio.sleep(self.chance.choice((0, 0, 0.05, 3, 60)))
        await self.note()

    async def write(self, parts: dict[int, list[Record]], committed: bool | None) -> None:
        """In a transaction that is committed or not, or in none."""
        call, who = self.client.call, {"producer_id": -1, "producer_epoch": -1}
        if committed is not None:
            made = await call("InitProducerId", 4, transactional_id="w", transaction_timeout_ms=60_000)
            while made.error_code:
                await asyncio.sleep(0.1)
                made = await call("InitProducerId", 4, transactional_id="w", transaction_timeout_ms=60_000)
            who = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
            await call(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id="w",
                v3_and_below_topics=[{"name": TOPIC, "partitions": sorted(parts)}],
                **{f"v3_and_below_{name}": value for name, value in who.items()},
            )
        more = {} if committed is None else {"base_sequence": 0, "attributes": TRANSACTIONAL, **who}
        for at, records in parts.items():
            data = encode_batch(records, **more)
            topics = [{"name": TOPIC, "partition_data": [{"index": at, "records": data}]}]
            answer = await call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
            if answer.responses[0].partition_responses[0].error_code:
                raise Wrong("the log does not take records")
        if committed is not None:
            await call("EndTxn", 3, transactional_id="w", committed=committed, **who)

    # ---- steps -----------------------------------------------------------------------------------------

    async def step_begin(self) -> None:
        self.kind = self.chance.choice(list(CONFIGS))
        self.partitions = self.chance.randint(1, 3)
        self.wanted = self.chance.randint(1, 2)
        if self.chance.random() < 0.3:
            self.supervise()
            await asyncio.sleep(self.chance.choice((1, 100)))
        await self.create(TOPIC, self.partitions, **CONFIGS[self.kind])
        await self.traffic()
        self.supervise()

    async def step_traffic(self) -> None:
        self.supervise()
        await self.traffic()
        await self.some_time(self.chance.choice((0, 60, HOUR_S)))

    async def interrupted(self) -> Actor | None:
        """Traffic, until some process of the sink has come to some switch point."""
        self.supervise()
        await self.traffic()
        reached = self.hub.task(self.hub.switches(self.chance.randint(1, 60)))
        await asyncio.wait({reached}, timeout=HOUR_S)
        if not reached.done():
            reached.cancel()
            return None
        return reached.result()

    def some_member(self) -> Actor | None:
        alive = [actor for actor, _ in self.members if actor.alive]
        return self.chance.choice(alive) if alive else None

    async def step_kill(self) -> None:
        reached = await self.interrupted()
        victims = [each for each, _ in self.members] if self.chance.random() < 0.4 else [reached]
        for victim in victims:
            if victim is not None:
                victim.kill()
        await asyncio.sleep(self.chance.choice((0, 1, HOUR_S)))
        self.supervise()

    async def step_zombie(self) -> None:
        """A process is suspended, mostly for longer than its session, while another takes its partitions."""
        reached = await self.interrupted() or self.some_member()
        if reached is not None:
            reached.sleep(self.chance.choice((60.0, 0.9 * HOUR_S, 2 * HOUR_S)))
        if self.chance.random() < 0.7:
            self.start()
        await self.traffic()
        await self.some_time(self.chance.choice((60, HOUR_S, 3 * HOUR_S)))

    async def step_another(self) -> None:
        self.wanted = self.chance.choice((1, 2, 3))
        self.supervise()
        if len(self.members) > self.wanted and (gone := self.some_member()) is not None:
            self.stop(gone)
        await self.traffic()
        await self.some_time(self.chance.choice((60, HOUR_S)))

    def stop(self, actor: Actor) -> None:
        for each, loops in self.members:
            if each is actor and loops:
                loops[-1].stop()

    async def step_stopped(self) -> None:
        """All processes end in order, and start again later."""
        self.supervise()
        await self.traffic()
        await asyncio.sleep(1)
        for actor, _ in self.members:
            self.stop(actor)
        await self.until(
            lambda: all(not actor.alive or not loops for actor, loops in self.members),
            SLOWEST_S + HOUR_S,  # each ends after the batch in hand
            "sinks stop",
        )
        await self.traffic()
        self.supervise()

    async def step_broker_kill(self) -> None:
        await self.interrupted()
        await self.killed(self.chance.choice((0, 0, 20, HOUR_S)))

    async def step_broker_power_cut(self) -> None:
        await self.interrupted()
        await self.power_cut(self.chance.choice((0, 0, 20, HOUR_S)))

    async def step_broker_restart(self) -> None:
        await self.interrupted()
        await self.restarted(self.chance.choice((0, 20)))

    async def step_broker_away(self) -> None:
        await self.interrupted()
        await self.killed(3 * HOUR_S)

    async def step_slow_network(self) -> None:
        self.network.slow = True
        await self.traffic()
        await self.some_time(HOUR_S)
        self.network.slow = False

    async def step_lossy_network(self) -> None:
        self.network.losses = self.chance.choice((0.05, 0.3))
        await self.traffic()
        await self.some_time(HOUR_S)
        self.network.losses = 0.0

    async def step_store_away(self) -> None:
        await self.interrupted()
        self.table.away = True
        await self.traffic()
        await self.some_time(self.chance.choice((5, 300, 3 * HOUR_S)))
        self.table.away = False

    async def step_store_loses(self) -> None:
        self.table.losses = self.chance.choice((0.1, 0.5))
        await self.interrupted()
        await self.traffic()
        await self.some_time(self.chance.choice((60, HOUR_S)))
        self.table.losses = 0.0

    async def step_store_slow(self) -> None:
        """A batch takes longer than a group waits, or than a session lasts."""
        self.table.slow_s = (0.0, 30.0, 400.0, self.chance.choice((0.0, SLOWEST_S)))
        await self.traffic()
        await self.some_time(3 * HOUR_S)
        self.table.slow_s = (0.0,)

    async def step_restored(self) -> None:
        """The store is brought back from an older copy under its sinks."""
        saved = self.table.copy()
        await self.interrupted()
        await self.some_time(self.chance.choice((0, 60, HOUR_S)))
        if self.table.origin == saved.origin:  # a copy of another topic's rows is not of this store's past
            self.table.restore(saved)
        await self.some_time(self.chance.choice((0, 120)))

    async def step_made_again(self) -> None:
        """The topic is deleted and made again, under the sinks or while none runs."""
        self.supervise()
        if self.chance.random() < 0.5:
            for actor, _ in self.members:
                actor.kill()
        await self.traffic()
        await asyncio.sleep(self.chance.choice((0, 60)))
        deleted = await self.client.call("DeleteTopics", 5, topic_names=[TOPIC], timeout_ms=1000)
        if deleted.responses[0].error_code:
            raise Wrong(f"the topic cannot be deleted: {deleted.responses[0].error_code}")
        await asyncio.sleep(self.chance.choice((0, 0, 1, HOUR_S)))
        self.known = {}
        self.partitions = self.chance.randint(1, 3)
        await self.create(TOPIC, self.partitions, **CONFIGS[self.kind])
        await self.traffic(self.chance.randint(1, 8))
        self.supervise()

    async def step_more_partitions(self) -> None:
        """New keys come in the new partition; those that are there stay in theirs."""
        if self.partitions >= 4:
            return
        self.partitions += 1
        wanted = [{"name": TOPIC, "count": self.partitions, "assignments": None}]
        await self.client.call("CreatePartitions", 1, topics=wanted, timeout_ms=1000, validate_only=False)
        await self.interrupted()

    async def step_paused(self) -> None:
        """`headwater sink pause`, for an hour or for days."""
        self.resting = True
        await self.traffic()
        self.hub.slack = QUIET_S
        await self.some_time(self.chance.choice((60, HOUR_S, DAY_S)))
        if self.chance.random() < 0.3 and (victim := self.some_member()) is not None:
            victim.kill()
        await self.traffic()
        self.resting, self.hub.slack = False, SLACK_S

    async def quiet(self, days: float) -> None:
        self.hub.slack = QUIET_S
        limit = self.loop.time() + days * DAY_S
        while self.loop.time() < limit:
            await self.traffic(1)
            await asyncio.sleep(self.chance.uniform(HOUR_S, 8 * HOUR_S))
        self.hub.slack = SLACK_S

    async def step_days(self) -> None:
        self.supervise()
        await self.quiet(self.chance.choice((0.25, 1, 3)))
        await self.look()

    async def step_days_without(self) -> None:
        """No sink runs while the log forgets: deletions, or what the store has not read."""
        for actor, _ in self.members:
            actor.kill()
        await self.quiet(self.chance.choice((0.5, 2, 4)))
        self.supervise()
        await self.look()

    async def step_clock_step(self) -> None:
        self.clock.step(self.chance.choice((-HOUR_S, -60, 60, HOUR_S)))
        await self.traffic()

    async def step_end(self) -> None:
        self.chance = random.Random(1)
        await self.look()
