"""Share groups whose records are opened: order by key, priorities, and records that are scheduled for later."""

import asyncio
import time

from headwater.errors import ErrorCode
from headwater.log.shares import opened_records
from headwater.log.storage.memory import MemoryDisk
from headwater.queue import record_index
from headwater.queue_headers import DUE_HEADER, PRIORITY_HEADER
from headwater.record import Record, open_batch, whole_batches
from log.test_shares import on
from support.protocol import Client
from support.sharemember import ACCEPT, REJECT, RELEASE, ShareMember, acquired, configure, values

BY_KEY = {"headwater.order.by": "key"}
OPENED = {"headwater.queue": "true"}


def keyed(text: str) -> list[Record]:
    """Records such as ``a1``, whose keys are their letters."""
    return [Record(word[:1].encode(), word.encode(), (), 1_000) for word in text.split()]


def urgent(priority: int, text: str) -> list[Record]:
    headers = ((PRIORITY_HEADER, str(priority).encode()),)
    return [Record(None, word.encode(), headers, 1_000) for word in text.split()]


async def take(member: ShareMember, records_max: int = 500, **fields) -> list[str]:
    part = (await member.fetch(max_records=records_max, **fields)).get(0)
    return [value.decode() for value in values(part)] if part is not None else []


def offsets(part) -> list[int]:
    return [offset for first, last, _ in acquired(part) for offset in range(first, last + 1)]


def test_one_record_of_a_key_is_with_a_member_at_a_time_and_the_next_one_follows_when_it_is_settled():
    async def steps(client):
        await configure(client, "g", **BY_KEY)
        await client.produce("t", 0, keyed("a0 a1 b2 a3 c4 b5"))
        ada, bo = ShareMember(client, "ada"), ShareMember(Client(client.broker), "bo")
        assert await take(ada) == ["a0", "b2", "c4"]
        assert await take(bo) == []
        await ada.acknowledge((0, 0, ACCEPT), (4, 4, REJECT))
        assert await take(bo) == ["a1"]
        await ada.acknowledge((2, 2, ACCEPT))
        await bo.acknowledge((1, 1, ACCEPT))
        assert await take(ada) == ["a3", "b5"]

    on(MemoryDisk(), steps)


def test_a_record_that_fails_blocks_its_key_until_it_is_retried_and_no_other_key():
    async def steps(client):
        await configure(client, "g", **BY_KEY)
        await client.produce("t", 0, keyed("a0 b1 a2 b3"))
        member = ShareMember(client)
        assert await take(member) == ["a0", "b1"]
        await member.acknowledge((0, 0, RELEASE, 300, False), (1, 1, ACCEPT))
        assert await take(member) == ["b3"]
        async with asyncio.timeout(5):
            assert await take(member, max_wait_ms=4_000) == ["a0"]
        await member.acknowledge((0, 0, ACCEPT))
        assert await take(member) == ["a2"]

    on(MemoryDisk(), steps)


def test_a_restart_keeps_the_order_and_what_is_blocked():
    disk = MemoryDisk()

    async def fail(client):
        await configure(client, "g", **BY_KEY)
        await client.produce("t", 0, keyed("a0 b1 a2 b3"))
        member = ShareMember(client)
        await take(member)
        await member.acknowledge((0, 0, RELEASE, 60_000, False), (1, 1, ACCEPT))

    async def again(client):
        assert await take(ShareMember(client)) == ["b3"]

    on(disk, fail, again)


def test_records_without_a_key_wait_for_nothing():
    async def steps(client):
        await configure(client, "g", **BY_KEY)
        await client.produce("t", 0, [Record(None, name, (), 1_000) for name in (b"x", b"y")])
        assert await take(ShareMember(client)) == ["x", "y"]

    on(MemoryDisk(), steps)


