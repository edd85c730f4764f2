"""Acknowledgements that take effect with a producer's transaction: a record is done exactly when what was made of it is there."""

import asyncio

import pytest

from headwater.errors import ErrorCode
from headwater.log.shares.share_record import ShareKey
from headwater.log.shares.share_store import ShareStore
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.producers import Marker
from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_partition import SharePartition
from headwater.record import TRANSACTIONAL
from log.test_shares import on, share_of
from support.protocol import Client
from support.sharemember import ACCEPT, RELEASE, ShareMember, acquired, configure

NAME = {"transactional_id": "worker"}


class Worker:
    """Makes a record of topic ``out`` of each record of ``t``, in the transaction that acknowledges it."""

    def __init__(self, client: Client, name: str = "w") -> None:
        self.client, self.member = client, ShareMember(client, name)

    async def claim(self) -> None:
        answer = await self.client.call("InitProducerId", 3, **NAME, transaction_timeout_ms=60_000)
        self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        self.sequence = 0

    async def add(self) -> None:
        if "out" not in self.client.broker.catalog.topics:
            self.client.broker.catalog.create("out", 1)
        answer = await self.client.call("AddOffsetsToTxn", 3, group_id="g", **NAME, **self.producer)
        assert answer.error_code == 0
        topics = {"v3_and_below_topics": [{"name": "out", "partitions": [0]}]}
        named = {f"v3_and_below_{name}": value for name, value in (NAME | self.producer).items()}
        await self.client.call("AddPartitionsToTxn", 3, **topics, **named)

    async def write(self, *values: bytes) -> None:
        batch = {**self.producer, "base_sequence": self.sequence, "attributes": TRANSACTIONAL}
        part = await self.client.produce("out", 0, list(values), **batch)
        assert part.error_code == 0
        self.sequence += len(values)

    async def pledge(self, *acks) -> int:
        return await self.member.acknowledge(*acks, **NAME, **self.producer)

    async def end(self, *, commit: bool) -> int:
        answer = await self.client.call("EndTxn", 3, committed=commit, **NAME, **self.producer)
        return answer.error_code

    async def work(self) -> list[int]:
        """Everything up to the end of the transaction; returns the offsets that it is about."""
        await self.claim()
        parts = await self.member.fetch()
        offsets = [o for first, last, _ in acquired(parts[0]) for o in range(first, last + 1)]
        await self.add()
        await self.write(*[b"of %d" % offset for offset in offsets])
        assert await self.pledge(*[(offset, offset, ACCEPT) for offset in offsets]) == 0
        return offsets


async def outputs(client: Client) -> list[bytes]:
    records, _ = await client.read("out", 0)
    return [record.value for record in records]


@pytest.mark.parametrize("commit", [True, False])
def test_records_are_settled_if_the_transaction_commits_and_available_if_not(commit):
    async def steps(client):
        await client.produce("t", 0, [b"a", b"b"])
        worker = Worker(client)
        assert await worker.work() == [0, 1]
        assert await outputs(client) == []
        assert await worker.end(commit=commit) == 0
        assert await outputs(client) == ([b"of 0", b"of 1"] if commit else [])
        part = (await worker.member.fetch()).get(0)
        assert (acquired(part) if part else []) == ([] if commit else [(0, 1, 2)])

    on(MemoryDisk(), steps)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("cut", [False, True])
def test_an_open_transaction_holds_its_records_over_a_restart_and_a_power_cut_until_it_ends(cut, commit):
    disk, worker = MemoryDisk(), []

    async def begin(client):
        await client.produce("t", 0, [b"a"])
        worker.append(Worker(client))
        await worker[0].work()

    async def end(client):
        other = ShareMember(client, "other")
        assert acquired((await other.fetch())[0]) == []
        worker[0].client = client
        assert await worker[0].end(commit=commit) == 0
        assert len(await outputs(client)) == commit
        part = (await other.fetch()).get(0)
        assert (acquired(part) if part else []) == ([] if commit else [(0, 0, 2)])

    async def again(client):
        part = (await ShareMember(client).fetch()).get(0)
        assert (acquired(part) if part else []) == ([] if commit else [(0, 0, 3)])

    on(disk, begin)
    on(disk.power_cut(1) if cut else disk, end, again)


