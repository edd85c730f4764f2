"""Administration through confluent-kafka: settings, partitions, deleted records, offsets of groups."""

import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from support.servers import create_topic, wait_until


@pytest.fixture
def admin(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def make(admin):
    def topic(partitions=1, **config):
        return create_topic(admin, f"admin-{uuid.uuid4().hex[:8]}", partitions, **config)

    return topic


def fill(bootstrap, topic, count):
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(count):
        producer.produce(topic, b"%d" % i, b"k%d" % i, 0)
    assert producer.flush(60) == 0


def read(bootstrap, topic, offset, count):
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    reader.assign([TopicPartition(topic, 0, offset)])
    found, limit = [], time.monotonic() + 80
    while len(found) < count and time.monotonic() < limit:
        message = reader.poll(1)
        if message is not None and not message.error():
            found.append(message)
    reader.close()
    return found


def test_settings_are_described_and_changed_one_by_one(admin, make):
    topic = make(retention_ms="5000000")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    )
    resource.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    )
    admin.incremental_alter_configs([resource])[resource].result(60)

    expected = {"retention.ms": "5000000", "max.message.bytes": "2000000", "segment.bytes": "1073741824"}

    def described():  # Apache Kafka answers from metadata that follows a little later
        found = admin.describe_configs([resource])[resource].result(60)
        policies = set(found["cleanup.policy"].value.split(","))
        return {name: found[name].value for name in expected} == expected and policies == {
            "delete",
            "compact",
        }

    wait_until(described, 10, "the new settings")


@pytest.mark.parametrize(
    ("name", "value"), [("retention.ms", "soon"), ("no.such.setting", "1"), ("cleanup.policy", "burn")]
)
def test_a_wrong_setting_is_refused_and_changes_nothing(admin, make, name, value):
    topic = make()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))

    with pytest.raises(KafkaException):
        admin.incremental_alter_configs([resource])[resource].result(60)
    assert admin.describe_configs([resource])[resource].result(60)["retention.ms"].value == "604800000"


def test_partitions_are_added_and_never_taken_away(admin, make):
    topic = make(partitions=2)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
    wait_until(
        lambda: len(admin.list_topics(timeout=10).topics[topic].partitions) == 5, 10, "five partitions"
    )

    with pytest.raises(KafkaException):
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)


def test_deleted_records_are_gone_and_the_others_keep_their_offsets(admin, make, bootstrap):
    topic = make()
    fill(bootstrap, topic, 10)
    place = TopicPartition(topic, 0, 6)
    (deleted,) = [answer.result(60) for answer in admin.delete_records([place]).values()]

    assert deleted.low_watermark == 6
    assert [(m.offset(), m.value()) for m in read(bootstrap, topic, 6, 4)] == [
        (i, b"%d" % i) for i in range(6, 10)
    ]
    with pytest.raises(KafkaException):
        [answer.result(60) for answer in admin.delete_records([TopicPartition(topic, 0, 99)]).values()]


def test_log_append_time_is_the_brokers_clock(make, bootstrap):
    topic = make(message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    fill(bootstrap, topic, 3)

    for message in read(bootstrap, topic, 0, 3):
        kind, timestamp = message.timestamp()
        assert kind == 2  # TIMESTAMP_LOG_APPEND_TIME
        assert before - 1000 <= timestamp <= before + 60_000


def test_a_group_is_deleted_only_when_it_has_no_members(admin, make, bootstrap):
    topic, group = make(), uuid.uuid4().hex
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    reader.subscribe([topic])
    wait_until(lambda: reader.poll(0.05) or reader.assignment(), what="an assignment")
    with pytest.raises(KafkaException):
        admin.delete_consumer_groups([group])[group].result(60)
    reader.close()
    wait_until(lambda: deleted(admin, group), 20, "the group's deletion")


def deleted(admin, group):
    try:
        admin.delete_consumer_groups([group])[group].result(60)
    except KafkaException:
        return False
    return True
