"""kill -9 of the broker under load: what was acknowledged is there, once and in order; groups continue.

CRASH_ROUNDS sets the number of kills, CRASH_SEED the first seed; each seed is a life of ten kills.
"""

import os
import signal

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from crash.kills import KILLS_PER_LIFE, live

KILLS = int(os.environ.get("CRASH_ROUNDS", "20"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_LIFE, 1)))
def test_every_promise_to_a_client_is_kept_after_kills(seed, tmp_path):
    lived = live(seed, tmp_path)

    assert lived.faults == []
    assert lived.acknowledged > 100
    assert lived.committed
    assert lived.transformed


def test_a_group_continues_from_its_commit_after_a_kill(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    for i in range(10):
        producer.produce("numbers", str(i), partition=0)
    assert producer.flush(60) == 0
    reader = Consumer({"bootstrap.servers": own_broker.bootstrap, "group.id": "g"})
    reader.commit(offsets=[TopicPartition("numbers", 0, 7)], asynchronous=False)
    own_broker.end(signal.SIGKILL)
    own_broker.start()

    assert reader.committed([TopicPartition("numbers", 0)], 20)[0].offset == 7
    reader.close()


def test_a_clean_stop_keeps_everything(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    producer.produce("t", b"kept", partition=0)
    assert producer.flush(60) == 0
    assert own_broker.end() == 0
    own_broker.start()
    reader = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    reader.assign([TopicPartition("t", 0, 0)])
    assert reader.poll(20).value() == b"kept"
    reader.close()


def test_members_of_a_group_continue_after_a_kill_without_joining_again(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    producer.produce("t", b"before", partition=0)
    assert producer.flush(60) == 0
    rebalances = []
    reader = Consumer(
        {"bootstrap.servers": own_broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    reader.subscribe(["t"], on_assign=lambda *_: rebalances.append("assigned"))
    assert reader.poll(20).value() == b"before"
    own_broker.end(signal.SIGKILL)
    own_broker.start()
    producer.produce("t", b"after", partition=0)
    assert producer.flush(60) == 0

    assert reader.poll(20).value() == b"after"
    reader.commit(asynchronous=False)
    assert rebalances == ["assigned"]
    reader.close()
