"""Power cuts at random moments on a disk that forgets what was not synced, and tears what it was writing.

Each round goes on with the disk that the last cut left. Everything that was acknowledged must be there, once, at its offset;
committed transactions whole, aborted ones invisible; committed offsets of groups never go back.
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
from headwater.log.memory import MemoryDisk
from headwater.log.partition import read_all
from headwater.record import CONTROL
from protocol import Client

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "20"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
PARTITIONS = 3
TOPIC = "t"
FOLDER = Path("/memory")


@dataclass
class Expected:
    """What the clients have been told so far."""

    records: dict[int, dict[int, bytes]] = field(default_factory=lambda: {p: {} for p in range(PARTITIONS)})
    committed: set[bytes] = field(default_factory=set)
    aborted: set[bytes] = field(default_factory=set)
    unknown: list[set[bytes]] = field(default_factory=list)
    """Transactions whose end was asked for and not answered: whole or invisible."""
    offset: int = -1


def broker(disk: MemoryDisk, flush: str) -> Broker:
    made = Broker(FOLDER, flush=flush, partitions=PARTITIONS, disk=disk)
    if TOPIC not in made.catalog.topics:
        made.catalog.create(TOPIC, PARTITIONS, {"segment.bytes": "3000"})
    return made


async def write_plain(client: Client, expected: Expected, chance: random.Random, name: str) -> None:
    """An idempotent producer that never stops."""
    answer = await client.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    number = 0
    while True:
        partition = chance.randrange(PARTITIONS)
        values = [b"%s-%d-%d" % (name.encode(), number, i) for i in range(chance.randint(1, 5))]
        number += 1
        result = await client.produce(
            TOPIC,
            partition,
            values,
            producer_id=answer.producer_id,
            producer_epoch=0,
            base_sequence=sequences[partition],
        )
        assert result.error_code == ErrorCode.NONE
        sequences[partition] += len(values)
        expected.records[partition] |= {result.base_offset + i: value for i, value in enumerate(values)}
        await asyncio.sleep(0)


async def write_transactions(client: Client, expected: Expected, chance: random.Random, name: str) -> None:
    """A transactional producer that commits and aborts, and commits a group's offset with it."""
    answer = await client.call("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=60_000)
    assert answer.error_code == ErrorCode.NONE
    who = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    number = 0
    while True:
        values = {
            p: b"%s-%d-%d-%d" % (name.encode(), answer.producer_epoch, number, p) for p in range(PARTITIONS)
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
        assert (
            added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            == ErrorCode.NONE
        )
        for partition, value in values.items():
            result = await client.produce(
                TOPIC, partition, [value], base_sequence=sequences[partition], attributes=0x10, **who
            )
            assert result.error_code == ErrorCode.NONE
            sequences[partition] += 1
        commit = chance.random() < 0.7
        expected.unknown.append(set(values.values()))
        ended = await client.call("EndTxn", 3, transactional_id=name, committed=commit, **who)
        assert ended.error_code == ErrorCode.NONE
        expected.unknown.pop()
        (expected.committed if commit else expected.aborted).update(values.values())


async def commit_offsets(client: Client, expected: Expected) -> None:
    """A consumer that commits a growing offset."""
    while True:
        topics = [
            {
                "name": TOPIC,
                "partitions": [
                    {"partition_index": 0, "committed_offset": expected.offset + 1, "committed_metadata": ""}
                ],
            }
        ]
        answer = await client.call(
            "OffsetCommit", 7, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        expected.offset += 1
        await asyncio.sleep(0)


def check(opened: Broker, expected: Expected) -> None:
    """Compares what the log holds with what was promised."""
    visible: dict[int, dict[int, bytes]] = {}
    for index, partition in enumerate(opened.catalog.topics[TOPIC].partitions):
        aborted, rows = partition.producers.aborted, {}
        offsets = []
        for header, records in read_all(partition):
            for record in records:
                offsets.append(record.offset)
                hidden = any(
                    a.producer_id == header.producer_id and a.first_offset <= record.offset <= a.last_offset
                    for a in aborted
                )
                open_from = partition.producers.open.get(header.producer_id)
                if (
                    not header.attributes & CONTROL
                    and not hidden
                    and not (open_from is not None and record.offset >= open_from)
                ):
                    rows[record.offset] = record.value
        assert offsets == list(range(len(offsets))), "offsets have a gap or repeat"
        for offset, value in expected.records[index].items():
            assert rows.get(offset) == value, f"acknowledged record {value!r} is not at {index}@{offset}"
        assert len(set(rows.values())) == len(rows), "a record is there twice"
        visible[index] = rows
    values = {value for rows in visible.values() for value in rows.values()}
    assert expected.committed <= values, "a committed transaction is not whole"
    assert not expected.aborted & values, "an aborted transaction is visible"
    for transaction in expected.unknown:
        assert transaction <= values or not transaction & values, "a transaction is half visible"
    stored = opened.offsets.of("g").get((TOPIC, 0))
    assert expected.offset < 0 or stored.offset >= expected.offset, "a committed offset went back"


def run(seed: int, rounds: int, flush: str) -> Expected:
    chance, expected, disk = random.Random(seed), Expected(), MemoryDisk()

    async def one_round(number: int) -> None:
        opened = broker(disk, flush)
        await asyncio.sleep(0.02)  # transactions that were decided are carried out
        check(opened, expected)
        client = Client(opened)
        work = [
            write_plain(client, expected, chance, f"a{number}"),
            write_plain(client, expected, chance, f"b{number}"),
            write_transactions(client, expected, chance, "x"),
            write_transactions(client, expected, chance, f"y{number % 2}"),
            commit_offsets(client, expected),
        ]
        tasks = [asyncio.ensure_future(each) for each in work]
        await asyncio.wait(tasks, timeout=chance.uniform(0.005, 0.08))
        cut.append(disk.power_cut(chance.randrange(1 << 30) if chance.random() < 0.7 else None))
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await opened.retention.close()

    for number in range(rounds):
        cut: list[MemoryDisk] = []
        asyncio.run(one_round(number))
        disk = cut[0]
    return expected


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(ROUNDS // 10, 1)))
def test_nothing_acknowledged_is_lost_doubled_or_half_done_in_power_cuts(seed):
    expected = run(seed, 10, "commit")

    assert sum(map(len, expected.records.values())) > 100
    assert expected.committed


def test_a_log_that_does_not_sync_fails_this_test():
    with pytest.raises(AssertionError, match=r"is not at|not whole|went back"):
        run(0, 10, "os")
