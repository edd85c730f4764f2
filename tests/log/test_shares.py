"""The state of share groups on the disk: what is stored, what a start reads, and what a bad disk does to it."""

import asyncio
import errno
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from headwater.errors import ErrorCode, UsageError
from headwater.log.broker import Broker
from headwater.log.shares import reading
from headwater.log.shares.share_record import ShareKey
from headwater.log.shares.share_store import SHARES_TOPIC, ShareStore
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.producers import Marker
from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_partition import SharePartition
from headwater.queue.share_session import ShareSessions
from headwater.record import TRANSACTIONAL, Record, encode_batch
from support.protocol import Client
from support.sharemember import ACCEPT, RELEASE, ShareMember, acquired, configure

FOLDER = Path("/memory")


async def live(disk: MemoryDisk, steps) -> None:
    """Runs a broker with topic ``t``."""
    broker = Broker(FOLDER, disk=disk)
    if "t" not in broker.catalog.topics:
        broker.catalog.create("t", 1)
    await steps(Client(broker))
    await broker.committed()
    await broker.close()


def on(disk: MemoryDisk, *lives) -> None:
    """Runs a broker once for each of ``lives``; its group ``g`` begins at the first record of ``t``."""

    async def begin(client) -> None:
        await configure(client, "g", auto_offset_reset="earliest")

    for steps in (begin, *lives):
        asyncio.run(live(disk, steps))


def share_of(client: Client, group: str = "g"):
    topic = client.broker.catalog.topics["t"]
    return client.broker.shares.opened(group)[topic.id, 0]


def test_a_batch_of_many_records_takes_no_more_locks_than_a_group_may_hold():
    async def steps(client):
        await client.produce("t", 0, [b""] * 30_000)
        member = ShareMember(client)
        assert acquired((await member.fetch(max_records=1))[0]) == [(0, 1999, 1)]
        assert await member.acknowledge((0, 1999, [ACCEPT, RELEASE] * 1000)) == 0
        assert share_of(client).state.unsettled == 1000

    on(MemoryDisk(), steps)


def test_the_largest_states_that_groups_may_have_are_stored_in_one_go():
    """Of each, locks for 10,000 records with settled ones between them, and offsets of many digits."""

    async def steps(client):
        broker = client.broker
        store = ShareStore(None, lambda: broker.catalog.create("state", 1).partitions[0], broker.clock)
        first = 2**60
        runs = [
            Run(offset, offset, DeliveryState(offset % 2 * 2), 25, 10_000)
            for offset in range(first, first + 20_000)
        ]
        topic_id = broker.catalog.topics["t"].id
        store.store({ShareKey("g", topic_id, n): SharePartition(first, runs) for n in range(2)})
        await broker.committed()
        again = ShareStore(broker.catalog.topics["state"].partitions[0], lambda: None, broker.clock)
        found = {key.partition: len(stored.runs) for key, stored in again.take_recovered().items()}
        assert found == dict.fromkeys(range(2), 20_000)

    on(MemoryDisk(), steps)


def test_a_group_whose_deletion_was_refused_can_be_deleted_later():
    disk = MemoryDisk()

    async def steps(client):
        await client.produce("t", 0, [b"a", b"b"])
        member = ShareMember(client)
        await member.fetch()
        await member.acknowledge((0, 0, ACCEPT))
        await member.ask(share_session_epoch=-1)
        codes = []
        for space in (0, None):
            disk.full_after_bytes = space
            answer = await client.call("DeleteGroups", 2, groups_names=["g"])
            codes.append(answer.results[0].error_code)
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]

    async def again(client):
        assert client.broker.shares.names() == []

    on(disk, steps, again)


# ---- one kind of group for each name -------------------------------------------------------------------


async def join_as_consumer(client: Client, group: str) -> str:
    """The id of the one member of a consumer group that is settled."""
    asked = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    answer = await client.call("JoinGroup", 4, member_id="", **asked)
    answer = await client.call("JoinGroup", 4, member_id=answer.member_id, **asked)
    member = answer.member_id
    assigned = [{"member_id": member, "assignment": b""}]
    names = {"group_id": group, "generation_id": answer.generation_id, "member_id": member}
    assert (await client.call("SyncGroup", 3, **names, assignments=assigned)).error_code == 0
    return member