def test_higher_priorities_go_first_and_none_waits_for_ever():
    async def steps(client):
        await configure(client, "g", **OPENED)
        await client.produce("t", 0, urgent(0, "low"))
        await client.produce("t", 0, keyed("usual"))
        await client.produce("t", 0, urgent(9, " ".join(f"high{n}" for n in range(30))))
        member, order = ShareMember(client), []
        for _ in range(32):
            order += await take(member, 1)
        assert order[0] == "high0"
        assert order.index("low") == record_index.OLDEST_EVERY - 1
        assert order.index("usual") == 2 * record_index.OLDEST_EVERY - 1

    on(MemoryDisk(), steps)


def test_a_scheduled_record_goes_out_when_it_is_due_and_holds_up_nothing():
    disk, due = MemoryDisk(), []

    async def schedule(client):
        await configure(client, "g", partition_max_record_locks="100", **BY_KEY)
        due.append(time.time() + 0.5)
        headers = ((DUE_HEADER, str(round(due[0] * 1000)).encode()),)
        later = [Record(b"a", b"later%d" % number, headers, 1_000) for number in range(150)]
        await client.produce("t", 0, later)
        await client.produce("t", 0, keyed("a1"))
        member = ShareMember(client)
        assert await take(member) == ["a1"]

    async def wait(client):
        member = ShareMember(client)
        assert await take(member) == ["a1"]
        await member.acknowledge((150, 150, ACCEPT))
        async with asyncio.timeout(5):
            assert await take(member, max_wait_ms=4_000) == ["later0"]
        assert time.time() >= due[0]
        await member.acknowledge((0, 0, ACCEPT))
        assert await take(member) == ["later1"]

    on(disk, schedule, wait)


def test_members_get_the_records_that_they_have_locked_and_no_others():
    """Whole records with their headers, also from compressed batches, and from those that were opened long ago."""

    async def steps(client):
        await configure(client, "g", **BY_KEY)
        records = [
            Record(b"%d" % (n % 3), b"v%d" % n, (("h", b"%d" % n), ("n", None)), 1_000) for n in range(9)
        ]
        await client.produce("t", 0, records[:5], codec=3)
        await client.produce("t", 0, records[5:])
        member, seen = ShareMember(client), []
        for _ in range(3):
            part = (await member.fetch())[0]
            got = [record for batch in whole_batches(part.records) for record in open_batch(batch)]
            assert [record.offset for record in got] == offsets(part)
            seen += got
            await member.acknowledge(*[(record.offset, record.offset, ACCEPT) for record in got])
        assert [(r.key, r.value, r.headers) for r in seen] == [(r.key, r.value, r.headers) for r in records]

    on(MemoryDisk(), steps)


def test_what_is_kept_of_opened_records_is_bounded(monkeypatch):
    monkeypatch.setattr(opened_records, "OPEN_BYTES_MAX", 10_000)

    async def steps(client):
        await configure(client, "g", **BY_KEY)
        for first in range(0, 100, 10):
            records = [Record(b"%d" % n, bytes(300), (), 1_000) for n in range(first, first + 10)]
            await client.produce("t", 0, records)
        member, count = ShareMember(client), 0
        while count < 100:
            part = (await member.fetch(max_records=7))[0]
            count += len(offsets(part))
            (share,) = client.broker.shares.opened("g").values()
            assert len(share.reader.opened) <= 20
        assert max(offsets(part)) == 99

    on(MemoryDisk(), steps)


def test_another_group_of_the_topic_gets_every_record_as_usual():
    async def steps(client):
        await configure(client, "g", **BY_KEY)
        await configure(client, "plain", auto_offset_reset="earliest")
        await client.produce("t", 0, keyed("a0 a1 a2"))
        assert await take(ShareMember(client)) == ["a0"]
        assert await take(ShareMember(Client(client.broker), "p", group="plain")) == ["a0", "a1", "a2"]

    on(MemoryDisk(), steps)


