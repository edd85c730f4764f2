"""Faults in unusual places: a full disk in the middle of a compaction, a lost index under a merge, a policy that changes, a start on leftovers."""

import asyncio
import errno
import tarfile
from pathlib import Path

import pytest

from headwater.errors import ErrorCode, ProtocolError, RequestError
from headwater.log.broker import Broker
from headwater.log.groups.group_record import Committed
from headwater.log.storage import compaction
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.producers import Marker
from headwater.record import TRANSACTIONAL, BatchHeader, Record, encode_batch, read_batch
from headwater.testing import SettableClock
from support.protocol import Client

FOLDER = Path("/memory")
DAY_S = 86_400
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "40000", "min.cleanable.dirty.ratio": "0.01"}


def batch(key: bytes | None, value: bytes | None, clock: SettableClock, **producer: int) -> memoryview:
    return memoryview(bytearray(encode_batch([Record(key, value, (), clock.now_ms())], **producer)))


async def commit(client: Client, group: str, offset: int, partition: int = 0) -> int:
    part = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
    who = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = await client.call("OffsetCommit", 7, topics=[{"name": "t", "partitions": [part]}], **who)
    return answer.topics[0].partitions[0].error_code


def test_a_merge_of_segments_whose_last_index_is_lost_keeps_every_record_within_reach():
    async def life(clock: SettableClock) -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk, clock=clock)
        partition = broker.catalog.create("t", 1, COMPACTED).partitions[0]
        for segment in (b"a", b"b"):
            for i in range(80):
                key = segment + b"%d" % (i % 40 if segment == b"a" else i)
                partition.append(batch(key, bytes(150), clock), now_ms=clock.now_ms())
            partition.roll()
            await broker.committed()
        last = partition.segments.closed[-1].base_offset
        await broker.retention.close()
        after = disk.power_cut()
        after.remove(partition.folder / f"{last:020}.index")
        after.full_after_bytes = 0  # the start has no room to write it again
        broker = Broker(FOLDER, disk=after, clock=clock)
        after.full_after_bytes = None
        partition = broker.catalog.topics["t"].partitions[0]
        await broker.retention.look_after(partition)
        assert len(partition.segments.closed) == 1
        for max_bytes in (300, 3000):
            rows, _ = await Client(broker).read("t", 0, max_bytes=max_bytes)
            assert len({row.key for row in rows}) == 120
        await broker.close()

    asyncio.run(life(SettableClock()))


class _Small(MemoryDisk):
    """A disk of so many bytes."""

    capacity: int | None = None

    def used(self) -> int:
        return sum(len(inode.content) for files in self._names.values() for inode in files.values())

    def check(self, operation: str, path: Path, size: int = 0) -> None:
        if operation == "write" and self.capacity is not None and self.used() + size > self.capacity:
            raise OSError(errno.ENOSPC, "full")
        super().check(operation, path, size)


def test_compaction_needs_room_for_one_segment_and_leaves_none_of_its_files():
    async def life(clock: SettableClock, share: float) -> None:
        disk = _Small()
        broker = Broker(FOLDER, disk=disk, clock=clock)
        settings = {**COMPACTED, "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.5"}
        partition = broker.catalog.create("t", 1, settings).partitions[0]
        for i in (*range(1000), *range(300)):
            partition.append(batch(b"k%d" % i, bytes(150), clock), now_ms=clock.now_ms())
        partition.roll()
        await broker.committed()
        disk.capacity = int(disk.used() / share)
        for _ in range(3):
            await broker.retention.look_after_all()
            assert not [name for name in disk.names(partition.folder) if name.endswith(".cleaned")]
            if share < 0.9:
                assert (await Client(broker).produce("t", 0, [bytes(3000)])).error_code == ErrorCode.NONE
        rows, _ = await Client(broker).read("t", 0)
        assert {row.key for row in rows} >= {b"k%d" % i for i in range(1000)}
        await broker.close()

    for share in (0.65, 0.999):
        asyncio.run(life(SettableClock(), share))


def test_compacted_segments_of_format_one_survive_the_loss_of_all_indexes_after_the_take_over(tmp_path):
    archive = Path(__file__).parent.parent / "formats" / "format-1.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = tmp_path / "killed"

    async def life() -> tuple[int, int]:
        clock = SettableClock()
        broker = Broker(folder, clock=clock)
        before = len((await Client(broker).read("a.table", 0))[0])
        await broker.close()
        for name in ("*.index", "manifest", "closed"):
            for path in folder.glob(f"topics/*/{name}"):
                path.unlink()
        broker = Broker(folder, clock=clock)
        after = len((await Client(broker).read("a.table", 0))[0])
        await broker.close()
        return before, after

    assert asyncio.run(life()) == (9, 9)