def test_a_name_that_a_consumer_group_has_left_on_a_full_disk_may_become_a_share_group():
    disk = MemoryDisk()

    async def steps(client):
        member = await join_as_consumer(client, "g")
        disk.full_after_bytes = 0
        await client.call("LeaveGroup", 2, group_id="g", member_id=member)
        assert (await ShareMember(client).ask()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        disk.full_after_bytes = None
        await client.produce("t", 0, [b"a"])
        assert acquired((await ShareMember(client).fetch())[0]) == [(0, 0, 1)]

    async def again(client):
        assert client.broker.groups == {}
        assert client.broker.shares.names() == ["g"]

    on(disk, steps, again)


def test_a_share_group_is_kept_if_the_disk_has_a_consumer_group_of_its_name_too():
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        await ShareMember(client).fetch()
        await join_as_consumer(client, "other")
        snapshot = client.broker.offsets.snapshots["other"]
        client.broker.offsets.store_group(msgspec.structs.replace(snapshot, group="g"))

    async def again(client):
        assert list(client.broker.groups) == ["other"]
        assert acquired((await ShareMember(client).fetch())[0]) == [(0, 0, 2)]

    on(MemoryDisk(), steps, again)


@pytest.mark.parametrize("first", ["commit", "share"])
def test_a_transaction_with_offsets_and_a_share_group_never_have_the_same_name(first):
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        begun = await client.call("InitProducerId", 2, transactional_id="x", transaction_timeout_ms=60_000)
        who = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        await client.call("AddOffsetsToTxn", 1, transactional_id="x", group_id="g", **who)
        if first == "share":
            await ShareMember(client).fetch()
        parts = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
        topics = [{"name": "t", "partitions": parts}]
        answer = await client.call(
            "TxnOffsetCommit", 2, transactional_id="x", group_id="g", **who, topics=topics
        )
        code = answer.topics[0].partitions[0].error_code
        assert code == (ErrorCode.NONE if first == "commit" else ErrorCode.GROUP_ID_NOT_FOUND)
        member = ShareMember(client, "other")
        code = (await member.ask(topics=[])).error_code
        assert code == (ErrorCode.NONE if first == "share" else ErrorCode.GROUP_ID_NOT_FOUND)

    on(MemoryDisk(), steps)


# ---- the topic with the state --------------------------------------------------------------------------


def test_the_topic_of_the_state_is_made_by_the_broker_alone():
    async def steps(client):
        wanted = {"name": SHARES_TOPIC, "num_partitions": 1, "replication_factor": 1}
        answer = await client.call("CreateTopics", 7, topics=[wanted], timeout_ms=1000)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        answer = await client.call(
            "Metadata", 9, topics=[{"name": SHARES_TOPIC}], allow_auto_topic_creation=True
        )
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert SHARES_TOPIC not in client.broker.catalog.topics

    asyncio.run(live(MemoryDisk(), steps))


@pytest.mark.parametrize("config", [{"headwater.durable": "false"}, {"cleanup.policy": "delete"}])
def test_a_topic_of_the_state_that_could_lose_it_is_mended_when_it_is_used(config):
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        await configure(client, "g", auto_offset_reset="earliest")
        await ShareMember(client).fetch()
        parsed = client.broker.catalog.topics[SHARES_TOPIC].parsed
        assert (parsed.headwater_durable, parsed.cleanup_policy) == (True, "compact")

    async def again(client):
        assert client.broker.shares.names() == ["g"]

    disk = MemoryDisk()

    async def prepare(client):
        client.broker.catalog.create(SHARES_TOPIC, 1, config)

    asyncio.run(live(disk, prepare))
    on(disk, steps, again)


def test_nothing_can_make_the_topic_of_the_state_forget():
    async def steps(client):
        await ShareMember(client).fetch()
        change = {"name": "cleanup.policy", "value": "delete", "config_operation": 0}
        resource = {"resource_type": 2, "resource_name": SHARES_TOPIC, "configs": [change]}
        answer = await client.call("IncrementalAlterConfigs", 1, resources=[resource])
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        resource["configs"] = [{"name": "retention.ms", "value": "1"}]
        answer = await client.call("AlterConfigs", 1, resources=[resource])
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        change = {"name": "segment.ms", "value": "60000", "config_operation": 0}
        resource["configs"] = [change]
        answer = await client.call("IncrementalAlterConfigs", 1, resources=[resource])
        assert answer.responses[0].error_code == 0

    on(MemoryDisk(), steps)


# ---- reads and writes that fail or last ----------------------------------------------------------------


class TroubledDisk(MemoryDisk):
    """Reads of topic ``t`` past ``readable`` bytes fail; the next sync of the groups' state takes ``sync_s``."""

    readable: int | None = None
    sync_s = 0.0

    def check(self, op: str, path: Path, size: int = 0) -> None:
        if op == "sync" and SHARES_TOPIC in str(path) and self.sync_s:
            seconds, self.sync_s = self.sync_s, 0.0
            time.sleep(seconds)
        super().check(op, path, size)

    def open(self, path: Path, *, create: bool = False):
        file = super().open(path, create=create)
        if "/t-0" in str(path):
            read = file.read

            def checked(length: int, position: int):
                if self.readable is not None and position + length > self.readable:
                    raise OSError(errno.EIO, "bad sector")
                return read(length, position)

            file.read = checked
        return file


def test_a_bad_read_after_good_ones_keeps_no_records_locked_without_a_holder():
    disk = TroubledDisk()

    async def steps(client):
        for _ in range(6):
            await client.produce("t", 0, [bytes(30_000)] * 2)
        disk.readable = 150_000
        part = (await ShareMember(client).fetch())[0]
        assert part.error_code == 0
        held = [run for run in share_of(client).state.runs if run.state is DeliveryState.ACQUIRED]
        assert [(run.first, run.last, 1) for run in held] == acquired(part) != []
        assert share_of(client).timer is not None

    on(disk, steps)


def test_a_read_that_fails_ends_a_wait_and_leaves_no_error_beside_records():
    disk = TroubledDisk()

    async def steps(client):
        for _ in range(3):
            await client.produce("t", 0, [b"x" * 100_000])
        member, other = ShareMember(client), ShareMember(client, "other")
        await member.fetch()
        await other.fetch()
        waiting = asyncio.ensure_future(other.fetch(max_wait_ms=60_000))
        await asyncio.sleep(0)
        disk.readable = 0
        await member.acknowledge((1, 1, RELEASE))
        async with asyncio.timeout(5):
            part = (await waiting)[0]
        assert (part.error_code, acquired(part)) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        assert share_of(client).state.unsettled == 3

    on(disk, steps)


def test_records_whose_lock_ended_before_they_were_stored_are_not_delivered():
    disk = TroubledDisk()

    async def steps(client):
        await configure(client, "g", record_lock_duration_ms="1000")
        await client.produce("t", 0, [b"x"])
        await ShareMember(client).fetch(topics=[])
        await client.broker.committed()
        disk.sync_s = 1.3
        part = (await ShareMember(client).fetch())[0]
        assert (acquired(part), part.records) == ([], b"")
        assert acquired((await ShareMember(client, "other").fetch())[0]) == [(0, 0, 2)]

    on(disk, steps)


# ---- sessions ------------------------------------------------------------------------------------------


def test_a_member_that_comes_back_on_another_connection_gets_what_it_held_and_what_follows():
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        old, new = Client(client.broker), Client(client.broker)
        member = ShareMember(old)
        await member.fetch()
        waiting = asyncio.ensure_future(member.fetch(max_wait_ms=60_000))
        await asyncio.sleep(0)
        again = ShareMember(new)
        assert acquired((await again.fetch())[0]) == [(0, 0, 2)]
        await client.produce("t", 0, [b"b"])
        async with asyncio.timeout(5):
            assert await waiting == {}
        assert acquired((await again.fetch())[0]) == [(1, 1, 1)]
        client.broker.shares.disconnect(old)
        assert share_of(client).state.unsettled == 2
        client.broker.shares.disconnect(new)
        assert {run.state for run in share_of(client).state.runs} == {DeliveryState.AVAILABLE}

    on(MemoryDisk(), steps)


def test_a_fetch_of_a_session_that_has_ended_locks_nothing():
    async def steps(client):
        member = ShareMember(client)
        await member.fetch()
        waiting = asyncio.ensure_future(member.fetch(max_wait_ms=60_000))
        await asyncio.sleep(0)
        await ShareMember(Client(client.broker)).ask(share_session_epoch=-1)
        await client.produce("t", 0, [b"a"])
        async with asyncio.timeout(5):
            assert await waiting == {}
        assert share_of(client).state.unsettled == 0

    on(MemoryDisk(), steps)


def test_a_member_that_changes_its_connection_gives_back_what_it_holds_when_that_one_ends():
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        member = ShareMember(client)
        await member.fetch(topics=[])
        member.client = Client(client.broker)
        await member.fetch()
        client.broker.shares.disconnect(client)
        assert {run.state for run in share_of(client).state.runs} == {DeliveryState.ACQUIRED}
        client.broker.shares.disconnect(member.client)
        assert {run.state for run in share_of(client).state.runs} == {DeliveryState.AVAILABLE}

    on(MemoryDisk(), steps)


def test_a_session_that_has_been_silent_for_long_makes_room_for_another():
    async def steps(client):
        client.broker.shares.sessions = ShareSessions(2)
        await client.produce("t", 0, [b"a"])
        await ShareMember(client, "silent").fetch()
        lively = ShareMember(client, "lively")
        await lively.fetch(topics=[])
        new = ShareMember(client, "new")
        assert (await new.ask(topics=[])).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        await configure(client, "g", session_timeout_ms="20", heartbeat_interval_ms="10")
        await asyncio.sleep(0.03)
        await lively.fetch(topics=[])
        assert acquired((await new.fetch())[0]) == [(0, 0, 2)]
        await lively.fetch(topics=[])

    on(MemoryDisk(), steps)


# ---- starts --------------------------------------------------------------------------------------------


def test_a_start_on_a_full_disk_keeps_what_the_log_has_and_stores_it_later():
    disk = MemoryDisk()

    async def steps(client):
        for _ in range(3):
            await client.produce("t", 0, [b"a"])
        member = ShareMember(client)
        await member.fetch()
        assert await member.acknowledge((0, 2, ACCEPT)) == 0

    async def again(client):
        assert share_of(client).state.start == 1
        disk.full_after_bytes = None
        client.broker.shares.expire()

    async def last(client):
        """Whose log has other records at the offsets that were lost."""
        await client.produce("t", 0, [b"b"])
        assert acquired((await ShareMember(client).fetch())[0]) == [(1, 1, 1)]

    on(disk, steps)
    for path in disk.paths():
        if "/t-0" in str(path) and path.name.endswith(".log"):
            file = disk.open(path)
            file.truncate(file.size() // 3)
            file.sync()
        elif "/t-0" in str(path):
            disk.remove(path)
    disk.full_after_bytes = 0
    asyncio.run(live(disk, again))
    asyncio.run(live(disk, last))


def test_a_record_that_a_start_settles_stays_settled_if_the_limit_is_raised():
    async def steps(client):
        await configure(client, "g", delivery_count_limit="2")
        await client.produce("t", 0, [b"a"])
        first = ShareMember(client)
        await first.fetch()
        await first.ask(share_session_epoch=-1)
        assert acquired((await ShareMember(client).fetch())[0]) == [(0, 0, 2)]

    async def again(client):
        assert share_of(client).state.start == 1
        await configure(client, "g", delivery_count_limit="5")

    async def last(client):
        assert share_of(client).state.start == 1

    disk = MemoryDisk()
    on(disk, steps)
    asyncio.run(live(disk, again))
    asyncio.run(live(disk, last))


def add_to_state(client: Client, key: object, value: object) -> None:
    """A record of the state; ``bytes`` are no msgpack."""
    pair = [item if isinstance(item, bytes) else msgspec.msgpack.encode(item) for item in (key, value)]
    data = memoryview(bytearray(encode_batch([Record(*pair, (), client.broker.clock.now_ms())])))
    client.broker.catalog.topics[SHARES_TOPIC].partitions[0].append(data, sequenced=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\xff\xff", (1, 1, 0, [])),
        ((1, "g", bytes(16), 0, 0), b"\xc1"),
        ((0, "g", bytes(16), 0), (1, 1, 0, [(0, 5, 9, 1, 1)])),
        ((0, "g", b"short", 0), (1, 1, 0, [])),
        ((2, "g"), (1, {"share.new": "1"})),
    ],
    ids=["key", "value", "state", "topic id", "setting"],
)
def test_a_record_of_the_state_that_cannot_be_read_stops_no_start(key, value, caplog):
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        await ShareMember(client).fetch()
        add_to_state(client, key, value)

    async def again(client):
        assert acquired((await ShareMember(client).fetch())[0]) == [(0, 0, 2)]

    disk = MemoryDisk()
    on(disk, steps)
    asyncio.run(live(disk, again))
    assert [record for record in caplog.records if "share" in record.name]


def test_a_record_of_a_newer_kind_is_refused():
    async def steps(client):
        await ShareMember(client).fetch()
        add_to_state(client, (7, "g"), (1, 1))

    disk = MemoryDisk()
    on(disk, steps)
    with pytest.raises(UsageError, match="a newer Headwater; got a key of kind 7"):
        asyncio.run(live(disk, steps))


# ---- searches ------------------------------------------------------------------------------------------


def test_however_many_members_wait_one_turn_searches_once(monkeypatch):
    """Records of an aborted transaction are for no member; passing over them is a search."""
    monkeypatch.setattr(reading, "SEARCH_BYTES_MAX", 5_000)

    async def steps(client):
        await configure(client, "g", isolation_level="read_committed")
        partition = client.broker.catalog.partition("t", 0)
        members = [ShareMember(client, f"m{n}") for n in range(8)]
        for member in members:
            await member.fetch()
        asked = {"max_wait_ms": 60_000, "max_records": 1}
        waiting = [asyncio.ensure_future(member.fetch(**asked)) for member in members]
        await asyncio.sleep(0)
        for sequence in range(40):
            data = encode_batch(
                [Record(None, bytes(2_000), (), client.broker.clock.now_ms())],
                producer_id=5,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=TRANSACTIONAL,
            )
            partition.append(memoryview(bytearray(data)))
        await client.broker.committed()
        turn, reads, read = 0, [], partition.read

        def counted(*args, **kwargs):
            reads.append(turn)
            return read(*args, **kwargs)

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            asyncio.get_running_loop().call_soon(next_turn)

        next_turn()
        monkeypatch.setattr(partition, "read", counted)
        partition.append_marker(Marker(5, 0, commit=False), client.broker.clock.now_ms())
        await client.produce("t", 0, [b"x"])
        async with asyncio.timeout(5):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(reads) > 10
        assert max(Counter(reads).values()) <= 4
        for task in waiting:
            task.cancel()

    on(MemoryDisk(), steps)


# ---- releases with a delay ------------------------------------------------------------------------------


def test_a_delay_outlives_the_broker_and_its_record_is_delivered_neither_early_nor_never():
    disk, until = MemoryDisk(), []

    async def release(client):
        await client.produce("t", 0, [b"a", b"b"])
        member = ShareMember(client)
        await member.fetch()
        assert await member.acknowledge((0, 0, RELEASE, 400, False), (1, 1, ACCEPT)) == 0
        until.append(time.monotonic() + 0.4)

    async def wait(client):
        member = ShareMember(client)
        assert acquired((await member.fetch())[0]) == []
        async with asyncio.timeout(5):
            assert acquired((await member.fetch(max_wait_ms=4_000))[0]) == [(0, 0, 2)]
        assert time.monotonic() >= until[0] - 0.002

    on(disk, release, wait)


def test_delayed_records_hold_no_locks_until_there_are_too_many_of_them():
    async def steps(client):
        changes = [("share.partition.max.record.locks", "100"), ("headwater.delayed.max", "150")]
        configs = [{"name": name, "value": value, "config_operation": 0} for name, value in changes]
        resource = {"resource_type": 32, "resource_name": "g", "configs": configs}
        await client.call("IncrementalAlterConfigs", 1, resources=[resource])
        await client.produce("t", 0, [b""] * 400)
        member, counts = ShareMember(client), []
        for _ in range(3):
            part = (await member.fetch()).get(0)
            got = acquired(part) if part is not None else []
            counts.append(sum(last - first + 1 for first, last, _ in got))
            for first, last, _ in got:
                assert await member.acknowledge((first, last, RELEASE, 60_000, False)) == 0
        assert counts == [100, 100, 0]

    on(MemoryDisk(), steps)


@pytest.mark.parametrize(
    "ack", [(0, 0, ACCEPT, 5, False), (0, 0, RELEASE, -1, False), (0, 0, ACCEPT, 0, True)]
)
def test_only_a_release_has_a_delay_and_no_delay_is_negative(ack):
    async def steps(client):
        await client.produce("t", 0, [b"a"])
        member = ShareMember(client)
        await member.fetch()
        assert await member.acknowledge(ack) == ErrorCode.INVALID_REQUEST
        assert await member.acknowledge((0, 0, ACCEPT)) == 0

    on(MemoryDisk(), steps)


# ---- partitions and settings that come later -----------------------------------------------------------


def test_no_record_is_passed_over_whichever_partition_a_group_that_begins_at_the_end_reads_first():
    async def steps(client):
        await client.call("CreateTopics", 5, topics=[topic_of("two", 2)], timeout_ms=0)
        await client.produce("two", 1, [b"before"])
        await configure(client, "late", auto_offset_reset="latest")
        await ShareMember(client, "first", group="late").fetch(topic="two", partitions=[0])
        await client.produce("two", 1, [b"after"])
        second = ShareMember(client, "second", group="late")
        assert acquired((await second.fetch(topic="two", partitions=[1]))[1]) == [(1, 1, 1)]

        more = [{"name": "two", "count": 3, "assignments": None}]
        await client.call("CreatePartitions", 3, topics=more, timeout_ms=0, validate_only=False)
        await client.produce("two", 2, [b"in a partition that no member has heard of"])
        assert acquired((await second.fetch(topic="two", partitions=[2]))[2]) == [(0, 0, 1)]

    on(MemoryDisk(), steps)


def topic_of(name: str, partitions: int) -> dict:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


def test_a_setting_is_answered_when_it_is_durable():
    disk = TroubledDisk()

    async def steps(client):
        disk.sync_s = 0.3
        began = time.monotonic()
        assert await configure(client, "other", delivery_count_limit="3") == 0
        assert time.monotonic() - began >= 0.3

    on(disk, steps)


@pytest.mark.parametrize("act", ["limit", "forget"])
def test_a_member_that_waits_hears_of_a_raised_limit_and_of_a_deleted_group(act):
    async def steps(client):
        await configure(client, "g", partition_max_record_locks="100")
        for _ in range(3):
            await client.produce("t", 0, [b""] * 50)
        holder, waiter = ShareMember(client, "holder"), ShareMember(Client(client.broker), "waiter")
        assert acquired((await holder.fetch(max_records=100))[0]) == [(0, 99, 1)]
        waiting = asyncio.ensure_future(waiter.fetch(max_wait_ms=60_000))
        await asyncio.sleep(0)
        if act == "limit":
            await configure(client, "g", partition_max_record_locks="200")
        else:
            client.broker.shares.forget("g")
        async with asyncio.timeout(5):
            part = (await waiting)[0]
        if act == "limit":
            assert acquired(part) == [(100, 149, 1)]
        else:
            assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on(MemoryDisk(), steps)


# ---- administration ------------------------------------------------------------------------------------


def test_the_offsets_of_a_group_can_be_set_before_it_is_used():
    """As in Apache Kafka from 4.2 on."""

    async def steps(client):
        await client.produce("t", 0, [b"a", b"b"])
        places = [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 1}]}]
        answer = await client.call("AlterShareGroupOffsets", 0, group_id="new", topics=places)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
        assert acquired((await ShareMember(client, group="new").fetch())[0]) == [(1, 1, 1)]

    on(MemoryDisk(), steps)
