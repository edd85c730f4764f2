"""Share groups whose records are opened: order by key, priorities, and records that are scheduled for later."""

import asyncio
import time

from headwater.log.shares import indexed_reading
from headwater.log.storage.memory import MemoryDisk
from headwater.queue import record_index
from headwater.queue.record_index import DUE_HEADER, PRIORITY_HEADER
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
    monkeypatch.setattr(indexed_reading, "OPEN_BYTES_MAX", 5_000)

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
            assert len(share.reader._open) <= 20
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
