"""What administrators see of a queue record by record, and records that they settle."""

import asyncio

import pytest

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from headwater.queue import settlement
from headwater.queue.record_states import RecordState
from headwater.queue_headers import DUE_HEADER
from headwater.record import Record
from log.test_queue_records import keyed, offsets
from log.test_shares import on, share_of
from support.protocol import Client
from support.sharemember import ACCEPT, REJECT, RELEASE, ShareMember, configure

ORDERED = {"headwater.order.by": "key"}
NOTHING = (0, [])


async def settle(client: Client, *ranges: tuple[int, int], group: str = "g", **fields) -> tuple:
    """The error code or the number of settled offsets, and what is held."""
    part = {
        "partition_index": 0,
        "start_offset": -1,
        "settled": [{"first_offset": first, "last_offset": last} for first, last in ranges],
        **fields,
    }
    topics = [{"topic_name": "t", "partitions": [part]}]
    answer = await client.call("AlterShareGroupOffsets", 0, group_id=group, topics=topics)
    if answer.error_code:
        return ErrorCode(answer.error_code), []
    (result,) = answer.responses[0].partitions
    if result.error_code:
        return ErrorCode(result.error_code), []
    return result.settled_records, [(each.first_offset, each.last_offset) for each in result.held or ()]


async def take(member: ShareMember, **fields) -> list[int]:
    part = (await member.fetch(**fields)).get(0)
    return offsets(part) if part is not None else []


async def described(client: Client, states_from: int = 0, states_max: int = 1_000):
    topic = {"topic_name": "t", "partitions": [0], "states_from": [states_from]}
    asked = [{"group_id": "g", "topics": [topic], "states_max": states_max}]
    answer = await client.call("DescribeShareGroupOffsets", 1, groups=asked)
    return answer.groups[0].topics[0].partitions[0]


def states(part) -> list[tuple[int, int, str, int]]:
    return [
        (s.first_offset, s.last_offset, RecordState(s.state).name.lower(), s.delivery_count)
        for s in part.states or ()
    ]


async def mixed(client: Client) -> ShareMember:
    """Records 0 to 11: 0 settled, 1 delayed, 2 available again, 3 settled, 4 acquired, 5 scheduled, the others never delivered."""
    due = ((DUE_HEADER, str(client.broker.clock.now_ms() + 3_600_000).encode()),)
    await client.produce("t", 0, [Record(None, b"v", due if n == 5 else (), 1_000) for n in range(12)])
    member = ShareMember(client)
    await member.fetch(max_records=5, share_acquire_mode=1)
    await member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE, 60_000, False), (2, 2, RELEASE), (3, 3, REJECT))
    return member


def test_the_states_of_records_are_listed_in_pages():
    async def steps(client):
        await configure(client, "g", **{"headwater.queue": "true"})
        await mixed(client)
        whole = await described(client)
        assert states(whole) == [
            (1, 1, "delayed", 1),
            (2, 2, "available", 1),
            (3, 3, "settled", 0),
            (4, 4, "acquired", 1),
            (5, 5, "scheduled", 0),
        ]
        assert whole.next_offset == -1
        assert (whole.lag, whole.waiting, whole.in_flight, whole.delayed, whole.scheduled) == (10, 7, 1, 1, 1)
        now_ms = client.broker.clock.now_ms()
        due = {s.first_offset: s.due_ms for s in whole.states}
        assert (due[2], due[3]) == (-1, -1)
        assert 55_000 < due[1] - now_ms <= 60_002
        assert 3_500_000 < due[5] - now_ms <= 3_600_002
        pages, offset = [], 0
        while offset != -1:
            part = await described(client, offset, 2)
            pages.append(states(part))
            offset = part.next_offset
        assert [len(page) for page in pages] == [2, 2, 1]
        assert [state for page in pages for state in page] == states(whole)

    on(MemoryDisk(), steps)


