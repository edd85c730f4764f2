"""A life of a share group in virtual time: members that fetch, acknowledge, hang and vanish, and a broker that is killed or loses power, against
a model of what the members were answered.

A life is drawn from its seed. After each answer the model says whether it may be; in the end one member takes all that is left, and every record is
accounted for.
"""

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.shares import indexed_reading, parked_scan, share_store, snapshots
from headwater.log.shares.administration import queue_counts
from headwater.queue import record_index, schedule
from headwater.queue.record_states import RecordState
from headwater.queue_headers import DUE_HEADER, EXPIRES_HEADER, ID_HEADER, PRIORITY_HEADER
from headwater.record import TRANSACTIONAL, Record
from simulation.model import Wrong
from simulation.world import Disk, Loop, Time, world
from support.protocol import Client
from support.sharemember import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, acquired, configure

__all__ = ["live"]

FOLDER = Path("/life")
GROUP, TOPIC = "g", "t"
MEMBERS = ("ada", "bo", "cy")
STEPS = {
    "produce": 10,
    "transact": 3,
    "fetch": 20,
    "acknowledge": 18,
    "pledge": 6,
    "end": 5,
    "close": 2,
    "disconnect": 2,
    "sleep": 8,
    "hours": 2,
    "kill": 2,
    "power_cut": 2,
    "restart": 1,
    "in_flight": 4,
    "full_disk": 1,
    "settle": 4,
    "describe": 2,
}
PLEDGED = "a transaction"
ANSWER_S = 600.0
DELAY_MS_MAX = 60_000
WINDOW_MS = 5_000


@dataclass
class Known:
    """What is known of one record."""

    deliveries: int = 0
    """The last delivery count that a member was answered."""
    holder: str = ""
    lock_s: float = 0.0
    """When the lock of its holder ends."""
    due_s: float = 0.0
    """Not before this time it may be delivered again."""
    settled: bool = False
    asked_s: float = 0.0
    """The same, as the last acknowledgement asked for it."""
    key: bytes | None = None
    """Of a record whose key keeps the order."""
    scheduled: bool = False
    expires_s: float = math.inf
    id: bytes | None = None
    timestamp_ms: int = 0
    same: "list[Known]" = field(default_factory=list)
    """Earlier records with its id."""
    cancelled: bool = False
    """Whether an administrator has settled it."""
    doubt: bool = False
    """Whether an acknowledgement that settles it was sent and not answered."""

    @property
    def repeated(self) -> bool:
        return any(not known.cancelled for known in self.same)

    @property
    def maybe_repeated(self) -> bool:
        """Also if the earlier one may have been settled before it came up."""
        return bool(self.same)


