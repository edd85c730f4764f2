"""Power cuts at random moments on a disk that forgets what was not synced, new names and removed ones included, tears what it was
writing, and sometimes fails or is full before.

Each round continues with the disk that the last cut left. Everything that was acknowledged must be there, once, at its offset;
committed transactions whole, aborted ones invisible; committed offsets of groups never go back, also those that a transaction
commits; what DeleteRecords has taken away does not take the rest with it.
CRASH_ROUNDS sets the number of rounds, CRASH_SEED the first seed; each seed is a disk with ten rounds.
"""

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.partition import Partition, read_all
from headwater.log.transactions.transaction import PREPARED
from headwater.record import CONTROL
from support.protocol import Client

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "20"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
PARTITIONS = 3
TOPIC, TRIMMED = "t", "trimmed"
CODECS = 5
FOLDER = Path("/memory")


@dataclass
class Expected:
    """What the broker has promised the clients so far."""

    records: dict[tuple[str, int], dict[int, bytes]] = field(
        default_factory=lambda: {(topic, p): {} for topic in (TOPIC, TRIMMED) for p in range(PARTITIONS)}
    )
    committed: set[bytes] = field(default_factory=set)
    aborted: set[bytes] = field(default_factory=set)
    unknown: list[set[bytes]] = field(default_factory=list)
    """Transactions whose end was asked for and not answered: whole or invisible."""
    offset: int = -1
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each group that a transactional producer commits for: the offset that was acknowledged, and the last one it asked for."""
    start: tuple[int, int] = (0, 0)
    """The log start that DeleteRecords got as its answer, and the last one it asked for."""


class DiskFailed(Exception):  # noqa: N818  it is what the round expects
    """A request was refused, as it must be on a disk that fails."""


def broker(disk: MemoryDisk, flush: str) -> Broker:
    made = Broker(FOLDER, flush=flush, partitions=PARTITIONS, disk=disk)
    for topic in (TOPIC, TRIMMED):
        if topic not in made.catalog.topics:
            made.catalog.create(topic, PARTITIONS, {"segment.bytes": "3000"})
    return made


def expect_none(code: int, disk: MemoryDisk) -> None:
    """Only a disk that fails is a reason to refuse."""
    if code != ErrorCode.NONE and (disk.failing or disk.full_after_bytes is not None):
        raise DiskFailed
    assert code == ErrorCode.NONE


async def write_plain(
    client: Client, expected: Expected, chance: random.Random, name: str, topic: str = TOPIC
) -> None:
    """An idempotent producer that never stops."""
    answer = await client.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    number = 0
    while True:
        partition = chance.randrange(PARTITIONS)
        values = [b"%s-%d-%d" % (name.encode(), number, i) for i in range(chance.randint(1, 5))]
        number += 1
        result = await client.produce(
            topic,
            partition,
            values,
            codec=chance.randrange(CODECS),
            producer_id=answer.producer_id,
            producer_epoch=0,
            base_sequence=sequences[partition],
        )
        expect_none(result.error_code, client.broker.disk)
        sequences[partition] += len(values)
        expected.records[topic, partition] |= {
            result.base_offset + i: value for i, value in enumerate(values)
        }
        await asyncio.sleep(0)


async def write_transactions(client: Client, expected: Expected, chance: random.Random, name: str) -> None:
    """A transactional producer that commits and aborts, and commits a group's offset with it."""
    disk, group = client.broker.disk, f"group-{name}"
    answer = await client.call("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=60_000)
    expect_none(answer.error_code, disk)
    who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    number = 0
    while True:
        values = {
            p: b"%s-%d-%d-%d-%d" % (name.encode(), answer.producer_id, answer.producer_epoch, number, p)
            for p in range(PARTITIONS)
        }
        number += 1
        added = await client.call(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who["producer_id"],
            v3_and_below_producer_epoch=who["producer_epoch"],
            v3_and_below_topics=[{"name": TOPIC, "partitions": list(range(PARTITIONS))}],
        )
        expect_none(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, disk)
        for partition, value in values.items():
            result = await client.produce(
                TOPIC,
                partition,
                [value],
                codec=chance.randrange(CODECS),
                base_sequence=sequences[partition],
                attributes=0x10,
                **who,
            )
            expect_none(result.error_code, disk)
            sequences[partition] += 1
        acknowledged, asked = expected.moved.get(group, (-1, -1))
        await move_group(client, name, group, asked + 1, who)
        commit = chance.random() < 0.7
        expected.unknown.append(set(values.values()))
        if commit:
            expected.moved[group] = (acknowledged, asked + 1)
        ended = await client.call("EndTxn", 3, transactional_id=name, committed=commit, **who)
        expect_none(ended.error_code, disk)
        expected.unknown.remove(set(values.values()))
        (expected.committed if commit else expected.aborted).update(values.values())
        if commit:
            expected.moved[group] = (asked + 1, asked + 1)


async def move_group(client: Client, name: str, group: str, offset: int, who: dict[str, int]) -> None:
    """Commits a group's offset as part of the transaction."""
    added = await client.call("AddOffsetsToTxn", 3, transactional_id=name, group_id=group, **who)
    expect_none(added.error_code, client.broker.disk)
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [part]}]
    moved = await client.call(
        "TxnOffsetCommit", 3, transactional_id=name, group_id=group, topics=topics, **who
    )
    expect_none(moved.topics[0].partitions[0].error_code, client.broker.disk)


