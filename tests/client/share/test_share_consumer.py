"""Our share consumer, on the embedded log and on Apache Kafka: what is said about a record counts, and nothing that is held is lost."""

import signal
import time
import uuid
from contextlib import closing, contextmanager

import pytest
from confluent_kafka.admin import AdminClient

from headwater.client.client import producer
from headwater.client.share.consumer import ShareConsumer
from headwater.client.share.group_settings import has_queues, set_group_settings
from headwater.client.share.membership import Membership, new_member_id
from headwater.client.share.session import Ack, AckKind
from headwater.errors import UsageError
from support.servers import both_logs, create_topic, wait_until

WAIT_MS = 100


@pytest.fixture
def topic(bootstrap):
    return create_topic(
        AdminClient({"bootstrap.servers": bootstrap}), f"queue-{uuid.uuid4().hex[:8]}", partitions=2
    )


def produce(bootstrap, topic, *values, **options):
    sender = producer(bootstrap)
    for number, value in enumerate(values):
        sender.produce(topic, value, partition=number % 2, **options)
    assert sender.flush(60) == 0


class Sharer:
    """A consumer and its membership, in the thread of a test."""

    def __init__(self, bootstrap, group, topic):
        self.member = new_member_id()
        self.consumer = ShareConsumer(bootstrap, group, self.member)
        self.membership = Membership(bootstrap, group, self.member, [topic], on_change=self.consumer.assign)
        self.membership.start()
        self.held, self.lost, self.refused = {}, [], []

    def turn(self, room=100, timeout_s=0.2):
        turn = self.consumer.turn(room, WAIT_MS, timeout_s)
        for place in turn.lost:
            self.lost.append(place)
            self.held = {name: each for name, each in self.held.items() if each.place != place}
        self.held.update({each.record.value: each for each in turn.deliveries})
        self.refused += turn.refused
        return turn

    def until(self, condition, room=100):
        def look():
            self.turn(room)
            return condition()

        wait_until(look, what="a turn of the consumer")

    def say(self, value, kind, **options):
        delivery = self.held.pop(value)
        self.consumer.acknowledge(delivery.place, Ack(delivery.record.offset, kind, **options))
        return delivery

    def settle(self):
        self.until(lambda: self.consumer.is_settled and not self.consumer.is_fetching, room=0)

    def close(self):
        self.consumer.close(10)
        self.membership.stop()


@contextmanager
def sharing(bootstrap, topic, group=None, **settings):
    group = group or f"sharers of {topic}"
    set_group_settings(
        bootstrap,
        group,
        {"share.auto.offset.reset": "earliest"} | {f"share.{key}": value for key, value in settings.items()},
    )
    with closing(Sharer(bootstrap, group, topic)) as sharer:
        yield sharer


@both_logs
def test_each_record_is_accepted_released_or_rejected_by_itself(bootstrap, topic):
    produce(bootstrap, topic, b"accept", b"release", b"reject", key=b"k", headers={"h": b"1"})
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: len(sharer.held) == 3)
        first = sharer.held[b"accept"]
        assert (first.topic, first.deliveries, first.record.key) == (topic, 1, b"k")
        assert first.record.headers == (("h", b"1"),)
        sharer.say(b"accept", AckKind.ACCEPT)
        sharer.say(b"reject", AckKind.REJECT)
        sharer.say(b"release", AckKind.RELEASE)

        sharer.until(lambda: b"release" in sharer.held)

        assert sharer.held.keys() == {b"release"}
        assert sharer.held[b"release"].deliveries == 2
        sharer.say(b"release", AckKind.ACCEPT)
        sharer.settle()
        assert not sharer.refused
        wait_until(lambda: sharer.membership.lag_records == 0, what="no lag")


@both_logs
def test_never_more_records_are_held_than_asked_for(bootstrap, topic):
    produce(bootstrap, topic, *(b"%d" % number for number in range(10)))
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: len(sharer.held) >= 3, room=3 - len(sharer.held))
        sharer.until(lambda: not sharer.consumer.is_fetching, room=0)

        assert len(sharer.held) == 3


@both_logs
def test_what_is_held_when_a_member_closes_goes_to_the_next(bootstrap, topic):
    produce(bootstrap, topic, b"left")
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: sharer.held)
    with sharing(bootstrap, topic) as other:
        other.until(lambda: other.held)

        assert other.held[b"left"].deliveries == 2