@dataclass
class Model:
    """What the members were answered."""

    limit: int
    records: dict[tuple[int, int], Known] = field(default_factory=dict)
    lost_fetches: int = 0
    """Fetches that were not answered: each may have used up one delivery of any record."""

    def deliver(
        self, place: int, member: str, found: list[tuple[int, int, int]], now: float, lock_s: float
    ) -> None:
        for first, last, deliveries in found:
            for offset in range(first, last + 1):
                known = self.records.setdefault((place, offset), Known())
                where = f"{TOPIC}-{place} at {offset}"
                if known.settled:
                    raise Wrong(f"{where} was settled, and is delivered to {member}")
                if known.holder and known.holder != member and known.lock_s > now:
                    raise Wrong(
                        f"{where} is with {known.holder} until {known.lock_s}, and with {member} at {now}"
                    )
                if known.expires_s <= now:
                    raise Wrong(f"{where} has expired at {known.expires_s}, and is delivered at {now}")
                if known.repeated:
                    raise Wrong(f"{where} has the id of an earlier record, and is delivered: {known}")
                if known.due_s > now:
                    raise Wrong(f"{where} is delayed until {known.due_s}, and delivered at {now}")
                if not known.deliveries < deliveries <= self.limit:
                    raise Wrong(f"{where} has delivery {deliveries} after {known.deliveries} of {self.limit}")
                if known.key is not None:
                    self.check_order(place, offset, now)
                known.deliveries, known.holder, known.lock_s = deliveries, member, now + lock_s

    def check_order(self, place: int, offset: int, now: float) -> None:
        """One record of a key at a time, after all earlier ones; scheduled ones come when they are due."""
        this = self.records[place, offset]
        for (partition, other), known in self.records.items():
            if partition != place or known.key != this.key or other == offset:
                continue
            where = f"{TOPIC}-{place} at {offset} of key {this.key!r} is delivered"
            if known.holder and known.lock_s > now:
                raise Wrong(f"{where} while {known.holder} has {other}")
            is_earlier = other < offset and not known.scheduled and not this.scheduled
            if is_earlier and not (known.settled or known.doubt or self.is_out(known, now)):
                raise Wrong(f"{where} before {other}: {known}")

    def is_out(self, known: Known, now: float) -> bool:
        """Whether it may never be delivered again."""
        is_expired = known.expires_s <= max(now, known.due_s + 0.005)
        return known.maybe_repeated or is_expired or self.used_up(known)

    def add(self, place: int, offset: int, known: Known) -> None:
        """A new record, which may have the id of an earlier one."""
        self.records[place, offset] = known
        for (partition, other), earlier in self.records.items():
            if known.id is None or partition != place or other >= offset or earlier.id != known.id:
                continue
            if known.timestamp_ms - earlier.timestamp_ms <= WINDOW_MS:
                known.same.append(earlier)

    def used_up(self, known: Known) -> bool:
        """Whether it may have been delivered as often as is allowed."""
        return known.deliveries + self.lost_fetches >= self.limit

    def let_go(self, member: str | None = None) -> None:
        """A member, or each of them, holds nothing any more; a transaction does."""
        for known in self.records.values():
            if known.holder != PLEDGED and member in {None, known.holder}:
                known.holder = ""

    def held(self, member: str, place: int) -> list[int]:
        return sorted(o for (p, o), known in self.records.items() if p == place and known.holder == member)


@dataclass
class Open:
    """An open transaction."""

    producer_id: int
    epoch: int
    until_s: float
    """Before this time it is not aborted, unless its producer says so."""
    pledged: list[tuple[int, int]] = field(default_factory=list)

    @property
    def producer(self) -> dict[str, int]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}

    def known(self, model: Model) -> list[Known]:
        """What it still holds: after a time-out its records may be with members again."""
        known = (model.records[place] for place in self.pledged)
        return [each for each in known if each.holder == PLEDGED]