async def commit_offsets(client: Client, expected: Expected) -> None:
    """A consumer that commits a growing offset."""
    while True:
        part = {"partition_index": 0, "committed_offset": expected.offset + 1, "committed_metadata": ""}
        topics = [{"name": TOPIC, "partitions": [part]}]
        answer = await client.call(
            "OffsetCommit", 7, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
        )
        expect_none(answer.topics[0].partitions[0].error_code, client.broker.disk)
        expected.offset += 1
        await asyncio.sleep(0)


async def trim(client: Client, expected: Expected, chance: random.Random) -> None:
    """Takes the oldest records of a partition away, now and then."""
    while True:
        await asyncio.sleep(chance.uniform(0, 0.01))
        end = client.broker.catalog.topics[TRIMMED].partitions[0].high_watermark
        offset = chance.randint(expected.start[1], max(end, expected.start[1]))
        expected.start = (expected.start[0], offset)
        topics = [{"name": TRIMMED, "partitions": [{"partition_index": 0, "offset": offset}]}]
        answer = await client.call("DeleteRecords", 2, topics=topics, timeout_ms=1000)
        expect_none(answer.topics[0].partitions[0].error_code, client.broker.disk)
        expected.start = (offset, offset)


def visible(partition: Partition) -> dict[int, bytes]:
    """What a ``read_committed`` reader sees, by offset."""
    aborted, rows = partition.producers.aborted, {}
    offsets = []
    for header, records in read_all(partition):
        for record in records:
            if record.offset < partition.log_start_offset:
                continue
            offsets.append(record.offset)
            hidden = any(
                a.producer_id == header.producer_id and a.first_offset <= record.offset <= a.last_offset
                for a in aborted
            )
            open_from = partition.producers.open.get(header.producer_id)
            is_open = open_from is not None and record.offset >= open_from
            if not header.attributes & CONTROL and not hidden and not is_open:
                rows[record.offset] = record.value
    start = partition.log_start_offset
    assert offsets == list(range(start, start + len(offsets))), "offsets have a gap or repeat"
    return rows


def check(opened: Broker, expected: Expected) -> None:
    """Compares what the log holds with what was promised."""
    values: set[bytes] = set()
    trimmed = opened.catalog.topics[TRIMMED].partitions[0]
    acknowledged, asked = expected.start
    assert acknowledged <= trimmed.log_start_offset <= asked, "the log start is not where it was put"
    for (topic, index), promised in expected.records.items():
        partition = opened.catalog.topics[topic].partitions[index]
        rows = visible(partition)
        for offset, value in promised.items():
            if offset >= partition.log_start_offset:
                assert rows.get(offset) == value, f"acknowledged record {value!r} is not at {index}@{offset}"
        assert len(set(rows.values())) == len(rows), "a record is there twice"
        values.update(rows.values())
    assert expected.committed <= values, "a committed transaction is not whole"
    assert not expected.aborted & values, "an aborted transaction is visible"
    for transaction in expected.unknown:
        assert transaction <= values or not transaction & values, "a transaction is half visible"
    stored = opened.offsets.of("g").get((TOPIC, 0))
    assert expected.offset < 0 or stored.offset >= expected.offset, "a committed offset went back"
    for group, (acknowledged, asked) in expected.moved.items():
        stored = opened.offsets.of(group).get((TOPIC, 0))
        assert acknowledged <= (stored.offset if stored else -1) <= asked, "a transaction's offset went back"