def aged(days: float) -> list[Record]:
    return [Record(b"k", b"v", (), round((time.time() - days * 86_400) * 1000))]


async def apply_retention(client: Client) -> int:
    """Returns the first offset that is left."""
    partition = client.broker.catalog.topics["t"].partitions[0]
    partition.roll()
    await client.broker.committed()
    await client.broker.retention.look_after(partition)
    return partition.log_start_offset


def test_retention_and_deletion_leave_what_a_queue_has_not_settled():
    async def steps(client):
        topic = client.broker.catalog.topics["t"]
        client.broker.catalog.configure(topic, {"retention.ms": "3600000"})
        await configure(client, "g", **OPENED)
        member = ShareMember(client)
        for _ in range(3):
            await client.produce("t", 0, aged(days=2))
            topic.partitions[0].roll()
        await take(member)
        assert await apply_retention(client) == 0
        part = {"partition_index": 0, "offset": 2}
        answer = await client.call("DeleteRecords", 2, topics=[{"name": "t", "partitions": [part]}])
        assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION
        await member.acknowledge((0, 1, ACCEPT))
        assert await apply_retention(client) == 2
        await member.acknowledge((2, 2, ACCEPT))
        assert await apply_retention(client) == 3

    on(MemoryDisk(), steps)


def test_what_is_older_than_a_queue_keeps_it_is_deleted_counted_and_named(caplog):
    async def steps(client):
        topic = client.broker.catalog.topics["t"]
        client.broker.catalog.configure(topic, {"retention.ms": "3600000"})
        await configure(client, "g", **OPENED, **{"headwater.keep.ms": str(86_400_000)})
        member = ShareMember(client)
        for days in (2, 2, 0.5):
            await client.produce("t", 0, aged(days))
            topic.partitions[0].roll()
        await take(member, 1)
        assert await apply_retention(client) == 2
        asked = [{"group_id": "g", "topics": None}]
        answer = await client.call("DescribeShareGroupOffsets", 1, groups=asked)
        described = answer.groups[0].topics[0].partitions[0]
        assert (described.start_offset, described.lag, described.expired) == (2, 1, 2)
        assert "2 records at offsets 0 to 1 were deleted before share group g had settled them" in caplog.text

    on(MemoryDisk(), steps)


def test_how_many_records_are_held_delayed_and_left_is_described():
    async def steps(client):
        await configure(client, "g", **BY_KEY)
        await client.produce("t", 0, keyed("a0 b1 c2 a3 a4"))
        member = ShareMember(client)
        await take(member)
        await member.acknowledge((0, 0, RELEASE, 60_000, False), (1, 1, ACCEPT))
        answer = await client.call("DescribeShareGroupOffsets", 1, groups=[{"group_id": "g", "topics": None}])
        described = answer.groups[0].topics[0].partitions[0]
        assert (described.lag, described.in_flight, described.delayed) == (4, 1, 1)

    on(MemoryDisk(), steps)


def test_a_compacted_topic_is_no_queue():
    async def steps(client):
        topic = client.broker.catalog.topics["t"]
        client.broker.catalog.configure(topic, {"cleanup.policy": "compact"})
        await configure(client, "g", **OPENED)
        part = (await ShareMember(client).fetch())[0]
        assert part.error_code == ErrorCode.POLICY_VIOLATION
        assert "is compacted" in part.error_message

    on(MemoryDisk(), steps)


def test_the_settings_of_a_group_may_change_while_it_is_used():
    async def steps(client):
        await client.produce("t", 0, keyed("a0 a1 a2 b3"))
        member = ShareMember(client)
        assert offsets((await member.fetch(max_records=1, share_acquire_mode=1))[0]) == [0]
        await configure(client, "g", **BY_KEY)
        assert await take(member) == ["b3"]
        await configure(client, "g", **{"headwater.order.by": ""})
        assert len(offsets((await member.fetch())[0])) == 2

    on(MemoryDisk(), steps)