@pytest.mark.parametrize("commit", [True, False])
def test_the_marker_alone_decides_at_a_start(commit):
    """What the broker does after it has written the marker is lost."""

    async def steps(client):
        broker = client.broker
        state = broker.catalog.create("state", 1).partitions[0]
        store = ShareStore(None, lambda: state, broker.clock)
        key = ShareKey("g", broker.catalog.topics["t"].id, 0)
        held = Run(0, 4, DeliveryState.ACQUIRED, 1, 5, "ada")
        store.store({key: SharePartition(0, [held])})
        store.pledge(key, [held.cut(1, 2).settled()], 7, 0)
        state.append_marker(Marker(7, 0, commit), broker.clock.now_ms())
        await broker.committed()
        again = ShareStore(state, lambda: state, broker.clock)
        assert again.pledges.of(key) == {}
        start, runs, *_ = again.take_recovered()[key]
        settled = [offset for run in runs for offset in range(run.first, run.last + 1) if run.state == 2]
        assert (start, settled) == (0, [1, 2] if commit else [])

    on(MemoryDisk(), steps)


def test_neither_the_lock_nor_the_member_ends_it():
    async def steps(client):
        await configure(client, "g", record_lock_duration_ms="1000")
        await client.produce("t", 0, [b"a"])
        worker = Worker(client)
        await worker.work()
        client.broker.shares.disconnect(client)
        await asyncio.sleep(1.1)
        assert acquired((await ShareMember(Client(client.broker), "other").fetch())[0]) == []
        assert await worker.end(commit=True) == 0
        assert share_of(client).state.start == 1

    on(MemoryDisk(), steps)


def test_a_producer_that_is_fenced_settles_nothing():
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        worker, successor = Worker(client), Worker(Client(client.broker), "successor")
        await worker.work()
        await successor.claim()
        assert await worker.end(commit=True) != 0
        assert acquired((await successor.member.fetch())[0]) == [(0, 0, 2)]

    on(MemoryDisk(), steps)


def test_a_wrong_pledge_is_refused_and_nothing_is_changed():
    async def steps(client):
        await client.produce("t", 0, [b"a", b"b"])
        worker = Worker(client)
        await worker.claim()
        await worker.member.fetch()
        assert await worker.pledge((0, 0, ACCEPT)) == ErrorCode.INVALID_TXN_STATE
        await worker.add()
        assert await worker.pledge((0, 0, RELEASE)) == ErrorCode.INVALID_REQUEST
        assert await worker.pledge((0, 0, ACCEPT)) == 0
        assert await worker.pledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        worker.producer["producer_epoch"] += 1
        assert await worker.pledge((1, 1, ACCEPT)) == ErrorCode.PRODUCER_FENCED
        assert share_of(client).state.unsettled == 2

    on(MemoryDisk(), steps)


def test_a_group_that_begins_elsewhere_forgets_what_a_transaction_would_settle():
    """An operator resets the group while the transaction of a dead worker is open."""
    disk = MemoryDisk()

    async def steps(client):
        await client.produce("t", 0, [b"a", b"b"])
        worker = Worker(client)
        await worker.work()
        topic = client.broker.catalog.topics["t"]
        client.broker.shares.move("g", {(topic.id, 0): 0})
        assert await worker.end(commit=True) == 0

    async def again(client):
        assert acquired((await ShareMember(client).fetch())[0]) == [(0, 1, 1)]

    on(disk, steps, again)


def test_pledges_that_are_over_leave_nothing_in_the_state_of_groups():
    async def steps(client):
        for _ in range(3):
            await client.produce("t", 0, [b"a"])
            worker = Worker(client)
            await worker.work()
            await worker.end(commit=True)
        state = client.broker.shares._store
        await client.produce("t", 0, [b"a"])
        await ShareMember(client, "last").fetch()
        assert (state.pledges._runs, state._over) == ({}, [])

    on(MemoryDisk(), steps)
