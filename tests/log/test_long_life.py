"""What only time brings out: rolls, compactions, retentions, restarts, names used again, and faults in unusual places."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from headwater.errors import ErrorCode, RequestError, StorageError
from headwater.log.broker import Broker
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.partition import Partition, read_all
from headwater.log.storage.producers import Marker
from headwater.log.storage.retention import Retention
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import TRANSACTIONAL, Record, encode_batch
from headwater.testing import MemoryDisk, SettableClock
from support.partitions import sync
from support.protocol import Client

FOLDER = Path("/memory")
DAY_S = 86_400
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0.01"}


def lives(life: Callable[..., Coroutine], *arguments: object) -> object:
    return asyncio.run(life(*arguments))


async def compact(broker: Broker) -> None:
    """A round of the caretaker over segments that are closed and synced."""
    for topic in broker.catalog.topics.values():
        for partition in topic.partitions.used():
            partition.roll()
    await broker.committed()
    await broker.retention.look_after_all()


def batch(key: bytes | None, value: bytes | None, clock: SettableClock, **producer: int) -> memoryview:
    return memoryview(bytearray(encode_batch([Record(key, value, (), clock.now_ms())], **producer)))


async def transaction(client: Client, clock: SettableClock, who: dict, rows: dict, *, commit: bool) -> None:
    """One transaction of the producer ``who`` on partition 0 of the topic t."""
    await client.call(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=who["name"],
        v3_and_below_producer_id=who["producer_id"],
        v3_and_below_producer_epoch=who["producer_epoch"],
        v3_and_below_topics=[{"name": "t", "partitions": [0]}],
    )
    identity = {name: who[name] for name in ("producer_id", "producer_epoch")}
    for key, value in rows.items():
        data = batch(key, value, clock, base_sequence=who["sequence"], attributes=TRANSACTIONAL, **identity)
        who["sequence"] += 1
        topics = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(data)}]}]
        answer = await client.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    ended = await client.call("EndTxn", 3, transactional_id=who["name"], committed=commit, **identity)
    assert ended.error_code == ErrorCode.NONE


async def begun(client: Client, name: str) -> dict:
    answer = await client.call("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=60_000)
    return {
        "name": name,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
        "sequence": 0,
    }


@pytest.mark.parametrize("restart", [None, "clean", "power cut"])
def test_committed_records_stay_visible_after_the_marker_of_an_aborted_transaction_was_compacted(restart):
    async def life(disk: MemoryDisk, clock: SettableClock) -> set[bytes]:
        broker = Broker(FOLDER, disk=disk, clock=clock)
        client = Client(broker)
        broker.catalog.create("t", 1, {**COMPACTED, "segment.bytes": "4000"})
        who = await begun(client, "x")
        await transaction(client, clock, who, {b"k": b"aborted"}, commit=False)
        for number in range(30):
            await transaction(client, clock, who, {b"key %d" % number: b"v"}, commit=True)
        for _ in range(3):
            await compact(broker)
            clock.advance(2 * DAY_S)
            await transaction(client, clock, who, {b"later": b"v"}, commit=True)
        if restart == "clean":
            await broker.close()
            broker = Broker(FOLDER, disk=disk, clock=clock)
        elif restart == "power cut":
            await broker.retention.close()
            broker = Broker(FOLDER, disk=disk.power_cut(), clock=clock)
        found, _ = await Client(broker).read("t", 0)
        return {record.key for record in found}

    found = lives(life, MemoryDisk(), SettableClock())
    assert found == {*(b"key %d" % number for number in range(30)), b"later"}


def compacted(disk: MemoryDisk, clock: SettableClock) -> Partition:
    """A partition whose closed segments lost records at their ends."""
    config = TopicConfig(cleanup_policy="compact", segment_bytes=200, min_cleanable_dirty_ratio=0.0)
    partition = Partition(disk, FOLDER / "topics" / "t-0", config, sync_on_commit=False)
    for key in (b"a", b"b", b"same"):
        partition.append(batch(key, b"x" * 10, clock))
    for i in range(20):
        partition.append(batch(b"k%d" % i if i % 2 else b"same", b"y" * 10, clock))
    partition.roll()
    sync(partition)

    async def round_() -> None:
        catalog = Catalog(MemoryDisk(), Path("/none"), sync_on_commit=False, on_dirty=lambda _: None)
        retention = Retention(catalog, clock)
        await retention.look_after(partition)
        await retention.close()

    asyncio.run(round_())
    sync(partition)
    disk.sync_folder(partition.folder)
    return partition


def content(partition: Partition) -> dict[bytes, tuple[int, bytes]]:
    return {r.key: (r.offset, r.value) for _, records in read_all(partition) for r in records}


@pytest.mark.parametrize("lost", ["each", "all"])
def test_a_lost_index_of_a_compacted_segment_costs_no_record(lost):
    disk = MemoryDisk()
    partition = compacted(disk, SettableClock())
    before, end = content(partition), partition.end_offset
    indexes = [name for name in disk.names(partition.folder) if name.endswith(".index")]
    for gone in [indexes] if lost == "all" else [[name] for name in indexes]:
        after = disk.power_cut()
        for name in gone:
            after.remove(partition.folder / name)
        again = Partition(after, partition.folder, partition.config, sync_on_commit=False)

        assert (content(again), again.end_offset) == (before, end)


def test_a_topic_that_is_made_again_begins_without_the_offsets_of_the_one_before():
    async def life(disk: MemoryDisk) -> None:
        broker = Broker(FOLDER, disk=disk)
        client = Client(broker)
        broker.catalog.create("t", 1)
        part = {"partition_index": 0, "committed_offset": 100, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [part]}]
        who = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
        await client.call("OffsetCommit", 7, topics=topics, **who)
        deleted = await client.call("DeleteTopics", 5, topic_names=["t"], timeout_ms=1000)
        assert deleted.responses[0].error_code == ErrorCode.NONE
        broker.catalog.create("t", 1)
        assert ("t", 0) not in broker.offsets.of("g")
        await broker.retention.close()
        again = Broker(FOLDER, disk=disk.power_cut())
        assert "t" in again.catalog.topics
        assert ("t", 0) not in again.offsets.of("g")
        await again.close()

    lives(life, MemoryDisk())


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_a_topic_that_is_made_again_never_has_records_of_the_one_before(seed):
    async def life(disk: MemoryDisk) -> None:
        broker = Broker(FOLDER, disk=disk)
        broker.catalog.create("t", 1)
        await Client(broker).produce("t", 0, [b"old"] * 5)
        await Client(broker).call("DeleteTopics", 5, topic_names=["t"], timeout_ms=1000)
        broker.catalog.create("t", 1)
        await broker.retention.close()
        again = Broker(FOLDER, disk=disk.power_cut(seed))
        assert again.catalog.topics["t"].partitions[0].end_offset == 0
        await again.close()

    lives(life, MemoryDisk())


def test_a_segment_is_closed_when_its_first_record_is_old_however_new_the_last_one_is():
    async def life(clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=MemoryDisk(), clock=clock)
        config = {"segment.ms": "600000", "retention.ms": "3600000"}
        partition = broker.catalog.create("t", 1, config).partitions[0]
        for minute in range(3 * 24 * 60):
            partition.append(batch(None, b"%d" % minute, clock), now_ms=clock.now_ms())
            clock.advance(60)
            if minute % 15 == 0:
                await broker.committed()
                await broker.retention.look_after(partition)
        assert partition.end_offset - 85 <= partition.log_start_offset <= partition.end_offset - 55
        await broker.close()

    lives(life, SettableClock())


def test_a_segment_of_before_a_restart_is_closed_in_time():
    async def life(disk: MemoryDisk, clock: SettableClock) -> None:
        for _ in range(4):
            broker = Broker(FOLDER, disk=disk, clock=clock)
            topic = broker.catalog.topics.get("t") or broker.catalog.create(
                "t", 1, {"segment.ms": "86400000"}
            )
            partition = topic.partitions[0]
            partition.append(batch(None, b"", clock), now_ms=clock.now_ms())
            await broker.committed()
            await broker.retention.look_after(partition)
            clock.advance(DAY_S * 0.4)
            await broker.close()
        assert len(partition.segments.closed) == 1

    lives(life, MemoryDisk(), SettableClock())


class _FailingReads(MemoryDisk):
    """Fails reads of a name for as long as it is asked to."""

    broken: Path | None = None

    def check(self, operation: str, path: Path, size: int = 0) -> None:
        if operation == "read" and self.broken is not None and path == self.broken:
            raise OSError(errno.EIO, "bad sector")
        super().check(operation, path, size)


def test_a_read_that_fails_under_a_waiting_fetch_is_the_answer_of_that_fetch_alone():
    async def life(disk: _FailingReads) -> None:
        broker = Broker(FOLDER, disk=disk)
        client = Client(broker)
        partition = broker.catalog.create("t", 1, {"segment.bytes": "200"}).partitions[0]
        broker.catalog.create("other", 1)
        for number in range(30):
            await client.produce("t", 0, [b"%d" % number])
        waiting = asyncio.ensure_future(
            client.fetch("t", 0, 0, max_wait_ms=20_000, min_bytes=1 << 20, max_bytes=1 << 21)
        )
        await asyncio.sleep(0)
        disk.broken = partition.folder / f"{0:020}.log"
        async with asyncio.timeout(5):
            assert (await client.produce("t", 0, [b"x"])).error_code == ErrorCode.NONE
            assert (await waiting).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await client.produce("other", 0, [b"x"])).error_code == ErrorCode.NONE
        disk.broken = None
        assert len((await client.read("t", 0))[0]) == 31
        await broker.close()

    lives(life, _FailingReads())


def test_compaction_leaves_a_segment_alone_until_it_is_synced():
    async def life(disk: MemoryDisk, clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=disk, clock=clock)
        config = {"cleanup.policy": "compact", "segment.ms": "600000"}
        partition = broker.catalog.create("t", 1, config).partitions[0]
        for i in range(200):
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": i}
            partition.append(batch(b"k%d" % (i % 50), b"v", clock, **producer), now_ms=clock.now_ms())
        await broker.committed()
        clock.advance(700)
        slow = asyncio.Event()
        run_in_executor = broker._loop.run_in_executor

        async def late(executor: object, function: Callable, *arguments: object) -> object:
            if executor is broker._committer._thread:
                await slow.wait()
            return await run_in_executor(executor, function, *arguments)

        broker._loop.run_in_executor = lambda *arguments: asyncio.ensure_future(late(*arguments))
        await broker.retention.look_after(partition)
        slow.set()
        await broker.committed()
        await broker.retention.close()
        partition.segments._cache.drop(0)
        assert all(partition.read(offset, 1 << 20) for offset in range(200))

        again = Partition(disk.power_cut(), partition.folder, partition.config, sync_on_commit=True)
        assert len(content(again)) == 50
        assert again.producers.by_id[7].last_sequence == 199
        assert again.read(199, 1 << 20)

    lives(life, MemoryDisk(), SettableClock())


def test_a_batch_that_cannot_be_opened_stops_no_retention_and_stays():
    async def life(clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=MemoryDisk(), clock=clock)
        odd = broker.catalog.create("a", 1, {"segment.bytes": "200"})
        named = Record(b"k", b"v", ((b"\xff".decode(errors="surrogateescape"), b""),), clock.now_ms())
        data = bytearray(encode_batch([named]))
        odd.partitions[0].append(memoryview(data))
        unreadable = bytearray(encode_batch([Record(b"k", b"v", (), clock.now_ms())], attributes=4))
        odd.partitions[0].append(memoryview(unreadable))
        for number in range(10):
            odd.partitions[0].append(batch(b"k", b"%d" % number, clock))
        broker.catalog.configure(odd, COMPACTED)
        later = broker.catalog.create("b", 1, COMPACTED).partitions[0]
        for number in range(50):
            later.append(batch(b"k", b"%d" % number, clock))
        await compact(broker)
        assert len(content(later)) == 1
        assert odd.partitions[0].read(1, 1 << 20)[:8] == (1).to_bytes(8, "big")
        await broker.close()

    lives(life, SettableClock())


def test_a_time_is_looked_up_from_the_log_start_on():
    async def life(clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=MemoryDisk(), clock=clock)
        partition = broker.catalog.create("t", 1, {"segment.bytes": "1000"}).partitions[0]
        first = clock.now_ms()
        for number in range(20):
            partition.append(batch(None, b"%d" % number, clock))
            clock.advance(1)
        await broker.committed()
        partition.delete_records(8)
        assert partition.find_time(first + 2_000).offset == 8
        assert partition.find_time(first + 12_000).offset == 12
        assert partition.find_time(first + 30_000) is None
        await broker.close()

    lives(life, SettableClock())


def test_clients_cannot_write_to_the_topics_of_the_broker():
    async def life() -> None:
        broker = Broker(FOLDER, disk=MemoryDisk())
        for topic in ("__consumer_offsets", "__transaction_state"):
            answer = await Client(broker).produce(topic, 0, [b"\x00"])
            assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        broker.catalog.create("__mine", 1)
        assert (await Client(broker).produce("__mine", 0, [b"\x00"])).error_code == ErrorCode.NONE
        await broker.close()

    lives(life)


def test_a_record_of_the_broker_that_cannot_be_read_is_passed_over():
    async def life(disk: MemoryDisk, clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=disk, clock=clock)
        for topic in ("__consumer_offsets", "__transaction_state"):
            partition = broker.catalog.topics[topic].partitions[0]
            partition.append(batch(b"\x00", b"\xff", clock))
            partition.append(batch(b"\xff\xff\xff", None, clock))
        await broker.close()
        await Broker(FOLDER, disk=disk, clock=clock).close()

    lives(life, MemoryDisk(), SettableClock())


def test_a_compacted_topic_refuses_records_without_a_key_whatever_their_codec():
    async def life() -> None:
        broker = Broker(FOLDER, disk=MemoryDisk())
        client = Client(broker)
        broker.catalog.create("t", 1, COMPACTED)
        for codec in range(5):
            keyed = await client.produce("t", 0, [b"\x00\x00\x00\x01", b"plain"], codec=codec)
            assert keyed.error_code == ErrorCode.NONE
            records = [Record(b"k", b"v", (), 1_000), Record(None, b"v", (), 1_000)]
            data = encode_batch(records)
            topics = [{"name": "t", "partition_data": [{"index": 0, "records": data}]}]
            answer = await client.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        await broker.close()

    lives(life)


@pytest.mark.parametrize("missing", ["topics.json", "meta.json"])
def test_a_folder_without_its_catalog_is_refused_and_left_as_it_is(missing):
    async def life(disk: MemoryDisk) -> None:
        broker = Broker(FOLDER, disk=disk)
        broker.catalog.create("t", 1)
        await Client(broker).produce("t", 0, [b"x"])
        await broker.close()
        taken = disk.read(FOLDER / missing)
        disk.remove(FOLDER / missing)
        with pytest.raises(StorageError, match=missing):
            Broker(FOLDER, disk=disk)
        disk.replace(FOLDER / missing, taken)
        again = Broker(FOLDER, disk=disk)
        assert len((await Client(again).read("t", 0))[0]) == 1
        await again.close()

    lives(life, MemoryDisk())


def test_a_folder_that_belongs_to_no_topic_is_left_alone():
    async def life(disk: MemoryDisk) -> None:
        broker = Broker(FOLDER, disk=disk)
        broker.catalog.create("t", 1)
        await Client(broker).produce("t", 0, [b"x"])
        older = disk.read(FOLDER / "topics.json")
        broker.catalog.create("new", 1)
        await Client(broker).produce("new", 0, [b"x"])
        folder = broker.catalog.topics["new"].partitions[0].folder
        await broker.close()
        disk.replace(FOLDER / "topics.json", older)
        again = Broker(FOLDER, disk=disk)
        assert disk.names(folder)
        await again.close()

    lives(life, MemoryDisk())


def test_offsets_groups_and_transactional_ids_that_are_not_used_are_forgotten_after_a_week():
    async def life(disk: MemoryDisk, clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=disk, clock=clock)
        client = Client(broker)
        broker.catalog.create("t", 1)
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [part]}]

        async def commit(group: str) -> None:
            who = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
            await client.call("OffsetCommit", 7, topics=topics, **who)

        for number in range(20):
            await commit(f"g{number}")
            await begun(client, f"x{number}")
        for _ in range(8):
            await commit("used")
            await begun(client, "used")
            clock.advance(DAY_S)
            await broker.retention.look_after_all()
        await broker.committed()

        def check(looked_at: Broker) -> None:
            assert looked_at.offsets.groups() == ["used"]
            assert list(looked_at.transactions.by_id) == ["used"]
            assert set(looked_at.groups) <= {"used"}

        check(broker)
        await broker.close()
        again = Broker(FOLDER, disk=disk, clock=clock)
        check(again)
        await again.close()

    lives(life, MemoryDisk(), SettableClock())


def test_an_error_is_in_every_answer_of_a_fetch_session_for_as_long_as_it_lasts():
    async def life() -> None:
        broker = Broker(FOLDER, disk=MemoryDisk())
        client = Client(broker)
        broker.catalog.create("t", 1)
        await client.produce("t", 0, [b"x"])
        part = {"partition": 0, "fetch_offset": 99, "partition_max_bytes": 1000}
        fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000}
        session = {"session_id": 0, "session_epoch": 0}
        topics = [{"topic": "t", "partitions": [part]}]
        for epoch in range(1, 4):
            answer = await client.call("Fetch", 11, topics=topics, **fields, **session)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            session, topics = {"session_id": answer.session_id, "session_epoch": epoch}, []
        await broker.close()

    lives(life)


def test_records_written_after_a_deletion_whose_records_a_power_cut_has_cost_can_be_read():
    async def life(disk: MemoryDisk) -> None:
        broker = Broker(FOLDER, disk=disk, flush="os")
        broker.catalog.create("t", 1)
        await Client(broker).produce("t", 0, [b"old"])
        await broker.retention.close()
        sync(broker.catalog.topics["t"].partitions[0])
        await Client(broker).produce("t", 0, [b"old"] * 9)
        broker.catalog.topics["t"].partitions[0].delete_records(10)
        again = Broker(FOLDER, disk=disk.power_cut(), flush="os")
        assert (await Client(again).produce("t", 0, [b"new"])).base_offset == 10
        assert [r.value for r in (await Client(again).read("t", 0, 10))[0]] == [b"new"]
        await again.close()

    lives(life, MemoryDisk())


def test_a_partition_that_cannot_be_read_at_the_start_is_offline_alone():
    async def life(disk: _FailingReads) -> None:
        broker = Broker(FOLDER, disk=disk)
        for name in ("t", "other"):
            broker.catalog.create(name, 1)
            await Client(broker).produce(name, 0, [b"x"])
        await broker.retention.close()
        disk._locked.clear()
        disk.broken = broker.catalog.topics["t"].partitions[0].folder / f"{0:020}.log"
        again = Broker(FOLDER, disk=disk)
        assert len((await Client(again).read("other", 0))[0]) == 1
        with pytest.raises(RequestError, match="t-0"):
            await Client(again).read("t", 0)
        await again.retention.close()
        disk.broken = None
        disk._locked.clear()
        healed = Broker(FOLDER, disk=disk)
        assert len((await Client(healed).read("t", 0))[0]) == 1
        await healed.close()

    lives(life, _FailingReads())


def test_an_empty_batch_that_compaction_keeps_for_its_producer_opens_no_transaction():
    disk, clock = MemoryDisk(), SettableClock()
    config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    partition = Partition(disk, FOLDER / "topics" / "t-0", config, sync_on_commit=False)
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
    partition.append(batch(b"k", b"aborted", clock, **producer))
    partition.append_marker(Marker(1, 0, commit=False), clock.now_ms())

    async def rounds() -> None:
        catalog = Catalog(MemoryDisk(), Path("/none"), sync_on_commit=False, on_dirty=lambda _: None)
        retention = Retention(catalog, clock)
        for number in range(3):
            partition.append(batch(b"other", b"%d" % number, clock))
            partition.roll()
            sync(partition)
            await retention.look_after(partition)
            clock.advance(2 * DAY_S)
        await retention.close()

    asyncio.run(rounds())
    sync(partition)
    after = disk.power_cut()
    for name in after.names(partition.folder):
        if name.endswith(".index"):
            after.remove(partition.folder / name)
    again = Partition(after, partition.folder, config, sync_on_commit=False)
    assert again.last_stable_offset == again.end_offset == 5
