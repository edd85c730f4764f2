"""A life of the log: weeks of traffic on a broker in virtual time, with the faults that a seed draws, against a model.

A life is a list of steps drawn from its seed; each step draws from a seed of its own, so that a failing life can be cut down step by step
(``shrunk``) and stays what it was. After every step that changes what is on the disk, and at the end, all readers look.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from headwater.errors import ErrorCode, RequestError, StorageError
from headwater.log.broker import Broker
from headwater.log.storage import index as index_module
from headwater.log.storage.partition import read_all
from headwater.log.transactions.transaction import PREPARED
from headwater.record import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    encode_batch,
    open_batch,
    reencode_batch,
)
from simulation.ending import ending, is_defect
from simulation.model import Model, Partition, Seen, Sent, Topic, Transaction, Wrong, check_reader, check_time
from simulation.world import CARETAKER_S, Disk, Loop, Time, world
from support.protocol import Client

__all__ = ["fails", "live", "play", "script", "shrunk"]

Play = Callable[[int, list[tuple[str, int]]], None]

FOLDER = Path("/life")
ANSWER_S = 600.0
"""Every request is answered within ten minutes of virtual time, or something hangs."""
DAY_S = 86_400.0
HOUR_S = 3_600.0
KEYS = 6
KINDS: dict[str, dict[str, str]] = {
    "events": {
        "retention.ms": str(3 * 86_400_000),
        "segment.ms": str(6 * 3_600_000),
        "segment.bytes": "2000",
    },
    "kept": {"retention.ms": "-1", "segment.bytes": "900"},
    "table": {
        "cleanup.policy": "compact",
        "segment.bytes": "1500",
        "segment.ms": str(12 * 3_600_000),
        "min.cleanable.dirty.ratio": "0.3",
    },
    "history": {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(3 * 86_400_000),
        "segment.bytes": "1200",
        "segment.ms": str(6 * 3_600_000),
        "min.cleanable.dirty.ratio": "0.3",
    },
    "slow": {
        "cleanup.policy": "compact",
        "segment.ms": str(6 * 3_600_000),
        "min.cleanable.dirty.ratio": "0.01",
    },
}
STEPS: dict[str, int] = {
    "work": 30,
    "restless": 2,
    "days": 14,
    "power_cut": 6,
    "kill": 3,
    "restart": 4,
    "lost_index": 3,
    "old_index": 2,
    "failing_reads": 4,
    "short_reads": 3,
    "failing_sync": 2,
    "full_disk": 2,
    "slow_disk": 4,
    "asleep": 3,
    "clock_step": 2,
    "made_again": 4,
    "made_again_and_cut": 2,
    "more_partitions": 1,
    "delete_records": 3,
    "zombie": 3,
    "odd_batch": 2,
    "intruder": 1,
    "lost_catalog": 1,
    "strangers": 1,
    "time": 4,
}
QUIET_ENDS = 8
"""One life of so many ends with the nine quiet days in which growth shows; they take as long as all that comes before them."""
IN_DOUBT = frozenset({ErrorCode.KAFKA_STORAGE_ERROR})


def script(seed: int, steps: int) -> list[tuple[str, int]]:
    """What happens in a life, and the seed of each step."""
    chance = random.Random(seed)
    kinds = chance.choices(list(STEPS), weights=list(STEPS.values()), k=steps)
    end = "end" if seed % QUIET_ENDS == 0 else "restart"
    return [("work", chance.getrandbits(32)), *((kind, chance.getrandbits(32)) for kind in kinds), (end, 0)]


def live(seed: int, steps: int = 25) -> None:
    """Lives through the script of a seed; raises Wrong, or whatever the broker let escape."""
    play(seed, script(seed, steps))


def play(seed: int, steps: list[tuple[str, int]]) -> None:
    with world(seed) as loop:
        loop.run_until_complete(Life(loop).go(steps))


def fails(seed: int, steps: list[tuple[str, int]], played: Play = play) -> str | None:
    """What a life ended with; ``played`` is the kind of life (`simulation.kinds`)."""
    try:
        played(seed, steps)
    except Exception as error:  # noqa: BLE001  what a life ends with is its result
        return ending(error)
    return None


def shrunk(seed: int, steps: list[tuple[str, int]], played: Play = play) -> list[tuple[str, int]]:
    """The same failure in fewer steps: each one that it does not need is taken out."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fewer and is_defect(fails(seed, fewer, played)):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


