"""confluent-kafka, as it is, over a real socket."""

import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.servers import create_topic, wait_until


@pytest.fixture
def topic(bootstrap):
    """Two partitions that take records: a producer without idempotence that has to wait for them and retry keeps no order."""
    return create_topic(
        AdminClient({"bootstrap.servers": bootstrap}), f"confluent-{uuid.uuid4().hex[:8]}", partitions=2
    )


def produce(bootstrap, topic, values, **settings):
    """Sends all values and fails unless every one of them is acknowledged."""
    failures = []
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for i, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=str(i),
            partition=i % 2,
            on_delivery=lambda e, _: failures.append(e) if e else None,
        )
    assert producer.flush(30) == 0
    assert failures == []


def consumer(bootstrap, **settings):
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "auto.offset.reset": "earliest",
            "group.id": uuid.uuid4().hex,
            **settings,
        }
    )


def consume(reader, count):
    found, limit = [], time.monotonic() + 120
    while len(found) < count and time.monotonic() < limit:
        for message in reader.consume(500, 0.2):
            assert message.error() is None
            found.append(message)
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_come_back_once_and_in_order_with_every_codec(bootstrap, topic, codec, idempotent):
    values = [b"value %d" % i * 20 for i in range(2000)]
    produce(
        bootstrap,
        topic,
        values,
        **{"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5},
    )

    reader = consumer(bootstrap)
    reader.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    found = consume(reader, 2000)
    reader.close()
    for partition in (0, 1):
        assert [m.value() for m in found if m.partition() == partition] == values[partition::2]
        assert [m.offset() for m in found if m.partition() == partition] == list(range(1000))


def test_a_group_shares_partitions_and_hands_them_over_when_a_member_leaves(bootstrap, topic):
    group = uuid.uuid4().hex
    first, second = (consumer(bootstrap, **{"group.id": group}) for _ in range(2))

    def spread(counts):
        first.poll(0.05)
        second.poll(0.05)
        return (len(first.assignment()), len(second.assignment())) == counts

    first.subscribe([topic])
    second.subscribe([topic])
    wait_until(lambda: spread((1, 1)), what="one partition each")
    second.close()
    wait_until(lambda: first.poll(0.05) or len(first.assignment()) == 2, what="both partitions at the first")
    first.close()


def test_a_group_continues_where_it_committed(bootstrap, topic):
    group = uuid.uuid4().hex
    produce(bootstrap, topic, [b"%d" % i for i in range(10)])
    reader = consumer(bootstrap, **{"group.id": group, "enable.auto.commit": False})
    reader.subscribe([topic])
    assert len(consume(reader, 10)) == 10
    reader.commit(asynchronous=False)
    reader.close()
    produce(bootstrap, topic, [b"new 0", b"new 1"])

    reader = consumer(bootstrap, **{"group.id": group})
    reader.subscribe([topic])
    assert sorted(m.value() for m in consume(reader, 2)) == [b"new 0", b"new 1"]
    reader.close()


def test_offsets_carry_their_metadata_and_may_be_committed_without_membership(bootstrap, topic):
    reader = consumer(bootstrap)
    reader.commit(offsets=[TopicPartition(topic, 0, 5, "run 7:batch 3")], asynchronous=False)

    (found,) = reader.committed([TopicPartition(topic, 0)], 10)
    assert (found.offset, found.metadata) == (5, "run 7:batch 3")
    with pytest.raises(KafkaException):
        reader.commit(offsets=[TopicPartition("no-such-topic-here", 0, 5)], asynchronous=False)
    reader.close()


def test_offsets_are_found_by_time(bootstrap, topic):
    hour_ago_ms = (time.time_ns() // 10**9 - 3600) * 1000
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(100):
        producer.produce(topic, b"x", partition=0, timestamp=hour_ago_ms + i * 1000)
        if i % 10 == 9:
            producer.flush(60)
    reader = consumer(bootstrap)
    (found,) = reader.offsets_for_times([TopicPartition(topic, 0, hour_ago_ms + 41_500)], 10)
    (end,) = reader.offsets_for_times([TopicPartition(topic, 0, hour_ago_ms + 9_000_000)], 10)
    assert found.offset == 42
    assert end.offset == -1  # OFFSET_END
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), 10) == (0, 100)
    reader.close()


def test_a_waiting_fetch_is_answered_as_soon_as_a_record_arrives(bootstrap, topic):
    reader = consumer(bootstrap, **{"fetch.wait.max.ms": 20_000})
    reader.assign([TopicPartition(topic, 0, 0)])
    assert reader.poll(0.5) is None
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    producer.produce(topic, b"now", partition=0)
    producer.flush(60)

    message = reader.poll(5)
    assert message is not None
    assert message.value() == b"now"
    reader.close()


def test_a_record_of_100_mb_is_refused_with_the_reason_and_the_next_one_is_taken(bootstrap, topic):
    outcomes = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.max.bytes": 200_000_000,
            "queue.buffering.max.kbytes": 400_000,
        }
    )
    for value in (b"x" * 100_000_000, b"small"):
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(60)

    assert outcomes[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert outcomes[1] is None


def test_topics_are_created_listed_and_deleted(bootstrap):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = create_topic(admin, f"life-{uuid.uuid4().hex[:8]}", 3, cleanup_policy="compact")
    assert len(admin.list_topics(timeout=10).topics[name].partitions) == 3
    with pytest.raises(KafkaException, match="already exists"):
        admin.create_topics([NewTopic(name, 3, 1)])[name].result(60)
    with pytest.raises(KafkaException, match="Unknown topic config"):
        admin.create_topics([NewTopic(name + "x", 1, 1, config={"no.such": "1"})])[name + "x"].result(60)
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("bad/name", 1, 1)])["bad/name"].result(60)
    admin.delete_topics([name])[name].result(60)
    wait_until(lambda: name not in admin.list_topics(timeout=10).topics, 10, "the deletion")


def test_groups_are_listed_and_described(bootstrap, topic):
    group = uuid.uuid4().hex
    reader = consumer(bootstrap, **{"group.id": group})
    reader.subscribe([topic])
    wait_until(lambda: reader.poll(0.05) or reader.assignment(), what="an assignment")

    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result(60)
    assert group in [g.group_id for g in listed.valid]
    described = admin.describe_consumer_groups([group])[group].result(60)
    assert described.state.name == "STABLE"
    assert [len(m.assignment.topic_partitions) for m in described.members] == [2]
    reader.close()