def test_a_start_clears_any_number_of_offsets_of_topics_that_are_gone_also_on_a_full_disk():
    async def life(*, full: bool) -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk)
        topic = broker.catalog.create("t", 1000)
        for group in range(20):
            broker.offsets.commit(f"group number {group}", {("t", p): Committed(5) for p in range(1000)})
        broker.catalog.delete(topic)  # as it was before offsets went with their topic
        await broker.close()
        if full:
            disk.full_after_bytes = 0
        again = Broker(FOLDER, disk=disk)
        if full:
            with pytest.raises(RequestError, match="marked for deletion"):
                again.catalog.create("t", 1)
        else:
            assert not again.offsets.groups()
        disk.full_after_bytes = None
        await again.close()

    asyncio.run(life(full=False))
    asyncio.run(life(full=True))


def test_a_deletion_that_is_refused_takes_no_offsets():
    async def life() -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk)
        client = Client(broker)
        broker.catalog.create("t", 1)
        assert await commit(client, "g", 40) == ErrorCode.NONE
        disk.full_after_bytes = 120  # room for a tombstone, and not for the catalog
        answer = await client.call("DeleteTopics", 5, topic_names=["t"], timeout_ms=1000)
        assert answer.responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.offsets.of("g")["t", 0].offset == 40
        disk.full_after_bytes = None
        await broker.close()

    asyncio.run(life())


def test_offsets_of_a_topic_in_memory_go_with_it_and_a_topic_stays_where_it_was_put():
    async def life() -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk)
        topic = broker.catalog.create("t", 1, {"headwater.durable": "false"})
        assert await commit(Client(broker), "g", 100) == ErrorCode.NONE
        with pytest.raises(RequestError, match=r"headwater\.durable"):
            broker.catalog.configure(topic, {})
        await broker.close()
        again = Broker(FOLDER, disk=disk)
        assert not again.offsets.of("g")
        await again.close()

    asyncio.run(life())


def test_retention_runs_on_a_disk_that_takes_no_new_file():
    class NoNewFiles(MemoryDisk):
        full = False

        def open(self, path: Path, *, create: bool = False):
            if self.full and create and not self.exists(path):
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().open(path, create=create)

    async def life(clock: SettableClock) -> None:
        disk = NoNewFiles()
        broker = Broker(FOLDER, disk=disk, clock=clock)
        settings = {"segment.bytes": "1000", "retention.ms": "3600000", "segment.ms": "3600000"}
        partition = broker.catalog.create("t", 1, settings).partitions[0]
        for _ in range(200):
            partition.append(batch(b"k", bytes(90), clock), now_ms=clock.now_ms())
        await broker.committed()
        clock.advance(10 * DAY_S)
        disk.full = True
        await broker.retention.look_after_all()
        assert not partition.segments.closed
        disk.full = False
        await broker.close()

    asyncio.run(life(SettableClock()))


def test_nothing_is_said_of_a_partition_that_is_offline():
    async def life() -> None:
        broker = Broker(FOLDER, disk=MemoryDisk())
        client = Client(broker)
        broker.catalog.create("t", 1)
        await client.produce("t", 0, [b"x"])
        broker.catalog.topics["t"].partitions[0].take_offline(OSError(errno.EIO, "bad sector"))
        for timestamp in (-2, -1, 0):
            parts = [{"partition_index": 0, "timestamp": timestamp}]
            answer = await client.call("ListOffsets", 4, topics=[{"name": "t", "partitions": parts}])
            assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        parts = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
        answer = await client.call("OffsetForLeaderEpoch", 3, topics=[{"topic": "t", "partitions": parts}])
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await broker.retention.close()

    asyncio.run(life())


