"""The publisher of captures, on both logs: transactions whole and in order, one holder of a name, and a log that goes away for a moment."""

import os
import uuid

import pytest

from headwater.access import Access
from headwater.capture.loop.publisher import Publisher
from headwater.capture.source import Columns, Record
from headwater.client.bulk.packing import BATCH_BYTES
from headwater.client.client import Client
from headwater.client.partitioner import murmur2
from headwater.errors import FencedError
from support.servers import both_logs, wait_settled

pytestmark = both_logs
MANY = 30_000


def new_topic(log: str | Access, partitions: int = 1) -> str:
    name = f"published-{uuid.uuid4().hex[:10]}"
    client = Client(log)
    client.ensure_topics([name], partitions)
    client.close()
    return name


def committed(log: str | Access, *topics: str) -> list[tuple[str, int, bytes | None, bytes | None]]:
    client = Client(log)
    try:
        wait_settled(client, *topics)
        return [(m.topic(), m.partition(), m.key(), m.value()) for m in client.read(topics)]
    finally:
        client.close()


def numbered(topic: str, numbers: range) -> list[Record]:
    return [Record(topic, b"%d" % number, b"value %d" % number, 0) for number in numbers]


def test_rows_in_columns_are_published_as_the_records_that_they_contain(bootstrap: str):
    topic = new_topic(bootstrap)
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"1", b"one"), (None, b"without a key"), (b"2", None)]
    columns = [list(column) for column in zip(*pairs, strict=True)]
    rows = Columns(topic, columns[0], columns[1], 7)
    assert list(rows) == [Record(topic, *pair, 7) for pair in pairs]
    assert list(rows[1:]) == list(rows)[1:]
    assert rows[-1].committed_ms == 7
    assert len(rows) == 3
    made = Publisher(bootstrap, uuid.uuid4().hex)
    made.claim()
    made.begin()
    made.send([Record(topic, b"0", b"before", 0)])
    made.send(rows)
    made.send([Record(topic, b"3", b"after", 0)])
    made.commit()
    made.close()
    assert [pair[2:] for pair in committed(bootstrap, topic)] == [
        (b"0", b"before"),
        *pairs,
        (b"3", b"after"),
    ]


def test_records_of_a_transaction_are_read_as_they_were_and_in_order(bootstrap: str):
    one, other = new_topic(bootstrap), new_topic(bootstrap)
    pairs = [
        (b"key", b"value"),
        (b"", b""),
        (None, b"without a key"),
        (b"gone", None),
        (os.urandom(20_000), os.urandom(20_000)),
        (b"hardly compressible", os.urandom(BATCH_BYTES - 5_000)),
        (b"the next one has no room on that pile", os.urandom(10_000)),
        *((b"%d" % number, b"a row that is like the others %d" % number) for number in range(MANY)),
    ]
    made = Publisher(bootstrap, uuid.uuid4().hex)
    made.claim()
    for part in (pairs[:9], pairs[9:]):
        made.begin()
        made.send([Record(topic, *pair, 0) for pair in part for topic in (one, other)])
        made.commit()
    made.close()
    found = committed(bootstrap, one, other)
    for topic in (one, other):
        assert [(key, value) for at, _, key, value in found if at == topic] == pairs


def test_a_key_goes_to_the_partition_where_java_clients_put_it(bootstrap: str):
    topic = new_topic(bootstrap, 3)
    made = Publisher(bootstrap, uuid.uuid4().hex)
    made.claim()
    made.begin()
    made.send(numbered(topic, range(100)))
    made.commit()
    made.close()
    found = committed(bootstrap, topic)
    assert len(found) == 100
    assert all(partition == murmur2(key or b"") % 3 for _, partition, key, _ in found)


def test_what_was_abandoned_is_never_read(bootstrap: str):
    topic = new_topic(bootstrap)
    made = Publisher(bootstrap, uuid.uuid4().hex)
    made.claim()
    made.begin()
    made.send(numbered(topic, range(MANY)))
    made.abandon()
    made.claim()
    made.begin()
    made.send(numbered(topic, range(2)))
    made.commit()
    made.close()
    assert [key for _, _, key, _ in committed(bootstrap, topic)] == [b"0", b"1"]


def test_a_successor_ends_what_was_open_and_shuts_its_predecessor_out(bootstrap: str):
    topic, name = new_topic(bootstrap), uuid.uuid4().hex
    old, new = Publisher(bootstrap, name), Publisher(bootstrap, name)
    old.claim()
    old.begin()
    old.send(numbered(topic, range(MANY)))
    new.claim()
    with pytest.raises(FencedError):
        old.commit()
    new.begin()
    new.send(numbered(topic, range(3)))
    new.commit()
    assert len(committed(bootstrap, topic)) == 3
    for each in (old, new):
        each.close()
