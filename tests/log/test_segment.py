"""Segments and partitions keep what they acknowledged, find what is asked for, and cut only what is torn."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import ErrorCode, RequestError
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.partition import Partition
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import Record, encode_batch, open_batch, whole_batches
from headwater.testing import MemoryDisk
from support.partitions import sync

FOLDER = Path("/memory/topics/t-0")


def batch(
    *values: bytes, timestamp: int = 1000, producer: int = -1, sequence: int = -1, epoch: int = 0
) -> memoryview:
    records = [Record(None, value, (), timestamp + i) for i, value in enumerate(values)]
    data = encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return memoryview(bytearray(data))


def opened(disk: MemoryDisk, *, sync_on_commit: bool = False, segment_bytes: int = 1 << 30) -> Partition:
    return Partition(disk, FOLDER, TopicConfig(segment_bytes=segment_bytes), sync_on_commit=sync_on_commit)


def read_all(partition: Partition) -> list[Record]:
    records, offset = [], partition.log_start_offset
    while offset < partition.high_watermark:
        for each in whole_batches(partition.read(offset, 1 << 20)):
            records += open_batch(each)
        offset = records[-1].offset + 1
    return records


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    segment_bytes=st.sampled_from([500, 5_000, 1 << 30]),
    data=st.data(),
)
def test_every_offset_and_time_is_found_before_and_after_reopening(sizes, segment_bytes, data):
    disk = MemoryDisk()
    partition = opened(disk, segment_bytes=segment_bytes)
    expected = []
    for i, size in enumerate(sizes):
        values = [b"%d-%d" % (i, n) for n in range(size % 7 + 1)]
        partition.append(batch(*values, b"x" * size, timestamp=1000 + 10 * i))
        expected += [*values, b"x" * size]
    if data.draw(st.booleans()):
        if data.draw(st.booleans()):
            partition.close()
        partition = opened(disk, segment_bytes=segment_bytes)

    found = read_all(partition)
    assert [r.value for r in found] == expected
    assert [r.offset for r in found] == list(range(len(expected)))
    probe = data.draw(st.integers(0, len(expected) - 1))
    first = next(iter(whole_batches(partition.read(probe, 1))))
    assert probe in [r.offset for r in open_batch(first)]
    wanted = data.draw(st.integers(990, 1000 + 10 * len(sizes)))
    earliest = next((r for r in found if r.timestamp >= wanted), None)
    assert partition.find_time(wanted) == earliest


def test_a_torn_tail_is_cut_at_the_last_whole_batch_and_writing_continues():
    disk = MemoryDisk()
    partition = opened(disk)
    for i in range(5):
        partition.append(batch(b"value %d" % i))
    file = disk.open(FOLDER / f"{0:020}.log")
    file.truncate(file.size() - 3)

    again = opened(disk)
    assert [r.value for r in read_all(again)] == [b"value 0", b"value 1", b"value 2", b"value 3"]
    assert again.append(batch(b"next")).base_offset == 4


def test_a_flipped_bit_is_never_served_after_a_restart():
    disk = MemoryDisk()
    partition = opened(disk)
    for i in range(3):
        partition.append(batch(b"value %d" % i))
    file = disk.open(FOLDER / f"{0:020}.log")
    file.write(b"X", file.size() - 2)

    assert [r.value for r in read_all(opened(disk))] == [b"value 0", b"value 1"]


def test_nothing_is_readable_before_it_is_synced_and_all_that_was_readable_survives_a_power_cut():
    disk = MemoryDisk()
    partition = opened(disk, sync_on_commit=True, segment_bytes=300)
    for i in range(10):
        partition.append(batch(b"value %d" % i))
    assert partition.high_watermark == 0
    assert partition.read(0, 100) == b""
    sync(partition)
    readable = [r.value for r in read_all(partition)]
    partition.append(batch(b"not synced"))

    assert len(readable) == 10
    assert [r.value for r in read_all(opened(disk.power_cut()))] == readable


def test_a_disk_that_never_syncs_loses_records_so_the_power_cut_is_a_real_one():
    disk = MemoryDisk()
    partition = opened(disk)
    partition.append(batch(b"value"))

    assert read_all(opened(disk.power_cut())) == []


def test_a_failed_sync_takes_the_partition_offline():
    disk = MemoryDisk()
    partition = opened(disk, sync_on_commit=True)
    partition.append(batch(b"value"))
    disk.failing.add("sync")

    with pytest.raises(OSError, match="sync failed"):
        sync(partition)
    partition.take_offline(OSError("sync failed"))
    with pytest.raises(RequestError) as refused:
        partition.append(batch(b"next"))
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(RequestError):
        partition.read(0, 100)


def test_a_repeated_batch_is_answered_with_its_first_offset_also_after_a_crash():
    disk = MemoryDisk()
    partition = opened(disk, segment_bytes=400)
    offsets = [partition.append(batch(b"a", b"b", producer=7, sequence=2 * i)).base_offset for i in range(6)]

    for each in (partition, opened(disk, segment_bytes=400)):
        assert each.append(batch(b"a", b"b", producer=7, sequence=10)).base_offset == offsets[5]
        assert each.append(batch(b"a", b"b", producer=7, sequence=2)).base_offset == offsets[1]
        assert each.end_offset == 12
        with pytest.raises(RequestError) as gap:
            each.append(batch(b"a", producer=7, sequence=14))
        assert gap.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(RequestError) as fenced:
        partition.append(batch(b"a", producer=7, sequence=0, epoch=-1))
    assert fenced.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_damaged_and_oversized_batches_are_refused_and_change_nothing():
    partition = opened(MemoryDisk())
    damaged = batch(b"value")
    damaged[-1] ^= 1
    with pytest.raises(RequestError) as refused:
        partition.append(damaged)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(RequestError) as refused:
        partition.append(batch(b"x" * 2_000_000))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert partition.end_offset == 0


def test_a_clean_close_lets_the_next_start_skip_the_scan():
    disk = MemoryDisk()
    partition = opened(disk)
    partition.append(batch(b"value", producer=3, sequence=0))
    partition.close()
    disk.open(FOLDER / f"{0:020}.log").write(b"\xff", 70)

    assert opened(disk).end_offset == 1  # the damage was not looked for: the index file vouches for the end


def test_waiting_readers_are_woken_when_there_is_more():
    async def scenario() -> None:
        partition = opened(MemoryDisk())
        seen = []
        partition.watchers.add(lambda: seen.append(partition.high_watermark))
        partition.append(batch(b"a"))
        partition.watchers.clear()
        partition.append(batch(b"b"))
        assert seen == [1]

    asyncio.run(scenario())


def test_a_cut_segment_takes_those_after_it_along_so_that_no_producer_loses_a_batch_in_the_middle():
    disk = MemoryDisk()
    partition = opened(disk, sync_on_commit=True, segment_bytes=300)
    for i in range(10):
        partition.append(batch(b"value %d" % i, producer=7, sequence=i))
    first = disk.open(FOLDER / f"{0:020}.log")
    first.truncate(first.size() - 1)

    again = opened(disk, segment_bytes=300)
    kept = [r.value for r in read_all(again)]
    assert kept == [b"value %d" % i for i in range(len(kept))]
    assert again.append(batch(b"next", producer=7, sequence=len(kept))).base_offset == len(kept)


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_when_there_is_room():
    disk = MemoryDisk()
    partition = opened(disk)
    partition.append(batch(b"before"))
    disk.full_after_bytes = 10
    with pytest.raises(RequestError) as refused:
        partition.append(batch(b"too much"))
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [r.value for r in read_all(partition)] == [b"before"]

    disk.full_after_bytes = None
    assert partition.append(batch(b"after")).base_offset == 1
    assert [r.value for r in read_all(opened(disk))] == [b"before", b"after"]


def test_a_topic_that_is_not_durable_leaves_nothing_on_the_disk():
    disk = MemoryDisk()
    folder = Path("/memory")
    catalog = Catalog(disk, folder, sync_on_commit=True, on_dirty=lambda _: None)
    topic = catalog.create("scratch", 1, {"headwater.durable": "false"})
    topic.partitions[0].append(batch(b"value"))

    assert [r.value for r in read_all(topic.partitions[0])] == [b"value"]
    assert disk.names(folder / "topics") == []
    again = Catalog(disk, folder, sync_on_commit=True, on_dirty=lambda _: None)
    assert again.topics["scratch"].partitions[0].end_offset == 0
