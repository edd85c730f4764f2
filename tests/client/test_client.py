"""Clients for any Kafka address, against the embedded log."""

import os
import signal

import pytest
from confluent_kafka import KafkaError, KafkaException

from headwater.access import Access
from headwater.client.client import Client, producer
from headwater.errors import MachineError
from support.servers import both_logs


def fill(bootstrap, topic, count):
    sender = producer(bootstrap)
    for number in range(count):
        sender.produce(topic, str(number), str(number))
    assert sender.flush(30) == 0


def test_topics_are_made_once_and_then_left_alone(bootstrap):
    client = Client(bootstrap)
    client.ensure_topics(["client.once"], 3)
    client.ensure_topics(["client.once"], 5)
    assert client.partitions()["client.once"] == 3


def test_every_record_that_is_there_is_read_once(bootstrap):
    client = Client(bootstrap)
    client.ensure_topics(["client.read", "client.empty"], 3)
    fill(bootstrap, "client.read", 1_000)
    values = [int(record.value()) for record in client.read(["client.read", "client.empty"])]
    assert sorted(values) == list(range(1_000))


def test_ends_of_a_topic_that_does_not_exist_are_none(bootstrap):
    client = Client(bootstrap)
    client.ensure_topics(["client.ends"], 2)
    fill(bootstrap, "client.ends", 10)
    ends = client.end_offsets(["client.ends", "client.nowhere"])
    assert ends.keys() == {("client.ends", 0), ("client.ends", 1)}
    assert sum(ends.values()) == 10
    assert client.committed("client.unknown", ends) == {}


def test_a_log_that_is_not_there_is_named():
    client = Client("127.0.0.1:1", timeout_s=0.5)
    assert not client.is_reachable(0.2)
    with pytest.raises(
        MachineError, match=r"log 127\.0\.0\.1:1 does not answer; got .*; is the broker running\?"
    ):
        client.partitions()


def test_a_client_continues_after_the_broker_was_killed_and_started_again(own_broker):
    client = Client(own_broker.bootstrap)
    client.ensure_topics(["client.kill"], 1)
    assert client.committed("client.group", [("client.kill", 0)]) == {}
    os.kill(own_broker.pid, signal.SIGKILL)
    own_broker.end(signal.SIGKILL)
    assert not client.is_reachable(2.5)
    own_broker.start()
    assert client.committed("client.group", [("client.kill", 0)]) == {}
    assert client.end_offsets(["client.kill"]) == {("client.kill", 0): 0}


def test_a_broker_that_the_library_has_given_up_is_not_the_end_of_a_question(bootstrap, monkeypatch):
    client = Client(bootstrap)
    client.ensure_topics(["client.given_up"], 1)
    fill(bootstrap, "client.given_up", 3)
    known, refused = client._reader(), ["_DESTROY_BROKER", "OFFSET_NOT_AVAILABLE"]

    class Reader:
        def get_watermark_offsets(self, place, timeout):
            if refused:
                raise KafkaException(KafkaError(getattr(KafkaError, refused.pop())))
            return known.get_watermark_offsets(place, timeout=timeout)

        def __getattr__(self, name):
            return getattr(known, name)

    monkeypatch.setattr(client, "_reader", lambda *_: Reader())
    assert client.end_offsets(["client.given_up"]) == {("client.given_up", 0): 3}


@both_logs
def test_topics_are_made_with_as_many_replicas_as_the_settings_say(bootstrap):
    Client(Access(bootstrap, replication=1)).ensure_topics(["client.one-replica"], 1)
    with pytest.raises(MachineError, match=r"'client.three-replicas' cannot be created.*replication factor"):
        Client(Access(bootstrap, replication=3)).ensure_topics(["client.three-replicas"], 1)
