"""A long history costs no more than a short one: its segments are numbers until they are read, and go in small steps."""

import random
from pathlib import Path

import pytest

from headwater.log.storage import segments as segments_module
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.closed_segments import ClosedSegments, Summary
from headwater.log.storage.partition import Partition
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import Record, encode_batch
from headwater.testing import MemoryDisk
from support.partitions import sync

FOLDER = Path("/memory/topics/t-0")


class CountingDisk(MemoryDisk):
    """Knows how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.listed = 0

    def open(self, path: Path, *, create: bool = False):
        self.opened += 1
        return super().open(path, create=create)

    def names(self, folder: Path) -> list[str]:
        self.listed += 1
        return super().names(folder)


def append(partition: Partition, timestamp: int) -> None:
    data = encode_batch([Record(None, b"x" * 100, (), timestamp)])
    partition.append(memoryview(bytearray(data)))


def filled(disk: MemoryDisk, segments: int, **config: object) -> Partition:
    """One record in each segment."""
    partition = Partition(disk, FOLDER, TopicConfig(segment_bytes=1, **config), sync_on_commit=False)
    for i in range(segments):
        append(partition, 1000 + i)
    sync(partition)
    return partition


def test_the_running_maximum_stays_exact_when_segments_out_of_order_are_replaced():
    chance = random.Random(5)
    times = [chance.randrange(50) for _ in range(40)]
    history = ClosedSegments(Summary(i, i + 1, 10, t) for i, t in enumerate(times))
    for _ in range(20):
        first, count = chance.choice([0, chance.randrange(5)]), chance.randrange(1, 3)
        fresh = [] if first == 0 else [Summary(history.bases[first], history.ends[first], 7, 3)]
        summaries = list(history)
        summaries[first : first + count] = fresh
        history.replace(first, count, fresh)

        assert list(history) == summaries
        assert history.size_bytes == sum(s.size_bytes for s in summaries)
        assert history.max_timestamp == max((s.max_timestamp for s in summaries), default=-1)
        for wanted in range(52):
            found = [at for at, s in enumerate(summaries) if s.max_timestamp >= wanted]
            assert history.reaching(wanted) == (found[0] if found else len(summaries))
        if len(history) < 8:
            break


def test_a_manifest_that_is_damaged_or_of_another_form_counts_as_missing():
    data = ClosedSegments([Summary(0, 1, 10, 5)]).encode()
    assert list(ClosedSegments.decode(data)) == [Summary(0, 1, 10, 5)]
    for wrong in (None, b"", data[:-1], data[:9] + b"\x01" + data[10:], b"\x90", ClosedSegments().encode()):
        assert ClosedSegments.decode(wrong) is None


@pytest.mark.parametrize("segments", [3, 300])
def test_a_start_after_a_clean_stop_opens_one_file_and_lists_none_however_long_the_history(segments):
    disk = CountingDisk()
    filled(disk, segments).close()
    disk.opened = disk.listed = 0
    again = Partition(disk, FOLDER, TopicConfig(segment_bytes=1), sync_on_commit=False)

    assert (disk.opened, disk.listed) == (1, 0)
    assert (again.end_offset, len(again.segments.closed)) == (segments, segments - 1)
    assert again.find_time(1000 + segments // 2).offset == segments // 2


def test_a_manifest_that_a_power_cut_brought_back_does_not_hide_later_records():
    """The first write after a full segment leaves the size unchanged that the manifest names."""
    disk = MemoryDisk()
    filled(disk, 3).close()
    manifest = disk.read(FOLDER / "manifest")
    partition = Partition(disk, FOLDER, TopicConfig(segment_bytes=1), sync_on_commit=True)
    append(partition, 2000)
    sync(partition)
    disk.replace(FOLDER / "manifest", manifest)

    again = Partition(disk, FOLDER, TopicConfig(segment_bytes=1), sync_on_commit=True)
    assert again.end_offset == 4


def test_a_start_after_a_crash_looks_only_at_what_was_written_since_the_last_clean_stop():
    disk = CountingDisk()
    filled(disk, 300).close()
    config = TopicConfig(segment_bytes=1)
    partition = Partition(disk, FOLDER, config, sync_on_commit=False)
    append(partition, 2000)
    sync(partition)
    disk.opened = 0

    again = Partition(disk, FOLDER, config, sync_on_commit=False)
    assert (again.end_offset, len(again.segments.closed)) == (301, 300)
    assert disk.opened <= 6
    assert again.find_time(1150).offset == 150


def test_a_start_after_a_crash_reads_everything_where_the_proof_of_the_list_is_gone():
    disk = CountingDisk()
    filled(disk, 30).close()
    config = TopicConfig(segment_bytes=1)
    append(Partition(disk, FOLDER, config, sync_on_commit=False), 2000)
    disk.remove(FOLDER / f"{28:020}.index")

    again = Partition(disk, FOLDER, config, sync_on_commit=False)
    assert (again.end_offset, list(again.segments.closed.bases)) == (31, list(range(30)))


def test_partitions_that_were_never_used_cost_no_look_at_the_disk_when_made_and_at_a_start():
    disk, folder = CountingDisk(), Path("/memory")
    catalog = Catalog(disk, folder, sync_on_commit=False, on_dirty=lambda _: None)
    topic = catalog.create("wide", 10_000)
    append(topic.partitions[7], 1000)
    catalog.close()
    disk.opened = disk.listed = 0

    again = Catalog(disk, folder, sync_on_commit=False, on_dirty=lambda _: None).topics["wide"]
    assert (disk.opened, disk.listed) == (1, 1)
    assert [partition.end_offset for partition in again.partitions.used()] == [1]
    assert (len(again.partitions), again.partitions[9_999].end_offset) == (10_000, 0)


def test_files_of_expired_segments_go_in_steps_of_a_bounded_number():
    partition = filled(MemoryDisk(), 200, retention_ms=0)
    steps = 0
    while partition.expire(10_000):
        steps += 1
        assert partition.log_start_offset <= steps * segments_module.DROP_SEGMENTS_MAX

    assert (partition.log_start_offset, len(partition.segments.closed), steps) == (199, 0, 4)


def test_reading_old_segments_takes_no_file_out_of_the_hands_of_a_sync():
    disk = CountingDisk()
    partition = filled(disk, 20)
    append(partition, 3000)
    append(partition, 3001)
    sync_round = partition.begin_sync()  # the two that were closed are still to be synced
    for offset in range(21):
        partition.read(offset, 1000)
    disk.opened = 0
    sync_round.run()
    partition.finish_sync(sync_round)

    assert disk.opened == 0
    assert partition.find_time(3000).offset == 20


def test_a_segment_that_expires_while_it_is_synced_leaves_no_file():
    disk = MemoryDisk()
    partition = filled(disk, 3, retention_ms=0)
    append(partition, 3000)
    sync_round = partition.begin_sync()
    partition.expire(10_000)
    sync_round.run()
    partition.finish_sync(sync_round)
    sync(partition)

    assert len([name for name in disk.names(FOLDER) if name.endswith(".log")]) == 1
    assert not [name for name in disk.names(FOLDER) if name.endswith(".index")]
