"""OpenSearch as a store: what every store promises, by versions of documents."""

import json
import uuid

import opensearchpy
import pytest
from confluent_kafka.admin import NewPartitions

from headwater.change import Change
from headwater.client.client import Client
from headwater.errors import UnavailableError, UsageError
from headwater.sink import OpenSearch
from headwater.sink.loop.loop import Loop
from headwater.sink.store import Batch, Poison, SinkFeed, Superseded
from headwater.sink.stores import opensearch as module
from sink.contract import COLUMNS, Contract, batch, change, feed
from sink.killed import Killed
from sink.running import Running
from support.servers import OpenSearchProcess, wait_until
from support.viewlog import ViewLog


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    process = OpenSearchProcess(tmp_path_factory.mktemp("opensearch"))
    process.start()
    yield process
    process.end()


SETTINGS = {"number_of_shards": 1, "number_of_replicas": 0}


class OpenSearchPlace:
    def __init__(self, server):
        self.url = server.url
        self.target = OpenSearch(server.url, settings=SETTINGS)
        self.expression = f"hw.sink.OpenSearch({server.url!r}, settings={SETTINGS!r})"
        self.client = opensearchpy.OpenSearch(server.url, timeout=30)
        self.client.indices.delete(index="orders,clicks,headwater-positions", ignore_unavailable=True)

    def save(self):
        """The positions; documents that are newer than these are written again with the same outcome."""
        self.client.indices.refresh(index="headwater-positions")
        hits = self.client.search(body={"size": 1000}, index="headwater-positions")["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    def restore(self, saved):
        for name, source in saved.items():
            self.client.index(index="headwater-positions", id=name, body=source)

    def write_format(self, of, number):
        name, index = f"{of.sink}:-3", "headwater-positions"
        if number is None:
            self.client.delete(index=index, id=name)
        else:
            body = {"sink": of.sink, "partition": -3, "claim": number, "offset": -1}
            self.client.index(index=index, id=name, body=body)

    def rows(self, feed):
        self.client.indices.refresh(index=feed.topic)
        hits = self.client.search(body={"size": 1000}, index=feed.topic)["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}


@pytest.fixture
def place(server):
    place = OpenSearchPlace(server)
    yield place
    place.client.close()


class TestOpenSearch(Contract, Killed):
    kills = 3
    records = 260
    longest_s = 0.1


def test_a_bulk_that_comes_late_changes_nothing(place):
    """A holder that was stopped after it read the claim: its documents are older than the stored ones."""
    store = place.target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("b", 1, 1)))
    successor = place.target.open(feed())
    successor.claim([0])
    successor.apply(batch(change("a", 2, 2), change("b", None, 3)))
    late = [change("a", 9, 0), change("b", 9, 1)]
    for body, part in store._parts(late):
        store._bulk(body, part)

    assert {key: row["total"] for key, row in place.rows(feed()).items()} == {"a": 2}
    with pytest.raises(Superseded):
        store.apply(batch(change("a", 3, 2)))
    assert (
        place.client.indices.get_settings(index="orders")["orders"]["settings"]["index"]["gc_deletes"] == "1h"
    )
    store.close()
    successor.close()


def test_a_bulk_of_the_partition_that_a_key_has_left_changes_nothing(place):
    store = place.target.open(feed())
    store.claim([0, 1])
    store.apply(batch(change("a", 1, 1_000_000)))
    store.apply(batch(change("a", 2, 0, partition=1)))
    for body, part in store._parts([change("a", 9, 1_000_000)]):
        store._bulk(body, part)

    assert {key: row["total"] for key, row in place.rows(feed()).items()} == {"a": 2}
    store.close()


@pytest.fixture
def grown(place, log):
    """A sink of a topic with two partitions that is given more of them."""
    topic = log.create(partitions=2)
    of = SinkFeed(f"{topic}.search", topic, ("id",), {"id": "STRING", "n": "BIGINT"})
    rows = {f"k{n}": {"id": f"k{n}", "n": 1} for n in range(40)}
    for _ in range(3):  # so that the offsets of the first two partitions are ahead of all that come later
        log.put(topic, rows)
    running = Running(Loop(log.log, of.sink, topic, place.target, lambda: of))

    def shown():
        return {key: row["n"] for key, row in place.rows(of).items()}

    def grow(partitions):
        wait_until(lambda: running.loop.counters.applied == 120, 60, "the first rows")
        assert len(shown()) == 40
        log.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)
        wait_until(lambda: Client(log.log).partitions()[topic] == partitions, 30, "the new partitions")
        fresh = ViewLog(log.log)
        fresh.put(topic, {key: row | {"n": 2} for key, row in rows.items()} | {"k0": None})
        return {key: 2 for key in rows if key != "k0"}

    yield running, grow, shown
    running.stop()


def test_updates_of_keys_that_more_partitions_have_moved_take_effect(grown):
    running, grow, shown = grown
    expected = grow(4)

    wait_until(lambda: shown() == expected, 90, "the rows of all four partitions")
    running.stop()
    assert running.error is None


def test_partitions_that_move_keys_to_smaller_numbers_are_refused(grown):
    running, grow, _ = grown
    grow(3)

    wait_until(lambda: running.error is not None, 90, "the refusal")
    assert isinstance(running.error, UsageError)
    assert "from 2 to 3" in str(running.error)
    assert "headwater topic delete" in str(running.error)