class Unanswered(Exception):  # noqa: N818  it is what a fault leads to
    """A request waits for the end of a fault."""


class Writer:
    """An idempotent or transactional producer. It keeps a batch until it knows what became of it, and sends it again as it was."""

    def __init__(self, life: "Life", name: str | None) -> None:
        self.life, self.name = life, name
        self.who: dict[str, int] | None = None
        self.sequences: dict[tuple[str, int, int], int] = {}
        self.pending: list[tuple[Topic, int, bytes, list[Sent]]] = []

    async def begin(self) -> bool:
        answer = await self.life.call(
            "InitProducerId", 4, transactional_id=self.name, transaction_timeout_ms=60_000
        )
        if answer is None or answer.error_code:
            return False
        self.who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        self.sequences, self.pending = {}, []
        return True

    async def send(self, topic: Topic, index: int, transaction: Transaction | None = None) -> bool:
        """One batch of a few records; whether it was acknowledged."""
        life, chance = self.life, self.life.chance
        part, sent, records = topic.partitions[index], [], []
        for _ in range(chance.randint(1, 3)):
            number = life.model.next_number()
            key = b"k%d" % chance.randrange(KEYS) if topic.compacted or chance.random() < 0.5 else None
            value = None if key and chance.random() < 0.15 else b"%d of %s" % (number, topic.name.encode())
            if value and topic.name == "slow":
                value += bytes(500)
            now = life.clock.now_ms()
            one = Sent(key, value, now, now, transaction)
            part.sent[b"%d" % number] = one
            sent.append(one)
            records.append(Record(key, value, (("n", b"%d" % number),), now))
            if transaction is not None:
                transaction.records.append(one)
        at = (topic.name, id(topic), index)
        first = self.sequences.get(at, 0)
        self.sequences[at] = first + len(records)
        attributes = TRANSACTIONAL if transaction is not None else 0
        data = encode_batch(records, base_sequence=first, attributes=attributes, **self.who)
        codec = chance.choice((0, 0, 0, 1, 2, 3, 4))
        if codec:
            header = BatchHeader.read(data)
            data = reencode_batch(header._replace(attributes=header.attributes | codec), open_batch(data))
        self.pending.append((topic, index, data, sent))
        return await self.flush()

    async def flush(self) -> bool:
        """Sends what is in doubt, in order, as often as it takes; False if it still is."""
        while self.pending:
            topic, index, data, sent = self.pending[0]
            if self.life.model.topics.get(topic.name) is not topic:
                self.pending.pop(0)
                continue
            code, base = await self.life.produce(topic.name, index, data)
            if code is None or code in IN_DOUBT:
                return False
            if code != ErrorCode.NONE:
                if self.name is not None:
                    return False  # fenced, or its transaction is over
                raise Wrong(f"{topic.name}-{index}: a batch was refused: {ErrorCode(code).name}")
            self.pending.pop(0)
            for delta, one in enumerate(sent):
                if one.offset is not None and one.offset != base + delta:
                    raise Wrong(f"{topic.name}-{index}: a batch is at {base}, and was at {one.offset}")
                one.offset = base + delta
        return True