def test_a_lock_that_is_renewed_does_not_end(bootstrap, topic):
    produce(bootstrap, topic, b"long")
    with sharing(bootstrap, topic, **{"record.lock.duration.ms": "1000"}) as sharer:
        sharer.until(lambda: sharer.held)
        begun = time.monotonic()
        while time.monotonic() < begun + 1.5:
            delivery = sharer.held[b"long"]
            sharer.consumer.acknowledge(delivery.place, Ack(delivery.record.offset, AckKind.RENEW))
            limit = time.monotonic() + 0.25
            sharer.until(lambda limit=limit: time.monotonic() > limit, room=0)
        sharer.say(b"long", AckKind.ACCEPT)
        sharer.settle()

        assert not sharer.refused


def test_one_wrong_acknowledgement_does_not_take_the_others_with_it(bootstrap, topic):
    """A broker refuses all that a request says of a partition, so each is said again by itself."""
    sender = producer(bootstrap)
    for value in (b"a", b"b", b"c"):
        sender.produce(topic, value, partition=0)
    assert sender.flush(60) == 0
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: len(sharer.held) == 3)
        twice = sharer.say(b"b", AckKind.ACCEPT)
        sharer.settle()
        sharer.consumer.acknowledge(twice.place, Ack(twice.record.offset, AckKind.ACCEPT))
        sharer.say(b"a", AckKind.ACCEPT)
        sharer.say(b"c", AckKind.ACCEPT)
        sharer.settle()

        assert [each.ack.offset for each in sharer.refused] == [twice.record.offset]
        wait_until(lambda: sharer.membership.lag_records == 0, what="no lag")


def test_a_release_with_a_delay_comes_back_in_time_and_one_that_does_not_count_as_if_it_had_not_been(
    broker, bootstrap, topic
):
    produce(bootstrap, topic, b"later", b"uncounted")
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: len(sharer.held) == 2)
        released = time.monotonic()
        sharer.say(b"later", AckKind.RELEASE, delay_ms=300)
        sharer.say(b"uncounted", AckKind.RELEASE, uncounted=True)
        sharer.until(lambda: sharer.held)
        assert [(value, each.deliveries) for value, each in sharer.held.items()] == [(b"uncounted", 1)]

        sharer.until(lambda: len(sharer.held) == 2)

        assert time.monotonic() >= released + 0.3
        assert sharer.held[b"later"].deliveries == 2


def test_after_the_broker_has_restarted_the_member_joins_again_and_what_it_held_is_lost(own_broker):
    bootstrap = own_broker.bootstrap
    topic = create_topic(AdminClient({"bootstrap.servers": bootstrap}), "restarted", partitions=2)
    produce(bootstrap, topic, b"held")
    with sharing(bootstrap, topic) as sharer:
        sharer.until(lambda: sharer.held)
        own_broker.end(signal.SIGKILL)
        sharer.until(lambda: sharer.lost)
        assert not sharer.held
        own_broker.start()

        sharer.until(lambda: sharer.held)

        assert sharer.held[b"held"].deliveries == 2
        assert not sharer.consumer.trouble


def test_a_topic_that_is_created_later_is_read(own_broker):
    bootstrap = own_broker.bootstrap
    with sharing(bootstrap, "later", group="early") as sharer:
        sharer.turn()
        create_topic(AdminClient({"bootstrap.servers": bootstrap}), "later", partitions=2)
        produce(bootstrap, "later", b"come")

        sharer.until(lambda: sharer.held)


def test_a_log_with_a_password_and_tls_is_reached(guarded_broker):
    _, settings = guarded_broker
    log = settings.access
    admin = AdminClient(log.librdkafka())
    topic = create_topic(admin, "guarded", partitions=2)
    produce(log, topic, b"secret")
    with sharing(log, topic, group="guards") as sharer:
        sharer.until(lambda: sharer.held)
        sharer.say(b"secret", AckKind.ACCEPT)
        sharer.settle()
        assert not sharer.refused


def test_apache_kafka_has_no_queues_beyond_its_own(kafka):
    assert not has_queues(kafka.bootstrap, "plain", {"headwater.queue": "true"})


@both_logs
def test_a_setting_that_the_log_refuses_is_a_wrong_declaration(bootstrap):
    with pytest.raises(UsageError, match="the log refuses its settings"):
        set_group_settings(bootstrap, "wrong", {"share.delivery.deliveries.limit": "1000"})
