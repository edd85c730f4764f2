"""Writing with a Writer: what comes back is where the records are."""

import threading
import uuid
from collections import Counter
from datetime import UTC, datetime

import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.config import Settings
from headwater.declare.schema import encode
from support.servers import both_logs, free_port


class Order(hw.Event):
    order_id: int
    country: str
    at: datetime


class Click(hw.Event):
    page: str


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def topic(bootstrap):
    name = f"write-{uuid.uuid4().hex[:8]}"
    Client(bootstrap).ensure_topics([name], 3)
    return name


@pytest.fixture
def writer(bootstrap):
    with hw.Writer(bootstrap) as made:
        yield made


@pytest.fixture
def orders(topic):
    return hw.App("shop").stream("orders", Order, key=["country", "order_id"], time="at", topic=topic)


def records(bootstrap, topic):
    return [(r.key(), r.value(), r.partition(), r.offset()) for r in Client(bootstrap).read([topic])]


@both_logs
def test_a_position_is_after_the_last_record_of_each_partition_and_in_no_other(bootstrap, writer, topic):
    first = writer.send(topic, [b"a", b"b"], key="one")
    ((partition, offset),) = first.of(topic).items()
    assert offset == 2

    second = writer.send(topic, [b"%d" % n for n in range(100)], key=lambda value: value)

    written = Counter(r[2] for r in records(bootstrap, topic))
    assert second == hw.Position({topic: dict(written)})
    assert second.covers(first)
    assert written[partition] > 2


@both_logs
def test_events_of_a_stream_are_encoded_and_keyed_as_it_says(bootstrap, writer, orders, topic):
    order = Order(7, "DE", NOON)

    writer.send(orders, order)
    writer.send(orders, [encode(order)])
    writer.send(orders, order, key="other")

    value = b'{"order_id":7,"country":"DE","at":"2026-01-05T12:00:00.000000Z"}'
    found = sorted((key, written) for key, written, _, _ in records(bootstrap, topic))
    assert found == sorted([(b'["DE",7]', value), (b'["DE",7]', value), (b"other", value)])


def test_what_does_not_belong_to_a_stream_is_refused(writer, orders):
    with pytest.raises(hw.UsageError, match="not of stream 'orders'; got Click; expected Order"):
        writer.send(orders, Click("home"), key="x")
    with pytest.raises(hw.UsageError, match="has no field 'country'"):
        writer.send(orders, b'{"order_id": 1}')
    with pytest.raises(hw.UsageError, match=r"has no key; .*give key="):
        writer.send(orders, b"no JSON")
    many = hw.App("shop").stream("all", Order, key="order_id", time="at", pattern="orders.*")
    with pytest.raises(hw.UsageError, match="name the one to write to"):
        writer.send(many, [])


def test_nothing_sent_is_the_empty_position(writer, topic):
    assert writer.send(topic, []) == hw.Position()


def test_records_that_the_log_does_not_take_are_an_error(bootstrap, topic):
    with hw.Writer(bootstrap, timeout=5) as writer:
        with pytest.raises(hw.UsageError, match="record 2 cannot be sent"):
            writer.send(topic, [b"x", b"x" * 3_000_000])
        with pytest.raises(hw.MachineError, match=r"2 of 2 records for '.*' were not acknowledged"):
            writer.send("not/a/topic", [b"x", b"y"])


def test_a_log_that_is_away_is_an_error_before_anything_is_sent():
    with pytest.raises(hw.MachineError, match="does not answer"):
        hw.Writer(Settings(log=f"kafka://127.0.0.1:{free_port()}"), timeout=1)


def test_threads_share_a_writer_and_each_learns_where_its_own_records_are(bootstrap, writer, topic):
    found = {}

    def send(name):
        for n in range(20):
            found[name, n] = writer.send(topic, b"%d-%d" % (name, n), key=b"%d" % name)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    place = {value: (partition, offset) for _, value, partition, offset in records(bootstrap, topic)}
    for (name, n), position in found.items():
        partition, offset = place[b"%d-%d" % (name, n)]
        assert position.of(topic) == {partition: offset + 1}


def test_a_partitioner_chooses_and_the_position_shows_it(bootstrap, topic):
    with hw.Writer(bootstrap, partitioner=lambda _key, count: count - 1) as writer:
        assert writer.send(topic, [b"a", b"b"]) == hw.Position({topic: {2: 2}})
