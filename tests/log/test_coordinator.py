"""Waiting clients may go away at any time, and disks fail: what was begun is finished, and no answer is untrue."""

import asyncio
from pathlib import Path

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from headwater.log.transactions.coordinator import TRANSACTIONS_TOPIC
from headwater.log.transactions.transaction import EPOCH_MAX, TransactionState
from headwater.testing import SettableClock
from support.protocol import Client


def test_a_client_that_goes_away_while_it_waits_for_a_sync_disturbs_no_other():
    async def scenario() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        broker.catalog.create("t", 1)
        client = Client(broker)
        gone = asyncio.ensure_future(client.produce("t", 0, [b"a"]))
        await asyncio.sleep(0)
        gone.cancel()
        waited = asyncio.ensure_future(broker.committed())
        waited.cancel()
        answer = await asyncio.wait_for(client.produce("t", 0, [b"b"]), 5)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)
        await broker.close()

    asyncio.run(scenario())


def test_a_transaction_is_ended_although_its_client_goes_away_in_the_middle():
    async def scenario() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        broker.catalog.create("t", 1)
        client = Client(broker)
        who = await client.call("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=60_000)
        producer = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
        await client.call(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.producer_epoch,
            v3_and_below_topics=[{"name": "t", "partitions": [0]}],
        )
        await client.produce("t", 0, [b"a"], base_sequence=0, attributes=0x10, **producer)
        ending = asyncio.ensure_future(
            client.call("EndTxn", 3, transactional_id="x", committed=True, **producer)
        )
        await asyncio.sleep(0.001)
        ending.cancel()
        transaction = broker.transactions.by_id["x"]
        async with asyncio.timeout(5):
            while transaction.state is not TransactionState.COMPLETE_COMMIT:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert broker.catalog.topics["t"].partitions[0].last_stable_offset == 2
        await broker.close()

    asyncio.run(scenario())


async def begun(client: Client, name: str, partitions: int = 1) -> dict[str, int]:
    """A producer with an open transaction that includes the topic's partitions."""
    who = await client.call("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=60_000)
    assert who.error_code == ErrorCode.NONE
    await client.call(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.producer_epoch,
        v3_and_below_topics=[{"name": "t", "partitions": list(range(partitions))}],
    )
    return {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}


def test_of_two_producers_that_begin_at_once_one_is_fenced():
    async def scenario() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        client = Client(broker)
        wish = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
        answers = await asyncio.gather(*(client.call("InitProducerId", 4, **wish) for _ in range(3)))
        assert [a.error_code for a in answers] == [ErrorCode.NONE] * 3
        assert len({a.producer_epoch for a in answers}) == 3
        await broker.close()

    asyncio.run(scenario())


def test_a_decision_that_could_not_be_synced_is_not_carried_out_nor_answered_as_done():
    async def scenario() -> None:
        disk = MemoryDisk()
        broker = Broker(Path("/memory"), disk=disk)
        broker.catalog.create("t", 1)
        client = Client(broker)
        who = await begun(client, "x")
        await client.produce("t", 0, [b"a"], base_sequence=0, attributes=0x10, **who)
        disk.failing = {"sync"}
        answer = await client.call("EndTxn", 3, transactional_id="x", committed=True, **who)
        disk.failing = set()
        await asyncio.sleep(0.01)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.catalog.topics["t"].partitions[0].end_offset == 1, (
            "a marker of a decision that may be lost"
        )
        await broker.retention.close()

    asyncio.run(scenario())


def test_a_transaction_whose_marker_could_not_be_synced_is_ended_after_the_restart():
    async def scenario() -> None:
        disk = MemoryDisk()
        broker = Broker(Path("/memory"), disk=disk)
        broker.catalog.create("t", 1)
        client = Client(broker)
        who = await begun(client, "x")
        await client.produce("t", 0, [b"a"], base_sequence=0, attributes=0x10, **who)
        disk.failing, disk.failing_in = {"sync"}, broker.catalog.topics["t"].partitions[0].folder
        ending = asyncio.ensure_future(client.call("EndTxn", 3, transactional_id="x", committed=True, **who))
        await asyncio.wait([ending], timeout=0.05)
        assert not ending.done()
        ending.cancel()
        await broker.transactions.close()
        await broker.retention.close()

        again = Broker(Path("/memory"), disk=disk.power_cut())
        await asyncio.sleep(0.05)
        assert again.transactions.by_id["x"].state is TransactionState.COMPLETE_COMMIT
        assert again.catalog.topics["t"].partitions[0].last_stable_offset == 2
        await again.close()

    asyncio.run(scenario())


def test_an_offset_is_not_acknowledged_when_the_sync_failed():
    async def scenario() -> None:
        disk = MemoryDisk()
        broker = Broker(Path("/memory"), disk=disk)
        broker.catalog.create("t", 1)
        client = Client(broker)
        part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [part]}]
        commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = await client.call("OffsetCommit", 7, **commit)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        disk.failing = {"sync"}
        answer = await client.call("OffsetCommit", 7, **commit)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await broker.retention.close()

    asyncio.run(scenario())


