"""What commands ask of a queue, over a real socket."""

import uuid

import pytest
from confluent_kafka.admin import AdminClient

from client.share.test_share_consumer import produce, sharing
from headwater.client.share import queue_state
from headwater.client.share.queue_state import RecordState, queue_states, record_states, settle
from headwater.client.share.session import AckKind
from headwater.errors import MachineError, RequestError, UsageError
from support.servers import create_topic, wait_until


@pytest.fixture
def topic(bootstrap):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return create_topic(admin, f"states-{uuid.uuid4().hex[:8]}", partitions=2)


def shown(bootstrap, group, topic, number):
    return [
        (run.first, run.last, run.state, run.deliveries)
        for run in record_states(bootstrap, group, topic, number)
    ]


def test_the_states_of_a_queue_are_counted_listed_in_pages_and_settled(bootstrap, topic, monkeypatch):
    monkeypatch.setattr(queue_state, "STATES_MAX", 1)
    monkeypatch.setattr(queue_state, "RANGES_MAX", 1)
    group = f"sharers of {topic}"
    produce(bootstrap, topic, *(b"%d" % number for number in range(10)))  # the even ones are in partition 0
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: len(sharer.held) == 10)
        sharer.say(b"2", AckKind.ACCEPT)
        sharer.say(b"4", AckKind.RELEASE, delay_ms=60_000)
        sharer.settle()
        counts = queue_states(bootstrap, group, [topic])
        assert counts.keys() == {(topic, 0), (topic, 1)}
        state = counts[topic, 0]
        assert (state.start_offset, state.lag, state.waiting, state.in_flight) == (0, 4, 0, 3)
        assert (state.delayed, state.scheduled, state.expired) == (1, 0, 0)
        assert shown(bootstrap, group, topic, 0) == [
            (0, 0, RecordState.ACQUIRED, 1),
            (1, 1, RecordState.SETTLED, 0),
            (2, 2, RecordState.DELAYED, 1),
            (3, 4, RecordState.ACQUIRED, 1),
        ]
        assert next(record_states(bootstrap, group, topic, 0, 4)).first == 4

        done = settle(bootstrap, group, {(topic, 0): [(2, 3), (4, 4)]})[topic, 0]
        assert (done.records, done.held) == (1, [(3, 3), (4, 4)])
        done = settle(bootstrap, group, {(topic, 0): [(3, 4)]}, held_too=True)[topic, 0]
        assert (done.records, done.held) == (2, [])
        assert queue_states(bootstrap, group)[topic, 0].lag == 1


def test_groups_and_ranges_that_are_not_there_are_named(bootstrap, topic):
    group = f"sharers of {topic}"
    assert queue_states(bootstrap, "unknown") == {}
    assert list(record_states(bootstrap, "unknown", topic, 0)) == []
    with pytest.raises(RequestError, match="has used no such partition"):
        settle(bootstrap, "unknown", {(topic, 0): [(0, 0)]})
    produce(bootstrap, topic, b"a")
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: sharer.held)
        with pytest.raises(RequestError, match=r"offsets 0 to 5 of .*, expected 0 to 0 in order"):
            settle(bootstrap, group, {(topic, 0): [(0, 5)]})
    with pytest.raises(MachineError, match="does not answer"):
        queue_states("127.0.0.1:1", group)


def test_apache_kafka_says_what_it_counts_and_nothing_is_settled_there(kafka):
    kafka = kafka.bootstrap
    topic = create_topic(AdminClient({"bootstrap.servers": kafka}), "queue-states", partitions=2)
    group = f"sharers of {topic}"
    produce(kafka, topic, b"a", b"b", b"c")
    with sharing(kafka, topic) as sharer:
        sharer.until(lambda: len(sharer.held) == 3)
        wait_until(lambda: queue_states(kafka, group), what="the group's offsets")
        assert queue_states(kafka, group)[topic, 0].in_flight is None
        with pytest.raises(UsageError, match="Apache Kafka has no such request"):
            settle(kafka, group, {(topic, 0): [(0, 0)]})
        with pytest.raises(UsageError, match="Apache Kafka has no such request"):
            list(record_states(kafka, group, topic, 0))
