"""Retention and compaction against a simple model: what must stay stays, at its offset; what must go goes."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.log.storage.catalog import Catalog
from headwater.log.storage.partition import Partition, read_all
from headwater.log.storage.producers import Marker
from headwater.log.storage.retention import Retention
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import CONTROL, TRANSACTIONAL, Record, encode_batch
from headwater.testing import MemoryDisk, SettableClock
from support.partitions import sync

FOLDER = Path("/memory/topics/t-0")
DAY_MS = 86_400_000


def opened(disk: MemoryDisk, **config: object) -> Partition:
    return Partition(disk, FOLDER, TopicConfig(**config), sync_on_commit=False)


def look_after(partition: Partition, clock: SettableClock) -> None:
    """What the broker's caretaker does in one round."""

    async def round_() -> None:
        catalog = Catalog(MemoryDisk(), Path("/none"), sync_on_commit=False, on_dirty=lambda _: None)
        retention = Retention(catalog, clock)
        sync(partition)
        await retention.look_after(partition)
        await retention.close()

    asyncio.run(round_())


def append(
    partition: Partition, key: bytes | None, value: bytes | None, clock: SettableClock, **producer: int
) -> int:
    data = encode_batch([Record(key, value, (), clock.now_ms())], **producer)
    return partition.append(memoryview(bytearray(data))).base_offset


def readable(partition: Partition) -> list[Record]:
    """What a read_committed reader sees."""
    aborted = partition.producers.aborted
    return [
        record
        for header, records in read_all(partition)
        for record in records
        if not header.attributes & CONTROL
        and not any(
            a.producer_id == header.producer_id and a.first_offset <= record.offset <= a.last_offset
            for a in aborted
        )
    ]


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 5), st.none() | st.binary(max_size=3)), min_size=1, max_size=80
    ),
    segment_bytes=st.sampled_from([200, 800]),
    rounds=st.integers(1, 3),
    power_cut=st.booleans(),
)
def test_compaction_keeps_the_newest_record_of_each_key_at_its_offset(
    changes, segment_bytes, rounds, power_cut
):
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(
        disk, cleanup_policy="compact", segment_bytes=segment_bytes, min_cleanable_dirty_ratio=0.0
    )
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    step = max(len(changes) // rounds, 1)
    for i, (number, value) in enumerate(changes):
        key = b"key %d" % number
        newest[key] = (append(partition, key, value, clock), value)
        if i % step == 0:
            look_after(partition, clock)
    partition.roll()
    look_after(partition, clock)
    if power_cut:
        partition.close()
        partition = opened(disk.power_cut(), cleanup_policy="compact", segment_bytes=segment_bytes)

    found = readable(partition)
    assert {r.key: (r.offset, r.value) for r in found} == newest
    assert len(found) == len(newest)
    assert partition.end_offset == len(changes)
    assert append(partition, b"next", b"", clock) == len(changes)


def test_tombstones_stay_for_their_delay_after_they_were_compacted_and_go_then():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    append(partition, b"k", b"v", clock)
    append(partition, b"k", None, clock)
    clock.advance(30 * DAY_MS / 1000)
    partition.roll()
    look_after(partition, clock)
    assert [(r.key, r.value) for r in readable(partition)] == [(b"k", None)]

    append(partition, b"other", b"v", clock)
    clock.advance(2 * DAY_MS / 1000)
    partition.roll()
    look_after(partition, clock)
    assert [(r.key, r.value) for r in readable(partition)] == [(b"other", b"v")]


def test_aborted_records_go_their_markers_follow_and_open_transactions_are_left_alone():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, segment_bytes=300)
    append(partition, b"k", b"committed before", clock)
    for i in range(5):
        append(
            partition,
            b"k",
            b"aborted",
            clock,
            producer_id=1,
            producer_epoch=0,
            base_sequence=i,
            attributes=TRANSACTIONAL,
        )
    partition.append_marker(Marker(1, 0, commit=False), clock.now_ms())
    append(partition, b"other", b"x", clock)
    append(
        partition,
        b"k",
        b"open",
        clock,
        producer_id=2,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    append(partition, b"after", b"x", clock)
    partition.roll()
    look_after(partition, clock)

    kept = {(r.key, r.value) for r in readable(partition)}
    assert (b"k", b"committed before") in kept
    raw = [r for h, records in read_all(partition) for r in records if not h.attributes & CONTROL]
    assert sum(r.value == b"aborted" for r in raw) == 0
    assert any(r.value == b"open" for r in raw)
    assert (
        append(partition, b"k", b"v", clock, producer_id=1, producer_epoch=0, base_sequence=5, attributes=0)
        == 10
    )


def test_the_sequence_of_a_producer_continues_after_its_records_were_compacted_and_the_index_was_lost():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for i in range(3):
        append(partition, b"k", b"%d" % i, clock, producer_id=7, producer_epoch=0, base_sequence=i)
    append(partition, b"k", b"newer", clock)
    partition.roll()
    look_after(partition, clock)
    for name in disk.names(FOLDER):
        if name.endswith(".index"):
            disk.remove(FOLDER / name)

    again = opened(disk, cleanup_policy="compact")
    assert (
        append(again, b"k", b"2", clock, producer_id=7, producer_epoch=0, base_sequence=2) == 2
    )  # recognised
    assert append(again, b"k", b"3", clock, producer_id=7, producer_epoch=0, base_sequence=3) == 4


@pytest.mark.parametrize("stop_after", range(12))
def test_a_crash_at_any_step_of_a_swap_loses_nothing(stop_after):
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, segment_bytes=250)
    for i in range(12):
        append(partition, b"k%d" % (i % 3), b"%d" % i, clock)
    partition.roll()
    sync(partition)
    steps = iter(range(100))

    def failing(original: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            if next(steps) >= stop_after:
                raise OSError("crash")
            return original(*args, **kwargs)

        return call

    for name in ("rename", "remove", "replace", "sync_folder"):
        setattr(disk, name, failing(getattr(disk, name)))
    with contextlib.suppress(OSError):
        look_after(partition, clock)

    for after in (disk, disk.power_cut()):
        for name in ("rename", "remove", "replace", "sync_folder"):
            after.__dict__.pop(name, None)
        again = opened(after, cleanup_policy="compact", segment_bytes=250)
        assert {r.key: r.value for r in readable(again)} == {b"k0": b"9", b"k1": b"10", b"k2": b"11"}
        assert again.end_offset == 12


def test_retention_drops_whole_segments_by_age_and_by_size():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, segment_bytes=250, retention_ms=DAY_MS)
    for i in range(6):
        append(partition, b"k", b"v%d" % i, clock)
        clock.advance(DAY_MS / 1000 / 3)
    look_after(partition, clock)
    assert 0 < partition.log_start_offset <= 4
    assert readable(partition)[-1].value == b"v5"

    partition.config = TopicConfig(segment_bytes=250, retention_bytes=0)
    look_after(partition, clock)
    assert len(partition.segments.closed) == 0
    assert partition.log_start_offset == partition.segments.active.base_offset == 6
    sync(partition)
    again = opened(disk, segment_bytes=250)
    assert (again.log_start_offset, again.end_offset) == (partition.log_start_offset, 6)