def test_a_partition_that_a_full_disk_did_not_add_is_not_acknowledged_when_it_is_asked_again():
    async def scenario() -> None:
        disk = MemoryDisk()
        broker = Broker(Path("/memory"), disk=disk)
        broker.catalog.create("t", 1)
        client = Client(broker)
        who = await client.call("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=60_000)
        wish = {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.producer_epoch,
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        }
        disk.full_after_bytes = 0
        for expected in [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]:
            if expected is ErrorCode.NONE:
                disk.full_after_bytes = None
            answer = await client.call("AddPartitionsToTxn", 3, **wish)
            result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            assert result.partition_error_code == expected
        await broker.close()

    asyncio.run(scenario())


def test_the_last_epoch_of_a_producer_is_aborted_under_its_own_id():
    async def scenario() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        broker.catalog.create("t", 1)
        client = Client(broker)
        await client.call("InitProducerId", 4, transactional_id="x", transaction_timeout_ms=60_000)
        broker.transactions.by_id["x"].epoch = EPOCH_MAX - 1
        old = await begun(client, "x")
        assert old["producer_epoch"] == EPOCH_MAX
        await client.produce("t", 0, [b"a"], base_sequence=0, attributes=0x10, **old)
        new = await begun(client, "x")
        assert (new["producer_id"] != old["producer_id"], new["producer_epoch"]) == (True, 0)
        partition = broker.catalog.topics["t"].partitions[0]
        assert partition.last_stable_offset == partition.high_watermark == 2
        late = await client.produce(
            "t", 0, [b"b"], base_sequence=0, attributes=0x10, producer_id=old["producer_id"], producer_epoch=0
        )
        assert late.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        await broker.close()

    asyncio.run(scenario())


def test_no_marker_is_written_before_the_decision_is_on_the_disk():
    async def scenario() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        broker.catalog.create("t", 1)
        client = Client(broker)
        who = await begun(client, "x")
        await client.produce("t", 0, [b"a"], base_sequence=0, attributes=0x10, **who)
        partition = broker.catalog.topics["t"].partitions[0]
        decisions = broker.catalog.topics[TRANSACTIONS_TOPIC].partitions[0]
        ending = asyncio.ensure_future(client.call("EndTxn", 3, transactional_id="x", committed=True, **who))
        async with asyncio.timeout(5):
            while partition.end_offset == 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert decisions.high_watermark == decisions.end_offset
        assert (await ending).error_code == ErrorCode.NONE
        await broker.close()

    asyncio.run(scenario())


def test_a_transaction_times_out_after_its_time_whatever_the_clock_is_set_to():
    async def scenario() -> None:
        clock, disk = SettableClock(), MemoryDisk()
        broker = Broker(Path("/memory"), disk=disk, clock=clock)
        broker.catalog.create("t", 1)
        client = Client(broker)

        async def begin(name: str) -> None:
            who = await client.call("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=50)
            await client.call(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=who.producer_id,
                v3_and_below_producer_epoch=who.producer_epoch,
                v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            )

        async def aborted(of: Broker, name: str) -> None:
            async with asyncio.timeout(5):
                while of.transactions.by_id[name].state is not TransactionState.COMPLETE_ABORT:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

        await begin("back")
        clock.jump(-3_600)
        clock.advance(0.06)
        await aborted(broker, "back")
        await begin("ahead")
        clock.jump(3_600)
        await asyncio.sleep(0.1)  # its timer goes off: no time has passed
        assert broker.transactions.by_id["ahead"].state is TransactionState.ONGOING
        await broker.close()
        clock.jump(-7_200)
        again = Broker(Path("/memory"), disk=disk, clock=clock)
        clock.advance(0.06)
        await aborted(again, "ahead")
        await again.close()

    asyncio.run(scenario())
