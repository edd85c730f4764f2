"""Transactions through confluent-kafka: whole or invisible, fenced, and tied to a group's offsets."""

import signal
import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.servers import create_topic, wait_until


def producer(bootstrap, name, **settings):
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **settings})
    made.init_transactions(30)
    return made


def new_topic(bootstrap, partitions=2):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return create_topic(admin, f"txn-{uuid.uuid4().hex[:8]}", partitions)


def read(bootstrap, topic, *, isolation="read_committed", partitions=2, seconds=40):
    """Everything that is readable now, by partition; ends when the reader has come to the end of every partition."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found, ended, limit = {p: [] for p in range(partitions)}, set(), time.monotonic() + seconds
    while len(ended) < partitions and time.monotonic() < limit:
        message = reader.poll(0.1)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            found[message.partition()].append(message.value())
    reader.close()
    return found


def test_committed_records_appear_whole_and_aborted_ones_never(bootstrap):
    topic, writer = new_topic(bootstrap), producer(bootstrap, uuid.uuid4().hex)
    for number in range(6):
        writer.begin_transaction()
        for partition in (0, 1):
            for i in range(10):
                writer.produce(topic, f"{number}-{i}", partition=partition)
        if number % 2:
            writer.abort_transaction(30)
        else:
            writer.commit_transaction(30)

    expected = [f"{n}-{i}".encode() for n in (0, 2, 4) for i in range(10)]
    assert read(bootstrap, topic) == {0: expected, 1: expected}
    raw = read(bootstrap, topic, isolation="read_uncommitted")
    assert set(expected) <= set(raw[0])


def test_an_open_transaction_holds_committed_readers_and_no_others(bootstrap):
    topic, writer = new_topic(bootstrap), producer(bootstrap, uuid.uuid4().hex)
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=0)
    writer.flush(60)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"after", partition=0)
    plain.produce(topic, b"elsewhere", partition=1)
    plain.flush(60)

    assert read(bootstrap, topic, seconds=10) == {0: [], 1: [b"elsewhere"]}
    assert read(bootstrap, topic, isolation="read_uncommitted")[0] == [b"open", b"after"]
    writer.commit_transaction(30)
    assert read(bootstrap, topic)[0] == [b"open", b"after"]


def test_the_last_incarnation_of_a_producer_fences_the_former_one_and_aborts_what_it_left(bootstrap):
    topic, name = new_topic(bootstrap), uuid.uuid4().hex
    old = producer(bootstrap, name)
    old.begin_transaction()
    old.produce(topic, b"from the old one", partition=0)
    old.flush(60)
    new = producer(bootstrap, name)
    new.begin_transaction()
    new.produce(topic, b"from the new one", partition=0)
    new.commit_transaction(30)

    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(30)
    assert refused.value.args[0].fatal() or refused.value.args[0].txn_requires_abort()
    assert read(bootstrap, topic)[0] == [b"from the new one"]


def test_offsets_of_a_group_commit_with_the_records_or_not_at_all(bootstrap):
    source, target, group = new_topic(bootstrap), new_topic(bootstrap), uuid.uuid4().hex
    writer = producer(bootstrap, uuid.uuid4().hex)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    reader.subscribe([source])
    wait_until(lambda: reader.poll(0.05) or reader.assignment(), what="an assignment")

    def copy(offset, *, commit):
        writer.begin_transaction()
        writer.produce(target, f"at {offset}", partition=0)
        writer.send_offsets_to_transaction(
            [TopicPartition(source, 0, offset, f"batch {offset}")], reader.consumer_group_metadata(), 30
        )
        (writer.commit_transaction if commit else writer.abort_transaction)(30)

    copy(5, commit=True)
    copy(9, commit=False)
    (found,) = reader.committed([TopicPartition(source, 0)], 10)
    assert (found.offset, found.metadata) == (5, "batch 5")
    assert read(bootstrap, target)[0] == [b"at 5"]
    reader.close()


def test_a_transaction_left_open_is_aborted_when_its_time_is_over(bootstrap):
    topic, writer = (
        new_topic(bootstrap),
        producer(bootstrap, uuid.uuid4().hex, **{"transaction.timeout.ms": 1000}),
    )
    writer.begin_transaction()
    writer.produce(topic, b"left open", partition=0)
    writer.flush(60)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"after", partition=0)
    plain.flush(60)

    wait_until(lambda: read(bootstrap, topic, seconds=1)[0] == [b"after"], 15, "the abort")
    with pytest.raises(KafkaException):
        writer.commit_transaction(10)


def test_open_and_decided_transactions_survive_a_kill_of_the_broker(own_broker):
    bootstrap = own_broker.bootstrap
    topic = new_topic(bootstrap)
    done, left = producer(bootstrap, "done"), producer(bootstrap, "left")
    for writer in (done, left):
        writer.begin_transaction()
        writer.produce(topic, b"done" if writer is done else b"left", partition=0)
        writer.flush(60)
    done.commit_transaction(30)
    own_broker.end(signal.SIGKILL)
    own_broker.start()

    assert read(bootstrap, topic, seconds=10)[0] == [b"done"]
    left.commit_transaction(60)
    assert sorted(read(bootstrap, topic)[0]) == [b"done", b"left"]