def test_a_quiet_topic_loses_its_records_when_they_are_too_old_and_no_later_than_that():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, retention_ms=DAY_MS, segment_ms=30 * DAY_MS)
    append(partition, b"k", b"v", clock)
    look_after(partition, clock)
    clock.advance(DAY_MS / 1000)
    look_after(partition, clock)
    assert (partition.log_start_offset, len(partition.segments.closed)) == (0, 0)

    clock.advance(0.001)
    look_after(partition, clock)
    assert (partition.log_start_offset, partition.end_offset) == (1, 1)
    sync(partition)
    for each in (opened(disk), opened(disk.power_cut())):
        assert (each.log_start_offset, each.end_offset) == (1, 1)


def test_old_records_stay_while_younger_ones_come_before_them():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, segment_bytes=100, retention_ms=DAY_MS)
    append(partition, b"k", b"young", clock)
    clock.jump(-3 * DAY_MS / 1000)
    append(partition, b"k", b"old", clock)
    clock.jump(3 * DAY_MS / 1000)
    look_after(partition, clock)

    assert [r.value for r in readable(partition)] == [b"young", b"old"]
    assert len(partition.segments.closed) == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_records_without_a_time_are_kept_for_as_long_as_others(restarted):
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, segment_bytes=100, retention_ms=DAY_MS)
    for _ in range(3):
        data = memoryview(bytearray(encode_batch([Record(b"k", b"v" * 30, (), -1)])))
        partition.append(data, now_ms=clock.now_ms())
    if restarted:
        partition.close()
        partition = opened(disk, segment_bytes=100, retention_ms=DAY_MS)
    look_after(partition, clock)
    clock.advance(DAY_MS / 1000)
    look_after(partition, clock)
    assert partition.log_start_offset == 0

    clock.advance(0.001)
    look_after(partition, clock)
    assert partition.log_start_offset == partition.end_offset == 3


def test_deleted_records_stay_deleted_after_a_restart():
    disk, clock = MemoryDisk(), SettableClock()
    partition = opened(disk, segment_bytes=250)
    for i in range(6):
        append(partition, b"k", b"v%d" % i, clock)
    partition.delete_records(4)

    for each in (partition, opened(disk, segment_bytes=250), opened(disk.power_cut(), segment_bytes=250)):
        assert each.log_start_offset == 4