@pytest.mark.parametrize("config", [{}, {"headwater.queue": "true"}, ORDERED])
def test_records_are_settled_while_the_group_has_members_and_those_that_a_member_holds_are_named(config):
    disk = MemoryDisk()

    async def steps(client):
        await configure(client, "g", **config)
        await client.produce("t", 0, keyed("a0 b1 c2 d3 e4 f5 g6 h7"))
        member = ShareMember(client)
        await member.fetch(max_records=2, share_acquire_mode=1)
        assert await settle(client, (1, 3), (6, 6)) == (3, [(1, 1)])
        assert await settle(client, (1, 3), (6, 6)) == (0, [(1, 1)])
        assert await take(member) == [4, 5, 7]
        assert await settle(client, (1, 1), settles_held=True) == (1, [])
        assert await member.acknowledge((1, 1, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        assert await member.acknowledge((0, 0, ACCEPT), (4, 5, ACCEPT), (7, 7, ACCEPT)) == 0
        assert share_of(client).state.start == 8

    async def again(client):
        assert share_of(client).state.start == 8

    on(disk, steps, again)


@pytest.mark.parametrize("config", [{}, {"headwater.queue": "true"}, ORDERED])
def test_records_that_were_settled_before_they_came_up_are_never_delivered(config):
    disk = MemoryDisk()

    async def steps(client):
        await configure(client, "g", **config)
        await client.produce("t", 0, keyed("a0 a1"))
        assert await take(ShareMember(client), max_records=1, share_acquire_mode=1) == [0]
        await client.produce("t", 0, keyed("b2 b3 b4"))
        await client.produce("t", 0, keyed("c5 c6"))
        assert await settle(client, (3, 5)) == (3, [])
        assert states(await described(client))[-1] == (3, 5, "settled", 0)

    async def again(client):
        part = await described(client)
        assert (part.lag, states(part)) == (4, [(0, 0, "available", 1), (3, 5, "settled", 0)])
        member, got = ShareMember(client), []
        while len(got) < 4:
            part = (await member.fetch())[0]
            for each in part.acquired_records:
                got += range(each.first_offset, each.last_offset + 1)
                await member.acknowledge((each.first_offset, each.last_offset, ACCEPT))
        assert sorted(got) == [0, 1, 2, 6]
        assert share_of(client).state.start == 7

    on(disk, steps, again)


def test_a_record_that_is_delayed_or_scheduled_is_cancelled_by_its_offset_and_unblocks_its_key():
    async def steps(client):
        await configure(client, "g", **ORDERED)
        due = ((DUE_HEADER, str(client.broker.clock.now_ms() + 3_600_000).encode()),)
        await client.produce("t", 0, [*keyed("a0 a1"), Record(b"b", b"b2", due, 1_000)])
        member = ShareMember(client)
        assert await take(member) == [0]
        await member.acknowledge((0, 0, RELEASE, 60_000, False))
        assert await take(member) == []
        assert await settle(client, (0, 0), (2, 2)) == (2, [])
        assert await take(member) == [1]
        assert (await described(client)).scheduled == 0

    on(MemoryDisk(), steps)


def test_what_cannot_be_stored_is_not_settled():
    disk = MemoryDisk()

    async def steps(client):
        await client.produce("t", 0, keyed("a0 a1 a2"))
        member = ShareMember(client)
        await member.fetch(max_records=1, share_acquire_mode=1)
        await client.broker.committed()
        disk.full_after_bytes = 0
        assert await settle(client, (1, 2)) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        disk.full_after_bytes = None
        assert await take(member) == [1, 2]

    on(disk, steps)


def test_ranges_that_are_wrong_settle_nothing():
    async def steps(client):
        await client.produce("t", 0, keyed("a0 a1 a2"))
        await ShareMember(client).fetch(max_records=1, share_acquire_mode=1)
        for wrong in ((0, 3), (2, 1), (-1, 0)):
            assert await settle(client, (1, 1), wrong) == (ErrorCode.INVALID_REQUEST, [])
        assert await settle(client, (1, 1), start_offset=0) == (ErrorCode.INVALID_REQUEST, [])
        assert await settle(client, (1, 1), group="none") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        assert (await described(client)).lag == 3

    on(MemoryDisk(), steps)


def test_only_so_many_ranges_are_settled_ahead_of_their_delivery(monkeypatch):
    monkeypatch.setattr("headwater.log.shares.administration.RANGES_AHEAD_MAX", 3)
    assert settlement.RANGES_AHEAD_MAX > 3

    async def steps(client):
        await client.produce("t", 0, [b""] * 40)
        await ShareMember(client).fetch(max_records=1, share_acquire_mode=1)
        assert await settle(client, (4, 4), (6, 6), (8, 8)) == (3, [])
        assert await settle(client, (10, 10)) == (ErrorCode.INVALID_REQUEST, [])
        assert await settle(client, (5, 5), (9, 30)) == (23, [])

    on(MemoryDisk(), steps)


def test_a_transaction_keeps_what_it_holds(tmp_path):
    async def steps():
        broker = Broker(tmp_path)
        broker.catalog.create("t", 1)
        client = Client(broker)
        await configure(client, "g", auto_offset_reset="earliest")
        await client.produce("t", 0, keyed("a0 a1"))
        member = ShareMember(client)
        await member.fetch()
        begun = await client.call("InitProducerId", 3, transactional_id="p", transaction_timeout_ms=60_000)
        named = {
            "transactional_id": "p",
            "producer_id": begun.producer_id,
            "producer_epoch": begun.producer_epoch,
        }
        await client.call("AddOffsetsToTxn", 3, group_id="g", **named)
        assert await member.acknowledge((0, 0, ACCEPT), **named) == 0
        assert await settle(client, (0, 1), settles_held=True) == (1, [(0, 0)])
        assert states(await described(client)) == [(0, 0, "pledged", 1), (1, 1, "settled", 0)]
        await broker.close()

    asyncio.run(steps())
