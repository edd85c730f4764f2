"""Another log as a store: what every store promises, record by record."""

import json
from collections import Counter

import pytest

from headwater.access import Access
from headwater.change import Change
from headwater.client.client import Client, admin, producer
from headwater.errors import UnavailableError, UsageError
from headwater.sink import Kafka
from headwater.sink.changes import parse_messages
from headwater.sink.store import Batch, Poison, SinkFeed, Superseded
from sink.contract import COLUMNS, Contract, batch, change, feed
from sink.killed import Killed
from support.servers import wait_until

SINKS = ("orders.store", "clicks.store", "orders.killed", "clicks.kafka")
TOPIC = "copies"


class KafkaPlace:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.target = Kafka(bootstrap, topic=TOPIC)
        self.expression = f"hw.sink.Kafka({bootstrap!r}, topic={TOPIC!r})"
        self.client = Client(bootstrap)
        gone = {TOPIC, *(f"headwater.sink.{sink}.position" for sink in SINKS)} & set(self.client.partitions())
        if gone:
            caretaker = admin(bootstrap)
            for answer in caretaker.delete_topics(list(gone)).values():
                answer.result(60)
            wait_until(lambda: not gone & set(self.client.partitions()), 20, "the deletion")
        # Kept in full, so that each record can be counted: their times are old enough to be compacted at
        # once.
        self.client.ensure_topics([TOPIC], 4, {"cleanup.policy": "delete", "retention.ms": "-1"})

    def records(self):
        """What a reader sees after the transactions' markers: Kafka confirms a commit before them."""

        def markers_are_there():
            ends = self.client.open_ends(TOPIC, 4)
            return self.client.end_offsets([TOPIC]) == {(TOPIC, n): end for n, end in ends.items()}

        wait_until(markers_are_there, 20, "the markers")
        return list(self.client.read([TOPIC]))

    def write_format(self, of, number):
        out = producer(self.bootstrap)  # format 1 is not written
        value = None if number in {None, 1} else str(number)
        out.produce(f"headwater.sink.{of.sink}.position", value, "format")
        assert out.flush(30) == 0

    def rows(self, feed):  # noqa: ARG002  the topic is the same for all
        found = {}
        for message in self.records():
            found[message.key().decode()] = message.value()
        return {key: json.loads(value) for key, value in found.items() if value is not None}


@pytest.fixture
def place(bootstrap):
    place = KafkaPlace(bootstrap)
    yield place
    place.client.close()


def test_rows_never_go_into_the_topic_of_a_sinks_positions():
    with pytest.raises(UsageError, match="hold the positions of sinks"):
        Kafka("localhost:9092", topic="headwater.sink.orders.store.position").check(feed())


class TestKafka(Contract, Killed):
    versions = False  # passes all changes on
    restores = False  # a log that loses what it has confirmed is none
    suspensions = 16
    kills = 3

    def compare(self, place, story):
        super().compare(place, story)
        totals = {0: [], 1: []}
        for message in place.records():
            if message.value() is not None:
                row = json.loads(message.value())
                totals[int(row["id"][0])].append(row["total"])
        for number, seen in totals.items():
            expected = [json.loads(each.value)["total"] for each in story.changes(number) if each.value]
            assert sorted(seen) == expected


def test_every_change_is_passed_on_in_the_order_of_its_key_with_its_time(place):
    store = place.target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("a", 2, 1), change("a", None, 2)))
    store.close()

    records = place.records()
    assert [message.key() for message in records] == [b"a"] * 3
    assert [message.value() and json.loads(message.value())["total"] for message in records] == [1, 2, None]
    assert {message.timestamp()[1] for message in records} == {1_769_853_600_000}


def test_keys_of_records_of_their_own_arrive_byte_for_byte(place, log):
    topic = log.create(partitions=1, policy="delete")
    keys = [None, b"", b"\xff\x00", "é".encode()]
    for key in keys:
        log.producer.produce(topic, b'{"id":"a"}', key)
    assert log.producer.flush(30) == 0
    changes, upto, refused = parse_messages(place.client.read([topic]), keyless=True)
    store = place.target.open(SinkFeed("clicks.kafka", "clicks", (), COLUMNS, append=True))
    store.claim([0])
    store.apply(Batch(changes, upto))
    store.close()

    assert refused == []
    assert Counter(message.key() for message in place.records()) == Counter(keys)


def test_records_of_their_own_are_removed_by_a_reset(place):
    store = place.target.open(SinkFeed("clicks.kafka", "clicks", (), COLUMNS, append=True))
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("a", 1, 1)))
    assert len(place.records()) == 2
    store.reset()

    assert place.records() == []
    assert dict(store.claim([0])) == {}
    store.close()


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("step", ["_transact", "_remove_records"])
def test_a_slow_reset_leaves_alone_what_a_successor_has_written(place, append, step):
    """A process that is suspended before it marks its reset, or before it removes anything.

    Another claims and writes meanwhile.
    """
    of = SinkFeed("clicks.kafka", "clicks", () if append else ("id",), COLUMNS, append=append)
    store, successor = place.target.open(of), place.target.open(of)
    store.claim([0, 1])
    store.apply(batch(*(change(f"k{n}", n, n) for n in range(2000)), change("z", 5, 0, partition=1)))
    act = getattr(store, step)

    def slow(*given):
        setattr(store, step, act)
        successor.claim([0, 1])
        successor.apply(batch(change("b", 3, 3000), change("c", 4, 4, partition=1)))
        return act(*given)

    setattr(store, step, slow)
    with pytest.raises(Superseded):
        store.reset()

    assert {"b", "c"} <= place.rows(of).keys()
    assert dict(successor.claim([0, 1])) == {0: 3001, 1: 5}
    store.claim([0, 1])
    assert {"b", "c"} <= place.rows(of).keys()
    store.close()
    successor.close()


def test_a_partition_that_was_claimed_and_not_written_is_shut_out_by_a_reset(place):
    place.client.ensure_topics(["clicks"], 2)
    of = SinkFeed("clicks.kafka", "clicks", ("id",), COLUMNS, log=Access(place.bootstrap))
    store, other = place.target.open(of), place.target.open(of)
    store.claim([0])
    other.claim([1])
    store.reset()

    with pytest.raises(Superseded):
        other.apply(batch(change("a", 1, 0, partition=1)))
    store.close()
    other.close()


def test_a_record_that_the_log_never_takes_is_named_and_nothing_is_written(place):
    store = place.target.open(feed())
    store.claim([0])
    huge = Change("b", json.dumps({"id": "b", "total": 1, "items": ["x" * 2_000_000]}), 0, 1, 0)

    with pytest.raises(Poison) as caught:
        store.apply(batch(change("a", 1, 0), huge))
    assert caught.value.offset == 1
    assert dict(store.claim([0])) == {}
    assert place.records() == []
    store.close()


def test_a_log_that_is_away_is_reported(monkeypatch):
    monkeypatch.setattr("headwater.sink.stores.kafka.TIMEOUT_S", 0.5)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 does not answer"):
        Kafka("127.0.0.1:1").open(feed())