async def settled(opened: Broker) -> None:
    """Transactions that were decided are carried out."""
    async with asyncio.timeout(10):
        while any(each.state in PREPARED for each in opened.transactions.by_id.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def one_round(
    disk: MemoryDisk, number: int, flush: str, expected: Expected, chance: random.Random
) -> MemoryDisk:
    """Opens the disk, checks it, works until the power goes; the disk that this leaves."""
    opened = broker(disk, flush)
    await settled(opened)
    check(opened, expected)
    client = Client(opened)
    work = [
        write_plain(client, expected, chance, f"a{number}"),
        write_plain(client, expected, chance, f"b{number}"),
        write_plain(client, expected, chance, f"c{number}", TRIMMED),
        write_transactions(client, expected, chance, "x"),
        write_transactions(client, expected, chance, f"y{number % 2}"),
        commit_offsets(client, expected),
        trim(client, expected, chance),
    ]
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait(tasks, timeout=chance.uniform(0.005, 0.08), return_when=asyncio.FIRST_EXCEPTION)
    if chance.random() < 0.3:
        fail(disk, opened, chance)
        await asyncio.wait(tasks, timeout=chance.uniform(0.005, 0.03))
    after = disk.power_cut(chance.randrange(1 << 30) if chance.random() < 0.7 else None)
    for task in tasks:
        if task.done() and not isinstance(task.exception(), DiskFailed):
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await opened.transactions.close()
    await opened.retention.close()
    return after


def fail(disk: MemoryDisk, opened: Broker, chance: random.Random) -> None:
    """The disk begins to fail: everywhere or in one folder, or it is full."""
    folders = [p.folder for topic in opened.catalog.topics.values() for p in topic.partitions]
    way = chance.randrange(3)
    if way == 0:
        disk.full_after_bytes = chance.randrange(3000)
        return
    disk.failing_in = chance.choice([None, *folders])
    disk.failing = {"sync"} if way == 1 else {"write"}


def run(seed: int, rounds: int, flush: str) -> Expected:
    chance, expected, disk = random.Random(seed), Expected(), MemoryDisk()
    for number in range(rounds):
        disk = asyncio.run(one_round(disk, number, flush, expected, chance))
    return expected


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(ROUNDS // 10, 1)))
def test_nothing_acknowledged_is_lost_doubled_or_half_done_in_power_cuts(seed):
    expected = run(seed, 10, "commit")

    assert sum(map(len, expected.records.values())) > 100
    assert expected.committed
    assert expected.start[0] > 0


def test_a_log_that_does_not_sync_fails_this_test():
    with pytest.raises(AssertionError, match=r"is not at|not whole|went back|not where"):
        run(0, 10, "os")


@pytest.mark.parametrize("seed", range(20))
def test_old_segments_that_were_removed_when_the_power_went_take_nothing_else_with_them(seed):
    async def write_and_trim(disk: MemoryDisk) -> None:
        opened = broker(disk, "commit")
        client = Client(opened)
        for number in range(200):
            await client.produce(TRIMMED, 0, [b"%d" % number])
        opened.catalog.topics[TRIMMED].partitions[0].delete_records(150)
        await opened.retention.close()

    async def look(disk: MemoryDisk) -> None:
        opened = broker(disk, "commit")
        rows = visible(opened.catalog.topics[TRIMMED].partitions[0])
        assert [rows.get(offset) for offset in range(150, 200)] == [b"%d" % n for n in range(150, 200)]
        await opened.retention.close()

    disk = MemoryDisk()
    asyncio.run(write_and_trim(disk))
    asyncio.run(look(disk.power_cut(seed)))