@pytest.mark.parametrize("step", ["_forget_offsets", "_check_mark"])
def test_a_slow_reset_leaves_alone_what_a_successor_has_written(place, step):
    """A process that is suspended before it forgets the offsets, or before it removes the index.

    Another claims and writes meanwhile.
    """
    store, successor = place.target.open(feed()), place.target.open(feed())
    store.claim([0, 1])
    store.apply(batch(change("a", 1, 0), change("z", 1, 0, partition=1)))
    act = getattr(store, step)

    def slow(*given):
        setattr(store, step, act)
        assert dict(successor.claim([0, 1])) == {}
        successor.apply(batch(change("b", 3, 0), change("c", 4, 4, partition=1)))
        return act(*given)

    setattr(store, step, slow)
    with pytest.raises(Superseded):
        store.reset()

    assert place.rows(feed()).keys() == {"b", "c"}
    assert dict(successor.claim([0, 1])) == {0: 1, 1: 5}
    store.close()
    successor.close()


def test_a_successor_whose_rows_a_slow_reset_has_removed_starts_from_nothing(place):
    """The server cannot remove an index on a condition: rows that are lost by it are written again."""
    store, successor = place.target.open(feed()), place.target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0)))
    look, looks = store._check_mark, []

    def slow(mark):
        look(mark)
        looks.append(mark)
        if len(looks) == 2:
            successor.claim([0])
            successor.apply(batch(change("b", 3, 0)))

    store._check_mark = slow
    store.reset()

    with pytest.raises(Superseded):
        successor.apply(batch(change("c", 4, 1)))
    assert dict(successor.claim([0])) == {}
    successor.apply(batch(change("b", 3, 0), change("c", 4, 1)))
    assert place.rows(feed()).keys() == {"b", "c"}
    store.close()
    successor.close()


def test_a_reset_that_was_marked_while_a_partition_was_claimed_is_finished_by_that_claim(place):
    store, other = place.target.open(feed()), place.target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0)))
    take, store._finish_reset = other._take, None  # the process that resets ends after its mark

    def overtaken(numbers):
        other._take = take
        with pytest.raises(TypeError):
            store.reset()
        return take(numbers)

    other._take = overtaken
    assert dict(other.claim([0])) == {}
    other.apply(batch(change("b", 3, 0)))
    place.target.open(feed()).claim([1])
    other.apply(batch(change("c", 4, 1)))

    assert place.rows(feed()).keys() == {"b", "c"}
    store.close()
    other.close()


def test_a_document_that_does_not_fit_is_named(place):
    store = place.target.open(feed())
    store.claim([0])
    poison = Change("b", '{"id":"b","total":"many"}', 0, 1, 0)

    with pytest.raises(Poison, match="mapper_parsing_exception") as caught:
        store.apply(batch(change("a", 1, 0), poison))
    assert (caught.value.partition, caught.value.offset) == (0, 1)
    assert dict(store.claim([0])) == {}
    store.apply(batch(change("a", 1, 0), p0=2))
    assert dict(store.claim([0])) == {0: 2}
    store.close()


def test_a_large_batch_goes_in_parts_of_bounded_size(place, monkeypatch):
    monkeypatch.setattr(module, "BULK_BYTES", 2_000)
    store = place.target.open(feed())
    store.claim([0])
    changes = [change(f"k{n}", n, n) for n in range(60)]
    parts = list(store._parts(changes))
    store.apply(batch(*changes))

    assert len(parts) > 3
    assert max(len(body) for body, _ in parts) <= 2_000
    assert len(place.rows(feed())) == 60
    store.close()


def test_a_row_whose_version_is_smaller_is_passed_over_and_of_equal_ones_the_later_counts(place):
    store = place.target.open(feed())
    store.claim([0])

    def put(*rows):
        made = [
            Change("a", json.dumps({"id": "a", "total": t, "_version": v}), 0, o, 0, v) for t, o, v in rows
        ]
        store.apply(Batch(made, {0: made[-1].offset + 1}))
        return place.rows(feed())["a"]["total"]

    assert put((31, 0, 31)) == 31
    assert put(*((n, n, n) for n in range(1, 32))) == 31
    assert put((32, 40, 32)) == 32
    assert put((33, 41, 32)) == 33
    store.close()


def test_rows_are_found_by_words_and_columns_are_added(place):
    store = place.target.open(SinkFeed("orders.store", "orders", ("id",), COLUMNS | {"title": "STRING"}))
    store.claim([0])
    row = {"id": "a", "title": "Red running shoes", "at": "2026-01-31T10:00:00.000001Z"}
    store.apply(batch(Change("a", json.dumps(row), 0, 0, 0)))
    store.close()
    place.rows(feed())

    found = place.client.search(body={"query": {"match": {"title": "shoes"}}}, index="orders")
    assert found["hits"]["hits"][0]["_source"] == row
    with pytest.raises(UsageError, match="does not fit sink"):
        place.target.open(SinkFeed("orders.store", "orders", ("id",), COLUMNS | {"total": "STRING"}))


def test_a_server_that_is_away_is_reported_without_its_password():
    secret = uuid.uuid4().hex
    target = OpenSearch(f"http://me:{secret}@127.0.0.1:1")

    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:1 does not answer") as caught:
        target.open(feed())
    assert secret not in str(caught.value) + repr(target)
    with pytest.raises(UsageError, match="reserved for sinks"):
        OpenSearch("http://localhost", index="headwater-positions").check(feed())
    with pytest.raises(UsageError, match="reserved for sinks"):
        target.check(SinkFeed("s", "orders", ("id",), COLUMNS | {"headwater_version": "INT"}))
    with pytest.raises(UsageError, match="no index of such a name"):
        OpenSearch("http://localhost", index="Orders*").check(feed())