class ShareLife:
    """The broker, the members, and what they were answered."""

    def __init__(self, loop: Loop, seed: int) -> None:
        self.loop, self.clock, self.disk = loop, Time(loop), Disk()
        self.chance = random.Random(seed)
        self.partitions = self.chance.choice((1, 1, 2))
        self.lock_s = self.chance.choice((1, 5, 30))
        self.model = Model(self.chance.choice((2, 3, 5, 10)))
        self.strict = self.chance.random() < 0.4
        self.order_by = self.chance.choice(("", "key"))
        self.queue = bool(self.order_by) or self.chance.random() < 0.3
        self.ids = self.queue and self.chance.random() < 0.5
        self.committed = self.chance.random() < 0.5
        self.done = Counter[str]()
        self.open: Open | None = None
        """The transaction with which records are to be settled."""

    async def go(self, steps: int) -> None:
        await self.start()
        await self.configure()
        for _ in range(steps):
            kind = self.chance.choices(list(STEPS), weights=list(STEPS.values()))[0]
            self.done[kind] += 1
            await getattr(self, f"step_{kind}")()
        await self.drain()

    # ---- the broker --------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.broker = Broker(FOLDER, disk=self.disk, clock=self.clock, retention_interval_s=3600.0)
        if TOPIC not in self.broker.catalog.topics:
            self.broker.catalog.create(
                TOPIC, self.partitions, {"segment.bytes": "3000", "retention.ms": "-1"}
            )
        self.clients = {name: Client(self.broker) for name in MEMBERS}
        self.members = {name: ShareMember(client, name, GROUP) for name, client in self.clients.items()}

    async def configure(self) -> None:
        code = await configure(
            self.clients["ada"],
            GROUP,
            auto_offset_reset="earliest",
            delivery_count_limit=str(self.model.limit),
            record_lock_duration_ms=str(self.lock_s * 1000),
            partition_max_record_locks="100",
            isolation_level="read_committed" if self.committed else "read_uncommitted",
            **{"headwater.queue": str(self.queue).lower(), "headwater.order.by": self.order_by},
            **{"headwater.duplicates.ms": str(WINDOW_MS if self.ids else 0)},
        )
        if code:
            raise Wrong(f"settings are refused: {ErrorCode(code).name}")
        await self.broker.committed()

    async def crash(self, disk: Disk) -> None:
        """The process is gone, whatever it was doing."""
        mine = asyncio.current_task()
        for task in self.loop.tasks():
            if task is not mine:
                task.cancel()
        await asyncio.sleep(0)
        self.broker.shares.close()
        for timer in (*self.broker._timers.values(), *self.broker.transactions._timers.values()):
            timer.cancel()
        self.disk._locked.clear()
        self.disk = disk
        self.model.let_go()
        await self.start()

    async def step_kill(self) -> None:
        await self.crash(self.disk.after_kill())

    async def step_power_cut(self) -> None:
        await self.crash(self.disk.after_power_cut(self.chance.getrandbits(32)))

    async def step_restart(self) -> None:
        await self.broker.close()
        self.model.let_go()
        await self.start()

    async def step_full_disk(self) -> None:
        """What cannot be stored is refused, and nothing of it has happened."""
        self.disk.full_after_bytes = self.chance.choice((0, 50, 300))
        for _ in range(self.chance.randint(1, 4)):
            await getattr(self, self.chance.choice(("step_fetch", "step_acknowledge")))()
        self.disk.full_after_bytes = None

    # ---- traffic -----------------------------------------------------------------------------------------

    async def within(self, asked: Coroutine):
        async with asyncio.timeout(ANSWER_S):
            return await asked

    async def step_produce(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            place = self.chance.randrange(self.partitions)
            records = [self.record() for _ in range(self.chance.choice((1, 1, 2, 7, 30)))]
            codec = self.chance.choice((0, 0, 3))
            part = await self.within(self.clients["ada"].produce(TOPIC, place, records, codec))
            if part.error_code:
                raise Wrong(f"a batch is refused: {ErrorCode(part.error_code).name}")
            for offset, record in enumerate(records, part.base_offset):
                self.model.add(place, offset, self.known(record))

    def record(self) -> Record:
        headers = []
        if self.chance.random() < 0.1:
            due_ms = self.clock.now_ms() + self.chance.choice((-5, 300, 5_000, DELAY_MS_MAX))
            headers.append((DUE_HEADER, str(due_ms).encode()))
        if self.chance.random() < 0.3:
            headers.append((PRIORITY_HEADER, str(self.chance.randrange(10)).encode()))
        if self.chance.random() < 0.1:
            expires_ms = self.clock.now_ms() + self.chance.choice((-5, 300, 5_000, 20_000))
            headers.append((EXPIRES_HEADER, str(expires_ms).encode()))
        if self.chance.random() < 0.1:
            headers.append((ID_HEADER, str(self.chance.randrange(20)).encode()))
        key = self.chance.choice((b"k", b"k", b"l", b"m", None))
        return Record(key, b"v", tuple(headers), self.clock.now_ms())

    def known(self, record: Record) -> Known:
        """What the model knows of a new record."""
        headers = dict(record.headers) if self.queue else {}
        due_ms, expires_ms = (int(headers.get(name) or 0) for name in (DUE_HEADER, EXPIRES_HEADER))
        return Known(
            due_s=self.elapsed_s(due_ms) - 0.001 if due_ms else 0.0,
            key=record.key if self.order_by else None,
            scheduled=bool(due_ms),
            expires_s=self.elapsed_s(expires_ms) + 0.003 if expires_ms else math.inf,
            id=headers.get(ID_HEADER) if self.ids else None,
            timestamp_ms=record.timestamp,
        )

    def elapsed_s(self, wall_ms: int) -> float:
        return (wall_ms - self.clock.now_ms()) / 1000 + self.loop.elapsed

    async def step_transact(self) -> None:
        """A transaction, which leaves a marker; the records of an aborted one are not for those who read committed ones."""
        client, place = self.clients["ada"], self.chance.randrange(self.partitions)
        answer = await self.within(
            client.call("InitProducerId", 3, transactional_id="x", transaction_timeout_ms=60_000)
        )
        producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        topics = [{"name": TOPIC, "partitions": [place]}]
        asked = {"v3_and_below_transactional_id": "x", "v3_and_below_topics": topics}
        asked |= {f"v3_and_below_{key}": value for key, value in producer.items()}
        await self.within(client.call("AddPartitionsToTxn", 3, **asked))
        size, commit = self.chance.randint(1, 5), self.chance.random() < 0.5
        batch = {**producer, "base_sequence": 0, "attributes": TRANSACTIONAL}
        part = await self.within(client.produce(TOPIC, place, [b"t"] * size, **batch))
        if part.error_code:
            raise Wrong(f"a batch is refused: {ErrorCode(part.error_code).name}")
        if commit or not self.committed:
            for offset in range(part.base_offset, part.base_offset + size):
                self.model.records[place, offset] = Known()
        if self.chance.random() < 0.5:
            await self.step_fetch()
        await self.within(client.call("EndTxn", 3, transactional_id="x", committed=commit, **producer))

    async def step_sleep(self) -> None:
        await asyncio.sleep(self.chance.choice((0.01, 0.5, self.lock_s - 0.1, self.lock_s + 0.1)))

    async def step_hours(self) -> None:
        """Long enough for segments of states to be closed and compacted."""
        await asyncio.sleep(self.chance.choice((1, 3)) * 3600.0)
        if "__share_group_state" in self.broker.catalog.topics:
            state = self.broker.catalog.topics["__share_group_state"].partitions[0]
            self.done["compacted"] += state.cleaned_to > 0

    async def step_fetch(self) -> None:
        member = self.chance.choice(list(self.members.values()))
        await self.fetch(member, acks={})

    async def fetch(self, member: ShareMember, acks: dict[int, list], wait_ms: int = 0) -> int:
        """Returns how many records came."""
        places = [
            {"partition_index": place, "acknowledgement_batches": acks.get(place, [])}
            for place in range(self.partitions)
        ]
        answer = await self.within(
            member.ask(
                topics=[{"topic_id": member.topic_id(TOPIC), "partitions": places}],
                max_records=self.chance.choice((1, 3, 10, 500)),
                max_wait_ms=wait_ms,
                share_acquire_mode=int(self.strict),
            )
        )
        if answer.error_code:
            member.epoch = 0
            return 0
        count = 0
        for part in (part for topic in answer.responses for part in topic.partitions):
            if part.error_code and self.disk.full_after_bytes is None:
                raise Wrong(f"a fetch is refused: {part.error_message}")
            found = acquired(part)
            count += sum(last - first + 1 for first, last, _ in found)
            self.model.deliver(part.partition_index, member.name, found, self.loop.elapsed, self.lock_s)
        return count

    async def step_acknowledge(self) -> None:
        """Some of what a member holds, as far as it knows: each record in one way."""
        member = self.chance.choice(list(self.members.values()))
        if not member.epoch:
            return
        place = self.chance.randrange(self.partitions)
        held = self.model.held(member.name, place)
        chosen = [offset for offset in held if self.chance.random() < 0.8]
        renewing = self.chance.random() < 0.2
        kinds = [RENEW] if renewing else [ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT]
        acks = [(offset, offset, self.chance.choice(kinds), *self.release(renewing)) for offset in chosen]
        acks = [ack if ack[2] == RELEASE else (*ack[:3], 0, False) for ack in acks]
        if not acks:
            return
        for offset, _, kind, delay_ms, _ in acks:
            known = self.model.records[place, offset]
            known.doubt |= kind in {ACCEPT, REJECT}
            known.asked_s = self.loop.elapsed + delay_ms / 1000 if delay_ms else 0.0
        asked = member.acknowledge(*acks, topic=TOPIC, partition=place, is_renew_ack=renewing)
        code = await self.within(asked)
        self.note(member, place, acks, code)

    def release(self, renewing: bool) -> tuple[int, bool]:
        """Of a release its delay, and whether the delivery does not count."""
        if renewing or self.chance.random() < 0.5:
            return 0, False
        return self.chance.choice((0, 300, 5_000, DELAY_MS_MAX)), self.chance.random() < 0.3

    def note(self, member: ShareMember, place: int, acks: list[tuple[int, int, int]], code: int) -> None:
        """What an answer to acknowledgements says of the records."""
        over = any(self.model.records[place, o].lock_s <= self.loop.elapsed for o, *_ in acks)
        if code and not over and self.disk.full_after_bytes is None:
            raise Wrong(f"{member.name}: acknowledgements are refused with {ErrorCode(code).name}")
        for offset, _, kind, *release in acks:
            known = self.model.records[place, offset]
            known.doubt = False
            if code:
                if over:
                    known.holder = ""
            elif kind == RENEW:
                if known.lock_s <= self.loop.elapsed:
                    known.holder = ""  # settled before, at its last delivery: that counts as renewed
                known.lock_s = self.loop.elapsed + self.lock_s
            else:
                known.holder = ""
                known.settled = kind != RELEASE
                known.due_s = known.asked_s
                known.deliveries -= any(release[1:])
                if any(release[1:]) and known.lock_s <= self.loop.elapsed:
                    self.model.lost_fetches += 1  # it may have been settled before, at its last delivery

    async def step_pledge(self) -> None:
        """A member settles records with a transaction, in which it writes one record for each of them."""
        member = self.chance.choice(list(self.members.values()))
        place = self.chance.randrange(self.partitions)
        held = [o for o in self.model.held(member.name, place) if self.chance.random() < 0.5]
        if not member.epoch or not held or self.open is not None:
            return
        client = self.clients["ada"]
        answer = await self.within(
            client.call("InitProducerId", 3, transactional_id="p", transaction_timeout_ms=60_000)
        )
        if answer.error_code:
            return
        self.open = Open(answer.producer_id, answer.producer_epoch, self.loop.elapsed + 60)
        named = {"transactional_id": "p", **self.open.producer}
        added = await self.within(client.call("AddOffsetsToTxn", 3, group_id=GROUP, **named))
        if added.error_code and self.disk.full_after_bytes is None:
            raise Wrong(f"the group is not added: {ErrorCode(added.error_code).name}")
        for offset in held:
            self.model.records[place, offset].doubt = True
        over = any(self.model.records[place, o].lock_s <= self.loop.elapsed for o in held)
        acks = [(offset, offset, self.chance.choice((ACCEPT, REJECT))) for offset in held]
        code = await self.within(member.acknowledge(*acks, topic=TOPIC, partition=place, **named))
        if code and not over and self.disk.full_after_bytes is None:
            raise Wrong(f"{member.name}: a pledge is refused with {ErrorCode(code).name}")
        for offset in held:
            known = self.model.records[place, offset]
            known.doubt = bool(code)
            if not code:
                known.holder = "" if over else PLEDGED
                known.lock_s = self.open.until_s
                self.open.pledged += [] if over else [(place, offset)]

    async def step_end(self) -> None:
        """The transaction commits, aborts, or is left to its time-out."""
        ending, client = self.open, self.clients["ada"]
        if ending is None:
            return
        kind = self.chance.choice(("commit", "commit", "abort", "leave"))
        if kind == "leave":
            await asyncio.sleep(120)
        else:
            for known in ending.known(self.model):
                known.doubt = True
            named = {"transactional_id": "p", **ending.producer}
            answer = await self.within(client.call("EndTxn", 3, committed=kind == "commit", **named))
            if answer.error_code and self.disk.full_after_bytes is not None:
                return
            kind = "abort" if answer.error_code else kind  # it was not begun, or has timed out
        self.open = None
        for known in ending.known(self.model):
            known.doubt = False
            known.holder, known.settled = "", known.settled or kind == "commit"

    async def step_settle(self) -> None:
        """An administrator settles some records, whether or not they have come up."""
        place = self.chance.randrange(self.partitions)
        end = self.broker.catalog.topics[TOPIC].partitions[place].high_watermark
        if not end:
            return
        first = self.chance.randrange(end)
        last = min(first + self.chance.choice((0, 0, 1, 3)), end - 1)
        held_too = self.chance.random() < 0.2
        part = {
            "partition_index": place,
            "start_offset": -1,
            "settled": [{"first_offset": first, "last_offset": last}],
            "settles_held": held_too,
        }
        topics = [{"topic_name": TOPIC, "partitions": [part]}]
        asked = self.clients["ada"].call("AlterShareGroupOffsets", 0, group_id=GROUP, topics=topics)
        answer = (await self.within(asked)).responses[0].partitions[0]
        if answer.error_code:
            if answer.error_code != ErrorCode.GROUP_ID_NOT_FOUND and self.disk.full_after_bytes is None:
                raise Wrong(f"an administrator is refused: {answer.error_message}")
            return
        held = {o for part in answer.held or () for o in range(part.first_offset, part.last_offset + 1)}
        for offset in range(first, last + 1):
            known = self.model.records.get((place, offset))
            is_held = known is not None and known.holder and known.lock_s > self.loop.elapsed
            if is_held and not (known.doubt or held_too or offset in held):
                raise Wrong(f"{TOPIC}-{place} at {offset} is settled, and with {known.holder}")
            if known is not None and offset not in held:
                known.settled = known.cancelled = True
                known.holder = ""

    async def step_describe(self) -> None:
        """What is said of each record agrees with what members were answered."""
        topic = {"topic_name": TOPIC, "partitions": list(range(self.partitions))}
        asked = [{"group_id": GROUP, "topics": [topic], "states_max": 10_000}]
        answer = await self.within(self.clients["bo"].call("DescribeShareGroupOffsets", 1, groups=asked))
        for part in answer.groups[0].topics[0].partitions:
            for run in part.states or ():
                for offset in range(run.first_offset, run.last_offset + 1):
                    known = self.model.records.get((part.partition_index, offset))
                    if known is None:
                        continue
                    where = f"{TOPIC}-{part.partition_index} at {offset} is said to be"
                    is_settled = run.state == RecordState.SETTLED
                    if known.settled and not (is_settled or known.doubt):
                        raise Wrong(f"{where} {RecordState(run.state).name}: {known}")
                    is_over = known.settled or known.doubt or self.model.is_out(known, self.loop.elapsed)
                    if is_settled and not is_over:
                        raise Wrong(f"{where} settled: {known}")

    async def step_close(self) -> None:
        member = self.chance.choice(list(self.members.values()))
        if member.epoch:
            await self.within(member.ask(share_session_epoch=-1, topics=[]))
            self.model.let_go(member.name)

    async def step_disconnect(self) -> None:
        name = self.chance.choice(MEMBERS)
        self.broker.shares.disconnect(self.clients[name])
        self.members[name].epoch = 0
        self.model.let_go(name)

    async def step_in_flight(self) -> None:
        """The broker dies while requests are under way: they may have happened or not."""
        tasks = []
        for member in self.members.values():
            asked = self.step_produce_lost() if self.chance.random() < 0.3 else self.lost_request(member)
            tasks.append(asyncio.ensure_future(asked))
        for _ in range(self.chance.randint(0, 12)):
            await asyncio.sleep(0)
        cut = self.chance.random() < 0.5
        disk = self.disk.after_power_cut(self.chance.getrandbits(32)) if cut else self.disk.after_kill()
        await self.crash(disk)

    async def step_produce_lost(self) -> None:
        await self.clients["ada"].produce(TOPIC, 0, [b"lost"])

    async def lost_request(self, member: ShareMember) -> None:
        place = self.chance.randrange(self.partitions)
        held = self.model.held(member.name, place)
        if held and member.epoch and self.chance.random() < 0.5:
            for offset in held:
                self.model.records[place, offset].doubt = True
            acks = [(offset, offset, ACCEPT) for offset in held]
            await member.acknowledge(*acks, topic=TOPIC, partition=place)
        else:
            self.model.lost_fetches += 1
            parts = [{"partition_index": p} for p in range(self.partitions)]
            await member.ask(
                topics=[{"topic_id": member.topic_id(TOPIC), "partitions": parts}], max_wait_ms=100
            )

    # ---- the end -----------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """One member takes and accepts all that is left, and then every record is accounted for."""
        await asyncio.sleep(max(self.lock_s, DELAY_MS_MAX / 1000) + 100)  # transactions end too
        self.model.let_go()
        for known in self.open.known(self.model) if self.open is not None else ():
            known.holder = ""
        member = self.members["ada"]
        member.epoch, quiet = 0, 0
        while quiet < 3:
            count = await self.fetch(member, {}, wait_ms=100)
            quiet = 0 if count else quiet + 1
            for place in range(self.partitions):
                acks = [(offset, offset, ACCEPT) for offset in self.model.held("ada", place)]
                if acks:
                    code = await self.within(member.acknowledge(*acks, topic=TOPIC, partition=place))
                    self.note(member, place, acks, code)
        self.check_end()
        await self.broker.close()

    def check_end(self) -> None:
        """Every record is accounted for, and nothing is left."""
        for (place, offset), known in self.model.records.items():
            if not (known.settled or known.doubt or self.model.is_out(known, self.loop.elapsed)):
                raise Wrong(f"{TOPIC}-{place} at {offset} is lost: {known}")
        for (_, place), share in self.broker.shares.opened(GROUP).items():
            if share.state.start != share.log.high_watermark:
                raise Wrong(
                    f"{TOPIC}-{place}: the group is at {share.state.start} of {share.log.high_watermark}"
                )
            counts = queue_counts(share, self.broker.shares.config(GROUP))
            if counts.lag or share.state.parking.has_any:
                raise Wrong(f"{TOPIC}-{place}: nothing is left, and the counts are {counts}")
            known = [known for (partition, _), known in self.model.records.items() if partition == place]
            certain = sum(each.repeated and not each.cancelled for each in known)
            if not certain <= counts.duplicate <= sum(each.maybe_repeated for each in known):
                raise Wrong(f"{TOPIC}-{place}: {counts.duplicate} duplicates instead of {certain}")


@contextlib.contextmanager
def small_limits(chance: random.Random) -> Iterator[None]:
    """Limits that a life of a few records may reach, or the usual ones."""
    with contextlib.ExitStack() as patches:
        for module, name, values in LIMITS:
            value = chance.choice((*values, getattr(module, name)))
            patches.enter_context(mock.patch.object(module, name, value))
        yield


LIMITS = (
    (share_store, "UPDATES_MAX", (1, 3, 10)),
    (snapshots, "RUNS_PER_RECORD", (1, 2, 5)),
    (record_index, "KEY_RECORDS_MAX", (1, 3, 10)),
    (record_index, "INDEXED_RECORDS_MAX", (3, 20)),
    (record_index, "LOOK_AHEAD_RECORDS", (5, 20)),
    (indexed_reading, "KEY_RECORDS_MIN", (1, 3)),
    (indexed_reading, "DUE_RECORDS_MAX", (1, 3)),
    (indexed_reading, "READ_BYTES", (500,)),
    (parked_scan, "STEP_BYTES", (500,)),
    (schedule, "BLOCK_RECORDS", (1, 3)),
)


def live(seed: int, steps: int) -> Counter[str]:
    """Lives through the script of a seed; raises Wrong, or whatever the broker let escape."""
    with world(seed) as loop, small_limits(random.Random(seed)):
        life = ShareLife(loop, seed)
        loop.run_until_complete(life.go(steps))
        return life.done
