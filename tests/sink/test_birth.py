"""Where a new sink of effects begins: what was there before it is delivered as old, or not at all."""

import threading
from contextlib import contextmanager

import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.sink import Call
from headwater.sink.effects.journal import Journal, JournalPartition, SourceMark
from headwater.sink.loop.loop import Loop
from headwater.sink.loop.sinks import Sinks
from sink.contract import batch, change
from sink.receivers import effect_feed, idle
from support.servers import both_logs, wait_until


class Order(hw.Event):
    id: str
    total: int


@pytest.fixture
def delivered():
    return []


@pytest.fixture
def topic(log):
    """Two partitions with three records each."""
    name = log.create()
    for partition in (0, 1):
        log.put(name, {key: {"id": key, "total": 0} for key in "abc"}, partition=partition)
    return name


@contextmanager
def running(log, feed, target, ask=None):
    loop = Loop(log.log, feed.sink, feed.topic, target, ask or (lambda: feed), session_ms=1500)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop()
        thread.join(120)
    assert not thread.is_alive()


def totals(delivered):
    return sorted((effect.row["total"], effect.mode) for effect in delivered)


@both_logs
def test_a_new_sink_delivers_what_comes_and_not_what_was_there(log, topic, delivered):
    feed = effect_feed(log.log, topic=topic)
    with running(log, feed, Call(delivered.append)) as loop:
        wait_until(lambda: len(loop.positions) == 2, 20, "the claims")
        log.put(topic, {"a": {"id": "a", "total": 1}, "z": {"id": "z", "total": 2}}, partition=0)
        wait_until(lambda: len(delivered) == 2, 20, "what is new")
    with running(log, feed, Call(delivered.append, start="beginning")) as loop:
        log.put(topic, {"a": {"id": "a", "total": 3}}, partition=1)
        wait_until(lambda: len(delivered) >= 3, 20, "what came later")
        idle(loop._store)

    assert totals(delivered) == [(1, "live"), (2, "live"), (3, "live")]


def test_from_the_beginning_what_was_there_is_delivered_as_a_replay_and_then_as_it_comes(
    log, topic, delivered
):
    feed = effect_feed(log.log, topic=topic)
    with running(log, feed, Call(delivered.append, start="beginning")):
        wait_until(lambda: len(delivered) == 6, 20, "what was there")
        log.put(topic, {"a": {"id": "a", "total": 1}})
        wait_until(lambda: len(delivered) == 7, 20, "what is new")

    assert totals(delivered) == [(0, "replay")] * 6 + [(1, "live")]


def test_a_sink_that_waited_for_its_topic_and_its_first_result_delivers_all_of_it(log, delivered):
    topic, there = log.name(), threading.Event()
    feed = effect_feed(log.log, topic=topic)
    with running(log, feed, Call(delivered.append), lambda: feed if there.is_set() else None):
        journal = Journal(feed.log, feed.sink, topic)
        wait_until(lambda: f"{feed.sink}.effects" in journal._client.partitions(), 20, "the journal")
        wait_until(lambda: journal._recorded_start() is not None, 20, "the note of its beginning")
        log.create(topic)
        log.put(topic, {"a": {"id": "a", "total": 1}})
        there.set()
        wait_until(lambda: len(delivered) == 1, 20, "the first row")

    assert totals(delivered) == [(1, "live")]


def test_what_comes_while_a_sink_may_not_begin_is_delivered(log, topic, delivered, tmp_path):
    app = hw.App("shop")
    app.stream("orders", Order, key="id", time=hw.ARRIVAL, topic=topic)
    app.sink("orders", Call(delivered.append), name=f"{topic}.called")
    plans, stop = threading.Event(), threading.Event()
    sinks = Sinks(
        log.log, app.graph(), tmp_path, session_ms=1500, may_begin=lambda sink: bool(sink) and plans.is_set()
    )
    thread = threading.Thread(target=sinks.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: sinks._beginnings, 20, "the look where it begins")
        assert f"{topic}.called.effects" not in Client(log.log).partitions()
        log.put(topic, {"a": {"id": "a", "total": 1}})
        plans.set()
        wait_until(lambda: delivered, 20, "what came meanwhile")
    finally:
        stop.set()
        thread.join(120)

    assert totals(delivered) == [(1, "live")]


def test_all_partitions_begin_where_they_were_when_the_first_was_claimed(log, topic, delivered):
    feed = effect_feed(log.log, topic=topic)
    first, second = (Call(delivered.append).open(feed) for _ in range(2))
    assert dict(first.claim([0])) == {0: 3}
    log.put(topic, {"a": {"id": "a"}}, partition=1)

    assert dict(second.claim([1, 2])) == {1: 3}
    first.close()
    second.close()


@pytest.mark.parametrize(("start", "expected"), [("now", [3]), ("beginning", [0, 1, 2, 3])])
def test_a_replay_delivers_the_time_before_the_sink_only_where_that_is_asked_for(
    log, topic, delivered, start, expected
):
    feed = effect_feed(log.log, topic=topic)
    store = Call(delivered.append, mode="replay", start=start).open(feed)
    records = [change("k", n, n) for n in range(4)]
    taken = store.claim([0]).get(0, 0)
    store.apply(batch(*records[taken:]))
    idle(store)
    assert [effect.row["total"] for effect in delivered] == expected
    delivered.clear()
    store.reset()
    assert dict(store.claim([0])) == {}
    store.apply(batch(*records))
    idle(store)
    store.close()

    assert [(effect.row["total"], effect.mode) for effect in delivered] == [(n, "replay") for n in expected]


def test_of_two_that_begin_a_sink_one_notes_where(log, topic):
    feed = effect_feed(log.log, topic=topic)
    first, second = (Journal(feed.log, feed.sink, topic) for _ in range(2))
    noted = first.start_offsets()
    log.put(topic, {"a": {"id": "a"}})

    assert noted.ends == {0: 3, 1: 3}
    assert second.start_offsets() == noted
    first.close()
    second.close()


def test_a_journal_from_before_beginnings_were_noted_continues_as_it_was(log, topic, delivered):
    feed = effect_feed(log.log, topic=topic)
    journal = Journal(feed.log, feed.sink, topic)
    journal.ensure([])
    page = JournalPartition(feed.log, feed.sink, journal.topic, 0)
    page.take_over()
    page.write([page.mark(SourceMark(taken=2, reached=2))])
    journal.close()
    store = Call(delivered.append).open(feed)

    assert dict(store.claim([0, 1])) == {0: 2}
    store.close()
