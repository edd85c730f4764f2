"""Makes a data folder of the log with the code that is checked out, as a fixture for later code: ``python tests/formats/make.py NAME``.

Writes ``tests/formats/NAME.tar.gz`` with two folders, ``clean`` after a stop and ``killed`` as a kill -9 leaves it, and
``NAME.json`` with what a reader must find in both. Keep the files of every format that was ever released.
"""

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from headwater.log.broker import Broker  # noqa: E402
from headwater.log.storage.partition import read_all  # noqa: E402
from headwater.record import CONTROL, Record, encode_batch  # noqa: E402
from headwater.testing import SettableClock  # noqa: E402
from support.protocol import Client  # noqa: E402

EVENTS, TABLE, GROUP, WRITER = "events", "a.table", "readers", "writer"
SMALL = {"segment.bytes": "700"}


async def write(folder: Path, clock: SettableClock) -> Broker:
    """Plain and transactional records, an aborted transaction, a compacted topic, committed offsets."""
    broker = Broker(folder, clock=clock)
    client = Client(broker)
    broker.catalog.create(EVENTS, 2, {**SMALL, "retention.ms": "-1"})
    compacted = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    broker.catalog.create(TABLE, 1, compacted)
    for number in range(40):
        await client.produce(EVENTS, number % 2, [b"event %d" % number])
    who = await client.call("InitProducerId", 4, transactional_id=WRITER, transaction_timeout_ms=60_000)
    identity = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    for number in range(30):
        await transaction(client, identity, number, clock, commit=number % 5 != 2)
        if number in {15, 29}:
            await broker.retention.look_after_all()
    part = {"partition_index": 1, "committed_offset": 7, "committed_metadata": "seven"}
    await client.call(
        "OffsetCommit",
        7,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": EVENTS, "partitions": [part]}],
    )
    return broker


async def transaction(client: Client, who: dict, number: int, clock: SettableClock, *, commit: bool) -> None:
    await client.call(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=WRITER,
        v3_and_below_producer_id=who["producer_id"],
        v3_and_below_producer_epoch=who["producer_epoch"],
        v3_and_below_topics=[{"name": TABLE, "partitions": [0]}],
    )
    value = b"%s %d" % (b"kept" if commit else b"aborted", number)
    record = Record(b"key %d" % (number % 7), value, (), clock.now_ms())
    data = encode_batch([record], base_sequence=number, attributes=0x10, **who)
    topics = [{"name": TABLE, "partition_data": [{"index": 0, "records": data}]}]
    await client.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
    await client.call("EndTxn", 3, transactional_id=WRITER, committed=commit, **who)
    clock.advance(3600 * 8)


def found(broker: Broker) -> dict:
    """What readers see, by partition."""
    rows = {}
    for name in (EVENTS, TABLE):
        topic = broker.catalog.topics[name]
        for index in range(len(topic.partitions)):
            partition = topic.partitions[index]
            hidden = partition.producers.aborted
            rows[f"{name}-{index}"] = {
                "end": partition.end_offset,
                "rows": [
                    [record.offset, (record.key or b"").decode(), (record.value or b"").decode()]
                    for header, records in read_all(partition)
                    for record in records
                    if not header.attributes & CONTROL
                    and not any(
                        a.producer_id == header.producer_id
                        and a.first_offset <= record.offset <= a.last_offset
                        for a in hidden
                    )
                ],
            }
    committed = broker.offsets.of(GROUP)[EVENTS, 1]
    return {"partitions": rows, "offset": committed.offset, "metadata": committed.metadata}


async def make(name: str, work: Path) -> None:
    clock = SettableClock()
    broker = await write(work / "clean", clock)
    shutil.copytree(work / "clean", work / "killed")
    expected = found(broker)
    await broker.close()
    with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as archive:
        for each in ("clean", "killed"):
            archive.add(work / each, each)
    (HERE / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(sys.argv[1], Path(folder)))
