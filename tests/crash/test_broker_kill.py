"""kill -9 of the broker under load: what was acknowledged is there, once and in order; groups go on."""

import random
import signal
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ROUNDS = 4
TOPIC = "ledger"
PARTITIONS = 2


def test_every_acknowledged_record_is_there_once_and_in_order_after_kills(own_broker):
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(10)
    acknowledged: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    stop = threading.Event()

    def write() -> None:
        settings = {
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 1,
            "message.timeout.ms": 120_000,
        }
        producer = Producer({"bootstrap.servers": own_broker.bootstrap, **settings})

        def delivered(error: object, message: object) -> None:
            assert error is None
            acknowledged[message.partition()].append(int(message.value()))

        number = 0
        while not stop.is_set():
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS, on_delivery=delivered)
            number += 1
            producer.poll(0)
            time.sleep(0.0002)
        assert producer.flush(120) == 0

    writer = threading.Thread(target=write)
    writer.start()
    chance = random.Random(3)
    for _ in range(ROUNDS):
        time.sleep(chance.uniform(0.2, 0.8))
        own_broker.end(signal.SIGKILL)
        own_broker.start()
    stop.set()
    writer.join(timeout=150)
    assert not writer.is_alive()

    reader = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "check", "auto.offset.reset": "earliest"}
    )
    for partition, expected in acknowledged.items():
        assert len(expected) > 100
        reader.assign([TopicPartition(TOPIC, partition, 0)])
        found, limit = [], time.monotonic() + 30
        while len(found) < len(expected) and time.monotonic() < limit:
            found += [int(m.value()) for m in reader.consume(1000, 0.2)]
        assert found == expected
    reader.close()


def test_a_group_goes_on_from_its_commit_after_a_kill(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    for i in range(10):
        producer.produce("numbers", str(i), partition=0)
    assert producer.flush(20) == 0
    reader = Consumer({"bootstrap.servers": own_broker.bootstrap, "group.id": "g"})
    reader.commit(offsets=[TopicPartition("numbers", 0, 7)], asynchronous=False)
    own_broker.end(signal.SIGKILL)
    own_broker.start()

    assert reader.committed([TopicPartition("numbers", 0)], 20)[0].offset == 7
    reader.close()


def test_a_clean_stop_keeps_everything(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    producer.produce("t", b"kept", partition=0)
    assert producer.flush(20) == 0
    assert own_broker.end() == 0
    own_broker.start()
    reader = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    reader.assign([TopicPartition("t", 0, 0)])
    assert reader.poll(20).value() == b"kept"
    reader.close()


def test_members_of_a_group_go_on_after_a_kill_without_joining_again(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    producer.produce("t", b"before", partition=0)
    assert producer.flush(20) == 0
    rebalances = []
    reader = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    reader.subscribe(["t"], on_assign=lambda *_: rebalances.append("assigned"))
    assert reader.poll(20).value() == b"before"
    own_broker.end(signal.SIGKILL)
    own_broker.start()
    producer.produce("t", b"after", partition=0)
    assert producer.flush(20) == 0

    assert reader.poll(20).value() == b"after"
    reader.commit(asynchronous=False)
    assert rebalances == ["assigned"]
    reader.close()