def test_compaction_does_not_give_a_damaged_batch_a_sound_checksum():
    async def life(clock: SettableClock) -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk, clock=clock)
        partition = broker.catalog.create("t", 1, COMPACTED).partitions[0]
        records = [Record(b"%d" % i, b"balance=100", (), clock.now_ms()) for i in range(3)]
        partition.append(memoryview(bytearray(encode_batch(records))), now_ms=clock.now_ms())
        partition.append(batch(b"1", b"newer", clock), now_ms=clock.now_ms())
        partition.roll()
        await broker.committed()
        file = disk.open(partition.folder / f"{0:020}.log")
        content = file.read(1000, 0)
        file.write(b"9", content.index(b"balance=100") + len("balance="))
        await broker.retention.look_after(partition)
        with pytest.raises(ProtocolError, match="CRC"):
            read_batch(partition.read(0, 1 << 20), verify=True)
        await broker.close()

    asyncio.run(life(SettableClock()))


def test_a_producer_of_which_a_scan_finds_a_marker_alone_continues():
    async def life(clock: SettableClock) -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk, clock=clock)
        client = Client(broker)
        partition = broker.catalog.create("t", 1).partitions[0]
        who = await client.call("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=900_000)
        identity = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}

        async def add() -> None:
            await client.call(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=who.producer_id,
                v3_and_below_producer_epoch=who.producer_epoch,
                v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            )

        await add()
        data = batch(b"k", b"v", clock, base_sequence=0, attributes=TRANSACTIONAL, **identity)
        partition.append(data, now_ms=clock.now_ms())
        partition.roll()
        await client.call("EndTxn", 3, transactional_id="x", committed=True, **identity)
        partition.delete_records(1)
        await broker.committed()
        await broker.retention.close()
        broker = Broker(FOLDER, disk=disk.power_cut(), clock=clock)
        client = Client(broker)
        await add()
        data = batch(b"k", b"w", clock, base_sequence=1, attributes=TRANSACTIONAL, **identity)
        topics = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(data)}]}]
        answer = await client.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        await broker.close()

    asyncio.run(life(SettableClock()))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_is_lacking_for_a_moment_takes_no_partition_offline(number):
    class Lacking(MemoryDisk):
        lacks = False

        def check(self, operation: str, path: Path, size: int = 0) -> None:
            if self.lacks and operation == "write":
                raise OSError(number, "lacking")
            super().check(operation, path, size)

    async def life() -> None:
        disk = Lacking()
        broker = Broker(FOLDER, disk=disk)
        broker.catalog.create("t", 1)
        await Client(broker).produce("t", 0, [b"before"])
        disk.lacks = True
        assert (await Client(broker).produce("t", 0, [b"x"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        disk.lacks = False
        assert (await Client(broker).produce("t", 0, [b"after"])).error_code == ErrorCode.NONE
        assert [r.value for r in (await Client(broker).read("t", 0))[0]] == [b"before", b"after"]
        await broker.close()

    asyncio.run(life())


def test_the_later_commit_of_an_offset_counts_whichever_became_visible_first():
    async def life() -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk)
        client = Client(broker)
        broker.catalog.create("t", 1)
        who = await client.call("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=60_000)
        identity = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
        name = {"transactional_id": "x", "group_id": "g"}
        await client.call("AddOffsetsToTxn", 3, **name, **identity)
        part = {"partition_index": 0, "committed_offset": 10, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [part]}]
        await client.call("TxnOffsetCommit", 3, **name, topics=topics, **identity)
        assert await commit(client, "g", 12) == ErrorCode.NONE
        await client.call("EndTxn", 3, transactional_id="x", committed=True, **identity)
        assert broker.offsets.of("g")["t", 0].offset == 12
        await broker.close()
        again = Broker(FOLDER, disk=disk)
        assert again.offsets.of("g")["t", 0].offset == 12
        await again.close()

    asyncio.run(life())


def test_a_start_does_not_compact_again_what_is_compacted():
    async def life(clock: SettableClock) -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk, clock=clock)
        partition = broker.catalog.create("t", 1, COMPACTED).partitions[0]
        for i in range(500):
            partition.append(batch(b"k%d" % (i % 50), bytes(100), clock), now_ms=clock.now_ms())
        partition.roll()
        await broker.committed()
        await broker.retention.look_after(partition)
        await broker.close()
        again = Broker(FOLDER, disk=disk, clock=clock)
        partition = again.catalog.topics["t"].partitions[0]
        assert partition.cleaned_to == 500
        before = list(partition.segments.closed)
        await again.retention.look_after(partition)
        assert list(partition.segments.closed) == before
        await again.close()

    asyncio.run(life(SettableClock()))


def test_the_keys_that_compaction_remembers_are_bounded_within_a_segment_too(monkeypatch):
    async def life(clock: SettableClock) -> None:
        monkeypatch.setattr(compaction, "KEYS_MAX", 30)
        broker = Broker(FOLDER, disk=MemoryDisk(), clock=clock)
        partition = broker.catalog.create("t", 1, {**COMPACTED, "segment.bytes": "1000000"}).partitions[0]
        for i in range(600):
            partition.append(batch(b"k%d" % (i % 200), b"%d" % i, clock), now_ms=clock.now_ms())
        partition.roll()
        await broker.committed()
        cleaned = -1
        while cleaned < partition.cleaned_to:
            cleaned = partition.cleaned_to
            await broker.retention.look_after(partition)
        rows, _ = await Client(broker).read("t", 0)
        assert {row.key: row.value for row in rows} == {b"k%d" % i: b"%d" % (400 + i) for i in range(200)}
        assert len(rows) == 200
        await broker.close()

    asyncio.run(life(SettableClock()))


def test_a_batch_that_lost_its_youngest_record_says_so():
    async def life(clock: SettableClock) -> None:
        broker = Broker(FOLDER, disk=MemoryDisk(), clock=clock)
        partition = broker.catalog.create("t", 1, COMPACTED).partitions[0]
        now = clock.now_ms()
        records = [
            Record(b"a", b"", (), now),
            Record(b"b", b"", (), now + 5_000),
            Record(b"c", b"", (), now + 1_000),
        ]
        partition.append(memoryview(bytearray(encode_batch(records))), now_ms=now)
        partition.append(batch(b"b", b"newer", clock), now_ms=now)
        partition.roll()
        await broker.committed()
        await broker.retention.look_after(partition)
        assert BatchHeader.read(partition.read(0, 1 << 20)).max_timestamp == now + 1_000
        assert partition.find_time(partition.max_timestamp).offset == 2
        await broker.close()

    asyncio.run(life(SettableClock()))


def test_a_marker_that_was_compacted_is_not_listed_after_the_policy_has_changed():
    disk, clock = MemoryDisk(), SettableClock()

    async def life() -> None:
        broker = Broker(FOLDER, disk=disk, clock=clock)
        topic = broker.catalog.create("t", 1, COMPACTED)
        partition = topic.partitions[0]
        producer = {"producer_id": 1, "producer_epoch": 0, "attributes": TRANSACTIONAL}
        partition.append(batch(b"k", b"aborted", clock, base_sequence=0, **producer), now_ms=clock.now_ms())
        partition.append_marker(Marker(1, 0, commit=False), clock.now_ms())
        for number in range(1, 4):
            data = batch(b"%d" % number, b"v", clock, base_sequence=number, **producer)
            partition.append(data, now_ms=clock.now_ms())
            partition.append_marker(Marker(1, 0, commit=True), clock.now_ms())
            partition.roll()
            await broker.committed()
            await broker.retention.look_after(partition)
            clock.advance(2 * DAY_S)
        assert not partition.producers.aborted
        broker.catalog.configure(topic, {"cleanup.policy": "delete", "retention.ms": "-1"})
        await broker.retention.close()
        again = Broker(FOLDER, disk=disk.power_cut(), clock=clock)
        assert not again.catalog.topics["t"].partitions[0].producers.aborted
        assert len((await Client(again).read("t", 0))[0]) == 3
        await again.close()

    asyncio.run(life())


def test_a_group_that_the_disk_refuses_to_forget_is_kept_and_its_deletion_answered():
    async def life() -> None:
        disk = MemoryDisk()
        broker = Broker(FOLDER, disk=disk)
        client = Client(broker)
        broker.catalog.create("t", 1)
        assert await commit(client, "g", 40) == ErrorCode.NONE
        disk.full_after_bytes = 0
        answer = await client.call("DeleteGroups", 1, groups_names=["g"])
        assert answer.results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = await client.call("OffsetDelete", 0, group_id="g", topics=topics)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.offsets.of("g")["t", 0].offset == 40
        disk.full_after_bytes = None
        await broker.close()

    asyncio.run(life())


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_first_round_after_a_start_keeps_no_file_of_each_partition_open(tmp_path):
    async def life() -> None:
        broker = Broker(tmp_path)
        broker.catalog.create("t", 50, {"retention.ms": "-1", "segment.ms": str(2**62)})
        for partition in range(50):
            await Client(broker).produce("t", partition, [b"x"])
        await broker.close()
        again = Broker(tmp_path)
        before = open_files()
        await again.retention.look_after_all()
        assert open_files() < before + 10
        await again.close()

    asyncio.run(life())
