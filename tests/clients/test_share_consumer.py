"""confluent-kafka's share consumer, on librdkafka, over a real socket."""

import contextlib
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient

from support.servers import create_topic

WAIT_S = 120


@pytest.fixture
def topic(bootstrap):
    return create_topic(
        AdminClient({"bootstrap.servers": bootstrap}), f"shared-{uuid.uuid4().hex[:8]}", partitions=2
    )


@pytest.fixture
def group(topic):
    return f"sharers of {topic}"


def sharer(bootstrap, topic, group, mode="explicit"):
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": mode,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return contextlib.closing(consumer)


def produce(bootstrap, topic, values):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0


def begin(bootstrap, topic, consumer):
    """Makes the group begin, in both partitions: it gets what is written after its first fetch."""
    begun, limit = set(), time.monotonic() + WAIT_S
    while begun != {0, 1}:
        assert time.monotonic() < limit
        produce(bootstrap, topic, [b"begin"] * 2)
        for message in consumer.poll(0.5):
            begun.add(message.partition())
            consumer.acknowledge(message)
        consumer.commit_sync(30)


def test_records_are_accepted_released_and_rejected_one_by_one(bootstrap, topic, group):
    with sharer(bootstrap, topic, group) as consumer:
        begin(bootstrap, topic, consumer)
        produce(bootstrap, topic, [b"accept", b"release", b"reject"])
        kinds = {b"release": AcknowledgeType.RELEASE, b"reject": AcknowledgeType.REJECT}
        seen, limit = Counter(), time.monotonic() + WAIT_S
        while seen[b"release"] < 2:
            assert time.monotonic() < limit, seen
            for message in consumer.poll(1):
                value = message.value()
                seen[value] += value != b"begin"
                kind = kinds.get(value, AcknowledgeType.ACCEPT)
                consumer.acknowledge(message, AcknowledgeType.ACCEPT if seen[value] > 1 else kind)
            assert not any(consumer.commit_sync(30).values())
        assert +seen == {b"accept": 1, b"release": 2, b"reject": 1}


def test_members_divide_the_records_and_each_is_delivered_once(bootstrap, topic, group):
    count = 3000
    expected = {b"%d" % number for number in range(count)}

    def work(consumer):
        seen, limit = Counter(), time.monotonic() + WAIT_S
        while sum(map(len, found)) < count and time.monotonic() < limit:
            for message in consumer.poll(0.2):
                seen[message.value()] += 1
                found[consumers.index(consumer)].add(message.value())
        return seen

    with contextlib.ExitStack() as open_consumers:
        first = open_consumers.enter_context(sharer(bootstrap, topic, group))
        begin(bootstrap, topic, first)
        consumers = [
            open_consumers.enter_context(sharer(bootstrap, topic, group, "implicit")) for _ in range(3)
        ]
        found = [set() for _ in consumers]
        produce(bootstrap, topic, sorted(expected))
        with ThreadPoolExecutor(3) as threads:
            seen = sum(threads.map(work, consumers), Counter())
    del seen[b"begin"]
    assert seen.keys() == expected
    assert set(seen.values()) == {1}


def test_what_a_consumer_leaves_when_it_closes_goes_to_the_next(bootstrap, topic, group):
    with sharer(bootstrap, topic, group) as consumer:
        begin(bootstrap, topic, consumer)
        produce(bootstrap, topic, [b"left"])
        limit = time.monotonic() + WAIT_S
        while not any(message.value() == b"left" for message in consumer.poll(1)):
            assert time.monotonic() < limit
    with sharer(bootstrap, topic, group, "implicit") as other:
        limit = time.monotonic() + WAIT_S
        while not any(message.value() == b"left" for message in other.poll(1)):
            assert time.monotonic() < limit