class Life:
    """The broker, its clients, and what it has promised them."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.clock, self.disk = loop, Time(loop), Disk()
        self.chance = random.Random(0)
        self.model = Model()
        self.broker: Broker | None = None
        self.writers = [Writer(self, None), Writer(self, None)]
        self.transactional = [Writer(self, "x"), Writer(self, "y")]
        self.latest_ms = 0
        """The greatest time that the clock has shown before it was set back."""
        self.troubled = False
        """A fault is under way: requests may be refused."""

    async def go(self, steps: list[tuple[str, int]]) -> None:
        await self.open()
        for name, config in KINDS.items():
            await self.create(name, config, 2 if name == "events" else 1)
        for kind, seed in steps:
            self.chance = random.Random(seed)
            await getattr(self, f"step_{kind}")()

    # ---- the broker --------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.broker = Broker(FOLDER, disk=self.disk, clock=self.clock, retention_interval_s=CARETAKER_S)
        self.client = Client(self.broker)

    async def crash(self) -> None:
        """The process is gone, whatever it was doing."""
        mine = asyncio.current_task()
        for task in self.loop.tasks():
            if task is not mine:
                task.cancel()
        await asyncio.sleep(0)
        broker, self.broker = self.broker, None
        for timer in (*broker._timers.values(), *broker.transactions._timers.values()):
            timer.cancel()
        self.disk._locked.clear()

    async def reopened(self, disk: Disk) -> None:
        await self.crash()
        self.disk = disk
        await self.open()
        await self.look()

    async def within(self, waiting: Awaitable) -> object:
        """An answer in time; with a fault under way, what waits for its end is not answered."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await waiting
        except TimeoutError:
            if self.troubled:
                raise Unanswered from None
            raise Wrong("a hang: no answer in ten minutes") from None

    async def call(self, name: str, version: int, **fields: object):
        return await self.within(self.client.call(name, version, **fields))

    async def produce(self, topic: str, index: int, data: bytes) -> tuple[int | None, int]:
        topics = [{"name": topic, "partition_data": [{"index": index, "records": data}]}]
        answer = await self.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
        part = answer.responses[0].partition_responses[0]
        if part.error_code in IN_DOUBT and not self.troubled:
            raise Wrong(f"{topic}-{index}: refused without a reason: {part.error_message}")
        return part.error_code, part.base_offset

    async def create(self, name: str, config: dict[str, str], partitions: int) -> None:
        wanted = [{"name": key, "value": value} for key, value in config.items()]
        topics = [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": wanted,
                "assignments": [],
            }
        ]
        answer = await self.call("CreateTopics", 5, topics=topics, timeout_ms=1000, validate_only=False)
        if answer.topics[0].error_code:
            raise Wrong(f"{name} cannot be created: {ErrorCode(answer.topics[0].error_code).name}")
        self.model.topics[name] = Topic(
            name,
            "compact" in config.get("cleanup.policy", ""),
            int(config.get("retention.ms", -1)),
            int(config.get("segment.ms", 604_800_000)),
            [Partition() for _ in range(partitions)],
        )

    # ---- traffic -----------------------------------------------------------------------------------------

    def somewhere(self) -> tuple[Topic, int]:
        topic = self.chance.choice(list(self.model.topics.values()))
        return topic, self.chance.randrange(len(topic.partitions))

    async def step_work(self) -> None:
        """Plain and transactional producers at once, for a few minutes; groups commit what they have read."""
        jobs = [self.plain(writer) for writer in self.writers] + [
            self.transact(w) for w in self.transactional
        ]
        for result in await asyncio.gather(*jobs, self.consume(), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, Unanswered):
                raise result

    async def plain(self, writer: Writer) -> None:
        if writer.who is None and not await writer.begin():
            return
        for _ in range(self.chance.randint(1, 6)):
            await asyncio.sleep(self.chance.choice((0, 0.01, 20)))
            if not await writer.flush():
                return
            await writer.send(*self.somewhere())

    async def one(self, writer: Writer, name: str) -> None:
        """One batch into the first partition of a topic."""
        if (writer.who is not None or await writer.begin()) and await writer.flush():
            await writer.send(self.model.topics[name], 0)

    async def step_restless(self) -> None:
        """For days a broker is started more often than its segments are to be closed."""
        for _ in range(30):
            await self.one(self.writers[0], "events")
            await asyncio.sleep(3.3 * HOUR_S)
            await self.broker.close()
            await self.crash()
            self.disk = self.disk.after_power_cut(None)
            await self.open()
        await self.look()
        self.check_size(self.model.topics["events"])

    async def transact(self, writer: Writer) -> None:
        """Transactions that are committed, aborted, or left open for the next producer of that name."""
        if not await writer.begin():
            return
        for _ in range(self.chance.randint(1, 3)):
            transaction = Transaction()
            places = [self.somewhere() for _ in range(self.chance.randint(1, 2))]
            if not await self.add_partitions(writer, places):
                return
            for place in places:
                if not await writer.send(*place, transaction):
                    return
            if self.chance.random() < 0.1:
                return
            moved = None
            if self.chance.random() < 0.4:
                moved = self.somewhere()
                if not await self.move(writer, *moved):
                    return
            if not await self.end(writer, transaction, moved, commit=self.chance.random() < 0.65):
                return

    async def move(self, writer: Writer, topic: Topic, index: int) -> bool:
        """Commits the next offset of a group as part of the transaction."""
        group = f"of {writer.name}"
        _, asked, _ = topic.offsets.get((group, index), (-1, -1, 0))
        name = {"transactional_id": writer.name, "group_id": group}
        added = await self.call("AddOffsetsToTxn", 3, **name, **writer.who)
        if added.error_code:
            return False
        part = {"partition_index": index, "committed_offset": asked + 1, "committed_metadata": ""}
        topics = [{"name": topic.name, "partitions": [part]}]
        answer = await self.call("TxnOffsetCommit", 3, **name, topics=topics, **writer.who)
        return answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    async def end(
        self, writer: Writer, transaction: Transaction, moved: tuple[Topic, int] | None, *, commit: bool
    ) -> bool:
        """Commits or aborts; until there is an answer, a commit may have happened."""
        answered = asked = at = 0
        if commit:
            transaction.committed = None
            if moved is not None:
                answered, asked, at = moved[0].offsets.get((f"of {writer.name}", moved[1]), (-1, -1, 0))
                moved[0].offsets[f"of {writer.name}", moved[1]] = (answered, asked + 1, at)
        answer = await self.call("EndTxn", 3, transactional_id=writer.name, committed=commit, **writer.who)
        if answer.error_code == ErrorCode.NONE and commit:
            transaction.committed = True
            if moved is not None:
                place = f"of {writer.name}", moved[1]
                moved[0].offsets[place] = (asked + 1, asked + 1, self.clock.now_ms())
        return answer.error_code == ErrorCode.NONE

    async def add_partitions(self, writer: Writer, places: list[tuple[Topic, int]]) -> bool:
        names: dict[str, set[int]] = {}
        for topic, index in places:
            names.setdefault(topic.name, set()).add(index)
        answer = await self.call(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=writer.name,
            v3_and_below_producer_id=writer.who["producer_id"],
            v3_and_below_producer_epoch=writer.who["producer_epoch"],
            v3_and_below_topics=[{"name": name, "partitions": sorted(at)} for name, at in names.items()],
        )
        results = [p for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition]
        return not any(p.partition_error_code for p in results)

    async def consume(self) -> None:
        """A group that commits how far it is."""
        topic, index = self.somewhere()
        group = self.chance.choice(("g", "h"))
        answered, asked, at = topic.offsets.get((group, index), (-1, -1, 0))
        now = self.clock.now_ms()
        topic.offsets[group, index] = (answered, asked + 1, at)
        part = {"partition_index": index, "committed_offset": asked + 1, "committed_metadata": ""}
        who = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        topics = [{"name": topic.name, "partitions": [part]}]
        answer = await self.call("OffsetCommit", 7, topics=topics, **who)
        if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
            topic.offsets[group, index] = (asked + 1, asked + 1, now)
        elif not self.troubled:
            raise Wrong(f"an offset was refused: {answer.topics[0].partitions[0].error_code}")

    async def step_days(self) -> None:
        """A quiet time of hours or days: little traffic, much of the caretaker."""
        end = self.loop.time() + self.chance.choice((6 * HOUR_S, DAY_S, 2 * DAY_S, 5 * DAY_S))
        while self.loop.time() < end:
            await self.plain(self.chance.choice(self.writers))
            if self.chance.random() < 0.3:
                await self.transact(self.chance.choice(self.transactional))
            await asyncio.sleep(self.chance.uniform(HOUR_S, 8 * HOUR_S))
        await self.look()

    # ---- faults ------------------------------------------------------------------------------------------

    async def interrupted(self) -> None:
        """Some work, of which the end is not waited for."""
        if self.broker is None:
            return
        task = asyncio.ensure_future(self.step_work())
        await asyncio.wait([task], timeout=self.chance.choice((0, 0.001, 0.02, 1, 30)))
        if task.done():
            task.result()

    async def step_power_cut(self) -> None:
        await self.interrupted()
        disk = self.disk.after_power_cut(self.chance.choice((None, self.chance.getrandbits(30))))
        await self.reopened(disk)

    async def step_kill(self) -> None:
        await self.interrupted()
        await self.reopened(self.disk.after_kill())

    async def step_restart(self) -> None:
        await self.broker.close()
        await self.reopened(self.disk.after_power_cut(None))

    def indexes(self) -> list[Path]:
        return sorted(path for path in self.disk.paths() if path.suffix == ".index")

    async def step_lost_index(self) -> None:
        """Files that only spare a scan are gone after a crash: one, or all."""
        await self.crash()
        disk = self.disk.after_power_cut(None)
        found = self.indexes()
        for path in found if self.chance.random() < 0.4 else self.chance.sample(found, min(1, len(found))):
            disk.remove(path)
        await self.after(disk)

    async def after(self, disk: Disk) -> None:
        self.disk = disk
        await self.open()
        await self.look()

    async def step_old_index(self) -> None:
        """The code of a former version has written them."""
        await self.crash()
        disk = self.disk.after_power_cut(None)
        for path in self.indexes():
            found = index_module.IndexFile.decode(disk.read(path))
            if found is not None:
                older = index_module.IndexFile(1, *[getattr(found, n) for n in found.__struct_fields__[1:]])
                disk.replace(path, older.encode())
        await self.after(disk)

    async def step_failing_reads(self) -> None:
        """Sectors cannot be read for a while, some of them while fetches wait for more."""
        chance = self.chance
        waiting = asyncio.ensure_future(self.wait_for_more())
        await asyncio.sleep(0)
        files = sorted(
            path for path in self.disk.paths() if path.suffix == ".log" and "__" not in path.parent.name
        )
        bad = set(chance.sample(files, min(len(files), chance.randint(1, 6))))
        self.disk.bad, self.troubled = lambda path: path in bad, True
        await self.step_work()
        await asyncio.sleep(chance.choice((1, 2 * CARETAKER_S)))
        self.disk.bad = None
        await waiting
        await self.healed()

    async def wait_for_more(self) -> None:
        topic, index = self.somewhere()
        start = self.broker.catalog.topics[topic.name].partitions[index].log_start_offset
        fetch = self.client.fetch(topic.name, index, start, max_wait_ms=30_000, min_bytes=1 << 20)
        await self.within(fetch)

    async def healed(self) -> None:
        """What is offline comes back with a start; until then everything else works."""
        partitions = [p for t in self.broker.catalog.topics.values() for p in t.partitions.used()]
        if any(partition.offline for partition in partitions):
            await self.crash()
            self.troubled = False
            await self.after(self.disk.after_kill())
        else:
            self.troubled = False
            await self.look()

    async def step_short_reads(self) -> None:
        """Reads end early, also those of a start."""
        chance, count = self.chance, [self.chance.randint(1, 5)]

        def short(path: Path) -> bool:
            count[0] -= chance.random() < 0.3
            return count[0] > 0 and path.suffix == ".log"

        self.troubled = True
        disk = self.disk.after_kill()
        disk.short = short
        await self.crash()
        self.disk = disk
        try:
            await self.open()
        except (StorageError, RequestError):
            self.disk._locked.clear()
        else:
            await self.step_work()
            await self.crash()
        disk = self.disk.after_kill()
        self.troubled = False
        await self.after(disk)

    async def step_failing_sync(self) -> None:
        folders = sorted({path.parent for path in self.disk.paths() if path.suffix == ".log"}) or [FOLDER]
        self.disk.failing, self.disk.failing_in = {"sync"}, self.chance.choice(folders)
        self.troubled = True
        await self.step_work()
        await self.crash()
        disk = self.disk.after_power_cut(self.chance.choice((None, self.chance.getrandbits(30))))
        self.troubled = False
        await self.after(disk)

    async def step_full_disk(self) -> None:
        self.disk.full_after_bytes, self.troubled = self.chance.randrange(2000), True
        await self.step_work()
        await asyncio.sleep(self.chance.choice((30, 30, 30, 2 * CARETAKER_S)))
        self.disk.full_after_bytes = None
        await self.healed()

    async def step_slow_disk(self) -> None:
        """Syncs and compaction take their time, and overtake each other."""
        chance = self.chance
        self.loop.delay = lambda: chance.choice((0, 0, 0.02, 3, 90))
        for _ in range(chance.randint(1, 3)):
            await self.step_work()
            for _ in range(6):
                await self.one(self.writers[0], "slow")
            await asyncio.sleep(chance.choice((CARETAKER_S, 8 * CARETAKER_S)))
        self.loop.delay = lambda: 0.0
        await asyncio.sleep(ANSWER_S)
        await self.look()

    async def step_asleep(self) -> None:
        """The process does not run for an hour, or for two days; all timers are due then."""
        task = asyncio.ensure_future(self.step_work())
        await asyncio.sleep(0)
        self.loop.elapsed += self.chance.choice((HOUR_S, 2 * DAY_S))
        try:
            await task
        except Wrong as wrong:
            if "hang" not in str(wrong):  # who waited was asleep too
                raise
        await self.look()

    async def step_clock_step(self) -> None:
        """The clock is set back by a little, or ahead; retention goes by it, so not by days."""
        self.latest_ms = max(self.latest_ms, self.clock.now_ms())
        self.clock.step(self.chance.choice((-HOUR_S, -60, 60, HOUR_S)))
        await self.step_work()

    # ---- what an administrator does ----------------------------------------------------------------------

    async def made_again(self) -> None:
        name = self.chance.choice(list(KINDS))
        deleted = await self.call("DeleteTopics", 5, topic_names=[name], timeout_ms=1000)
        if deleted.responses[0].error_code:
            raise Wrong(f"{name} cannot be deleted: {deleted.responses[0].error_code}")
        del self.model.topics[name]
        await self.create(name, KINDS[name], self.chance.randint(1, 2))

    async def step_made_again(self) -> None:
        await self.made_again()
        await self.look()
        await self.step_work()

    async def step_made_again_and_cut(self) -> None:
        await self.made_again()
        await self.reopened(
            self.disk.after_power_cut(self.chance.choice((None, self.chance.getrandbits(30))))
        )

    async def step_more_partitions(self) -> None:
        topic = self.model.topics["events"]
        count = len(topic.partitions) + 1
        wanted = [{"name": topic.name, "count": count, "assignments": None}]
        await self.call("CreatePartitions", 1, topics=wanted, timeout_ms=1000, validate_only=False)
        topic.partitions.append(Partition())
        await self.step_work()

    async def step_delete_records(self) -> None:
        topic = self.chance.choice([t for t in self.model.topics.values() if not t.compacted])
        index = self.chance.randrange(len(topic.partitions))
        partition = self.broker.catalog.topics[topic.name].partitions[index]
        offset = self.chance.randint(partition.log_start_offset, partition.high_watermark)
        topic.partitions[index].deleted_to = max(topic.partitions[index].deleted_to, offset)
        wanted = [{"name": topic.name, "partitions": [{"partition_index": index, "offset": offset}]}]
        await self.call("DeleteRecords", 2, topics=wanted, timeout_ms=1000)
        await self.look()
        await self.step_time()

    async def step_zombie(self) -> None:
        """A producer begins, and is not heard of any more; its transaction is aborted when its time is over."""
        writer = Writer(self, self.chance.choice(("z", "x")))
        if await writer.begin():
            place = self.somewhere()
            if await self.add_partitions(writer, [place]):
                await writer.send(*place, Transaction())
        await asyncio.sleep(120)
        await self.look()

    async def step_odd_batch(self) -> None:
        """A client writes header names that are not UTF-8, which Kafka takes."""
        topic = self.model.topics[self.chance.choice(("table", "slow"))]
        number = b"%d" % self.model.next_number()
        now = self.clock.now_ms()
        name = b"\xff\xfe".decode(errors="surrogateescape")
        record = Record(b"odd", number, (("n", number), ("~~", b"")), now)
        data = encode_batch([record]).replace(b"~~", b"\xff\xfe")
        data = reencode_batch(
            BatchHeader.read(data), [Record(b"odd", number, (("n", number), (name, b"")), now, 0)]
        )
        sent = topic.partitions[0].sent[number] = Sent(b"odd", number, now, now)
        code, base = await self.produce(topic.name, 0, data)
        if code != ErrorCode.NONE:
            raise Wrong(f"a header name was refused: {ErrorCode(code).name}")
        sent.offset = base

    async def step_intruder(self) -> None:
        """A client writes where it must not: the broker's own topics, and records without a key where they would be lost."""
        odd = encode_batch([Record(b"\x00", b"\xff", (), self.clock.now_ms())])
        for name in ("__consumer_offsets", "__transaction_state"):
            code, _ = await self.produce(name, 0, odd)
            if code == ErrorCode.NONE:
                raise Wrong(f"a client could write to {name}")
        keyless = encode_batch([Record(b"k", b"", (), 0), Record(None, b"", (), 0)])
        code, _ = await self.produce("table", 0, keyless)
        if code == ErrorCode.NONE:
            raise Wrong("a record without a key was acknowledged by a compacted topic")

    async def step_lost_catalog(self) -> None:
        """A restore has forgotten a file: nothing may be touched until it is there."""
        await self.broker.close()
        disk = self.disk.after_power_cut(None)
        await self.crash()
        path = FOLDER / self.chance.choice(("topics.json", "meta.json"))
        kept = disk.read(path)
        disk.remove(path)
        try:
            Broker(FOLDER, disk=disk, clock=self.clock)
        except StorageError:
            disk._locked.clear()
        else:
            raise Wrong(f"a start without {path.name}")
        disk.replace(path, kept)
        await self.after(disk)

    async def step_strangers(self) -> None:
        """Groups and transactional ids that are used once."""
        for _ in range(5):
            name = f"stranger {self.model.next_number()}"
            await Writer(self, name).begin()
            who = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": ""}
            part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
            topics = [{"name": "kept", "partitions": [part]}]
            await self.call("OffsetCommit", 7, topics=topics, **who)

    # ---- looking -----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Producers hear of their last batches, open transactions run out of time, decided ones are carried out."""
        for writer in self.writers:
            await writer.flush()
        for writer in self.transactional:
            writer.pending = []
        await asyncio.sleep(61)
        async with asyncio.timeout(ANSWER_S):
            while any(t.state in PREPARED for t in self.broker.transactions.by_id.values()):  # noqa: ASYNC110
                await asyncio.sleep(1)

    async def look(self) -> None:
        """Every kind of reader looks at everything."""
        if self.troubled:
            return
        await self.settle()
        for topic in self.model.topics.values():
            for index in range(len(topic.partitions)):
                await self.look_at(topic, index)
        await self.look_at_offsets()

    async def look_at(self, topic: Topic, index: int) -> None:
        start = await self.offset_of(topic, index, -2)
        end = await self.offset_of(topic, index, -1)
        try:
            size = self.chance.choice((300, 2000, 1 << 21))
            rows, reached = await self.within(self.client.read(topic.name, index, start, max_bytes=size))
            raw, _ = await self.within(
                self.client.read(topic.name, index, start, committed=False, max_bytes=size)
            )
        except RequestError as refused:
            raise Wrong(f"{topic.name}-{index} cannot be read: {refused}") from refused
        if reached != end:
            raise Wrong(f"{topic.name}-{index}: a committed reader gets to {reached} of {end}")
        check_reader(topic, index, rows, raw, Seen(start, max(self.clock.now_ms(), self.latest_ms)))

    async def offset_of(self, topic: Topic, index: int, timestamp: int) -> int:
        parts = [{"partition_index": index, "timestamp": timestamp}]
        answer = await self.call("ListOffsets", 4, topics=[{"name": topic.name, "partitions": parts}])
        part = answer.topics[0].partitions[0]
        if part.error_code:
            raise Wrong(f"{topic.name}-{index}: no offset: {ErrorCode(part.error_code).name}")
        return part.offset

    async def look_at_offsets(self) -> None:
        now = self.clock.now_ms()
        for group in ("g", "h", "of x", "of y"):
            answer = await self.call("OffsetFetch", 7, group_id=group, topics=None, require_stable=False)
            stored = {
                (t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions
            }
            for topic in self.model.topics.values():
                for index in range(len(topic.partitions)):
                    answered, asked, at = topic.offsets.get((group, index), (-1, -1, 0))
                    found = stored.get((topic.name, index), -1)
                    old = now - at > 6 * DAY_S * 1000
                    if not answered <= found <= asked and not (old and found == -1):
                        raise Wrong(
                            f"{group} is at {found} of {topic.name}-{index}, was answered {answered}, asked for {asked}"
                        )

    async def step_time(self) -> None:
        """Offsets by time, as consumers that begin at a time ask for them."""
        await self.settle()
        for topic in self.model.topics.values():
            index = self.chance.randrange(len(topic.partitions))
            start = await self.offset_of(topic, index, -2)
            raw, _ = await self.client.read(topic.name, index, start, committed=False)
            sent = list(topic.partitions[index].sent.values())
            if sent:
                timestamp = self.chance.choice(sent).time_ms
                answer = await self.offset_of(topic, index, timestamp)
                check_time(f"{topic.name}-{index}", timestamp, answer, start, raw)

    async def step_end(self) -> None:
        """Nine quiet days: what must go is gone, what must stay is there, nothing has grown."""
        self.chance = random.Random(1)
        for _ in range(36):
            for name in self.model.topics:
                await self.one(self.writers[0], name)
            await asyncio.sleep(6 * HOUR_S)
        await self.look()
        self.check_growth()
        await self.step_restart()

    def check_growth(self) -> None:
        """Of what is written every few hours, nothing is older or more than its settings allow; who is not heard of is forgotten."""
        for topic in self.model.topics.values():
            self.check_size(topic)
        names = {*self.broker.offsets.groups(), *self.broker.groups, *self.broker.transactions.by_id}
        unused = [name for name in names if name.startswith("stranger")]
        if unused:
            raise Wrong(f"{len(unused)} groups or transactional ids without a user are kept")

    def check_size(self, topic: Topic) -> None:
        now, partition = self.clock.now_ms(), self.broker.catalog.topics[topic.name].partitions[0]
        ages = topic.segment_ms + 4 * CARETAKER_S * 1000
        sent = topic.partitions[0].sent.values()
        if topic.retention_ms >= 0 and not topic.compacted:
            here = [s for s in sent if s.offset is not None and s.offset >= partition.log_start_offset]
            age = now - min((s.time_ms for s in here), default=now)
            if age > topic.retention_ms + ages + 6 * HOUR_S * 1000:
                raise Wrong(f"{topic.name}-0: a record of {age / 3.6e6:.0f} hours is still there")
        if topic.compacted:
            recent = sum(now - s.time_ms < ages for s in sent)
            bound = 4 * (KEYS + 2) + 2 * recent + 8
            held = sum(
                len(records) for header, records in read_all(partition) if not header.attributes & CONTROL
            )
            if held > bound:
                raise Wrong(f"{topic.name}-0: {held} records after compaction, at most {bound} expected")
