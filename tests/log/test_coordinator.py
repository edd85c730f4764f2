"""Waiting clients may go away at any time: what was begun is finished, and nobody else's wait is disturbed."""

import asyncio
from pathlib import Path

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.memory import MemoryDisk
from headwater.log.transaction import TransactionState
from protocol import Client


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
