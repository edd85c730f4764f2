"""The journal of effects through crashes and zombies, on the embedded log and on Apache Kafka."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import msgspec
import pytest
from msgspec.structs import replace

from headwater.client.client import Client
from headwater.sink import Call, Webhook
from headwater.sink.effects.effect import JournalEntry, make_effect
from headwater.sink.effects.journal import Journal, SourceMark
from headwater.sink.store import Superseded
from headwater.testing import SettableClock
from sink.contract import batch, change
from sink.receivers import attempts, effect_feed, web_receiver
from support.servers import both_logs, wait_until


def journal(feed):
    return Journal(feed.log, feed.sink, feed.topic)


def entry(feed, offset, key="a"):
    return JournalEntry(make_effect(feed, change(key, offset, offset), "live"), due_ms=1000 + offset)


@both_logs
def test_a_claim_finds_what_is_unfinished_in_its_order_and_the_mark(bootstrap):
    feed = effect_feed(bootstrap)
    kept = journal(feed)
    page, mark, entries = kept.claim([0])[0]
    assert (mark, entries) == (None, [])
    three = [entry(feed, offset) for offset in (3, 4, 5)]
    page.write([*(page.entry(each) for each in three), page.mark(SourceMark(taken=6, reached=6))])
    later = replace(three[0], attempts=2, due_ms=99, reason="status 500")
    page.write([page.ended(three[1].effect.id), page.entry(later)])

    page, mark, entries = kept.claim([0])[0]

    assert mark == SourceMark(taken=6, reached=6)
    assert entries == [later, three[2]]
    page.write([page.ended(each.effect.id) for each in (later, three[2])])
    assert kept.claim([0])[0][1:] == (mark, [])
    kept.close()


@both_logs
def test_a_superseded_process_writes_nothing_not_even_what_was_on_its_way(bootstrap):
    feed = effect_feed(bootstrap)
    first, second = journal(feed), journal(feed)
    old = {partition: found[0] for partition, found in first.claim([0, 1]).items()}
    old[0].prepare([old[0].entry(entry(feed, 1)), old[0].mark(SourceMark(taken=2, reached=2))])
    new, mark, entries = second.claim([0])[0]
    assert (mark, entries) == (None, [])
    new.write([new.mark(SourceMark(taken=7, reached=7))])

    with pytest.raises(Superseded, match=r"partition 0 of sink .* was claimed by another process"):
        old[0].commit()
    with pytest.raises(Superseded):
        old[0].write([old[0].mark(SourceMark(taken=3, reached=3))])
    old[1].write([old[1].mark(SourceMark(taken=9, reached=9))])  # the other partition is still its own

    assert old[0].broken
    assert not old[1].broken
    found = second.claim([0, 1])
    assert [found[n][1].taken for n in (0, 1)] == [7, 9]
    assert found[0][2] == []
    first.close()
    second.close()


@both_logs
def test_the_journal_is_as_wide_as_its_topic_and_grows_with_it(bootstrap):
    feed = effect_feed(bootstrap)
    Client(bootstrap).ensure_topics([feed.topic], 3)
    kept = journal(feed)
    kept.claim([1])
    assert Client(bootstrap).partitions()[f"{feed.sink}.effects"] == 3

    page, _, _ = kept.claim([4])[4]
    page.write([page.mark(SourceMark(taken=1))])

    assert Client(bootstrap).partitions()[f"{feed.sink}.effects"] == 5
    assert kept.claim([4])[4][1] == SourceMark(taken=1)
    kept.close()


def test_a_log_that_was_away_is_waited_for_and_nothing_is_delivered_twice(own_broker):
    delivered, clock = [], SettableClock()

    def deliver(effect):
        delivered.append(effect.key)
        if len(delivered) == 1:
            raise RuntimeError

    patient = msgspec.structs.replace(effect_feed(own_broker.bootstrap), session_ms=60_000)
    store = Call(deliver, clock=clock).open(patient)
    store.claim([0])
    store.apply(batch(change("a", 1, 0)))
    wait_until(lambda: attempts(store) == {"a": 1} and store.waiting() == 1, 10, "the first attempt")
    own_broker.end(signal.SIGKILL)
    clock.advance(6)
    wait_until(lambda: delivered == ["a", "a"], 10, "the second attempt")
    own_broker.start()

    wait_until(lambda: store.waiting() == 0, 30, "the record of it")
    store.apply(batch(change("b", 1, 1)))
    wait_until(lambda: store.waiting() == 0, 10, "the next change")
    assert delivered == ["a", "a", "b"]
    assert dict(store.claim([0])) == {0: 2}
    store.close()


@pytest.mark.parametrize("seconds", [7, 3600])
def test_a_process_superseded_while_it_waited_delivers_nothing_more(bootstrap, seconds):
    feed, clock = effect_feed(bootstrap), SettableClock()
    first, second = [], []

    def fail(effect):
        first.append(effect.key)
        raise RuntimeError

    old = Call(fail, clock=clock).open(feed)
    old.claim([0])
    old.apply(batch(change("a", 1, 0)))
    wait_until(lambda: attempts(old) == {"a": 1} and old.waiting() == 1, 10, "the first attempt")
    new = Call(lambda effect: second.append(effect.key), clock=clock).open(feed)
    new.claim([0])
    clock.advance(seconds)

    wait_until(lambda: old._courier.queues()[0].lost, 10, "the end of the old one")
    wait_until(lambda: new.waiting() == 0, 10, "the new one's call")
    assert (first, second) == (["a"], ["a"])
    with pytest.raises(Superseded):
        old.apply(batch(change("a", 2, 1)))
    old.close()
    new.close()


def test_a_process_superseded_while_it_slept_on_an_answer_of_the_journal_delivers_nothing(bootstrap):
    feed, clock = effect_feed(bootstrap), SettableClock()
    first, second = [], []
    old = Call(lambda effect: first.append(effect.key), clock=clock).open(feed)
    old.claim([0])
    new = Call(lambda effect: second.append(effect.key), clock=clock).open(feed)
    page = old._courier.queues()[0].partition
    commit = page.commit

    def suspended(times=1):
        commit(times)
        clock.advance(3600)
        new.claim([0])

    page.commit = suspended
    old.apply(batch(*(change(f"k{n}", n, n) for n in range(10))))

    wait_until(lambda: old._courier.queues()[0].lost, 10, "the end of the old one")
    wait_until(lambda: new.waiting() == 0, 10, "the new one's calls")
    assert (len(first), len(second)) == (0, 10)
    old.close()
    new.close()


# Processes that die or sleep: each drives a store through the same 60 changes, ten at a time, and is ended at
# a point of its own.

CHANGES, PART, KEYS, DRIVER_SESSION_MS = 60, 10, 7, 1_000
DRIVER = (
    f"CHANGES, PART, KEYS, SESSION_MS = {CHANGES}, {PART}, {KEYS}, {DRIVER_SESSION_MS}"
    """
import os, signal, sys, threading
from headwater.access import Access
from headwater.clock import SystemClock
from headwater.sink.effects.effect_store import EffectStore
from headwater.sink.store import Superseded
from headwater.sink.effects.webhook import Poster
from sink.contract import batch, change
from sink.receivers import attempts, effect_feed

bootstrap, topic, url, point = sys.argv[1:]

def at(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

class Doomed(Poster):
    def deliver(self, effect):
        at("before send")
        outcome = super().deliver(effect)
        at("after send")
        return outcome

feed = effect_feed(bootstrap, topic=topic, session_ms=SESSION_MS)
store = EffectStore(feed, Doomed(url, "", 5, 3, SystemClock()), concurrency=3)
taken = store.claim([0]).get(0, 0)
print("claimed", taken, flush=True)
part = []
try:
    for offset in range(taken, CHANGES):
        part.append(change(f"k{offset % KEYS}", offset, offset))
        if len(part) == PART or offset == CHANGES - 1:
            at("before intent")
            store.apply(batch(*part))
            at("after intent")
            part = []
            while store.waiting():
                threading.Event().wait(0.01)
                if store._courier.queues()[0].lost:
                    break
            at("after outcome")
except Superseded:
    print("superseded", flush=True)
store.close()
print("done", flush=True)
"""
)
KILLS = int(os.environ.get("TEST_EFFECT_KILLS", "1"))
POINTS = ["before intent", "after intent", "before send", "after send", "after outcome"]


@contextmanager
def driver(feed, receiver, point="never"):
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", DRIVER, str(feed.log), feed.topic, receiver.url, point]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=120)
        process.stdout.close()


@pytest.fixture
def receiver():
    with web_receiver() as receiver:
        yield receiver


def expected(feed):
    return [make_effect(feed, change(f"k{n % KEYS}", n, n), "live").id for n in range(CHANGES)]


def assert_delivered(feed, receiver):
    """Every id, no other; those of a key in order; a double is the same call again."""
    ids = expected(feed)
    assert set(receiver.ids()) == set(ids)
    bodies = {(call.id, call.body) for call in receiver.taken}
    assert len(bodies) == CHANGES
    first = list(dict.fromkeys(receiver.ids()))
    for key in range(KEYS):
        assert [each for each in first if each in ids[key::KEYS]] == ids[key::KEYS]


def test_a_process_killed_before_or_after_any_record_or_call_leaves_nothing_undelivered(bootstrap, receiver):
    feed = effect_feed(bootstrap)
    for point in POINTS:
        with driver(feed, receiver, point) as process:
            assert process.wait(timeout=120) == -signal.SIGKILL, point
    with driver(feed, receiver) as process:
        assert process.wait(timeout=120) == 0

    assert_delivered(feed, receiver)
    doubles = len(receiver.taken) - CHANGES
    assert (
        1 <= doubles <= 3 * len(POINTS) + PART
    )  # what was called and not recorded: no more than was on its way


def test_a_process_killed_at_any_time_leaves_nothing_undelivered(bootstrap, receiver):
    feed, chance = effect_feed(bootstrap), random.Random(8)
    for _ in range(KILLS):
        with driver(feed, receiver) as process:
            calls = len(receiver.calls) + chance.randrange(1, 20)
            wait_until(lambda n=calls: len(receiver.calls) >= n, 20, "calls")
            process.kill()
    with driver(feed, receiver) as process:
        assert process.wait(timeout=120) == 0

    assert_delivered(feed, receiver)


def test_a_process_that_slept_while_it_was_replaced_does_not_move_the_journal(bootstrap, receiver):
    feed = effect_feed(bootstrap)
    with driver(feed, receiver) as zombie:
        wait_until(lambda: len(receiver.taken) >= 5, 20, "the first calls")
        zombie.send_signal(signal.SIGSTOP)
        asleep = time.monotonic()
        successor = Webhook(receiver.url, concurrency=2).open(feed)
        taken = successor.claim([0])[0]
        successor.apply(batch(*(change(f"k{n % KEYS}", n, n) for n in range(taken, CHANGES))))
        wait_until(lambda: successor.waiting() == 0, 20, "the successor's calls")
        known = set(receiver.ids())
        calls = len(receiver.taken)
        # No process is replaced sooner: until then its last proof holds, and it may repeat all that it has taken
        # in hand.
        wait_until(
            lambda: time.monotonic() > asleep + DRIVER_SESSION_MS / 1000, what="the end of its session"
        )
        zombie.send_signal(signal.SIGCONT)
        said = zombie.stdout.read()
        assert zombie.wait(timeout=120) == 0

    assert "superseded" in said
    assert_delivered(feed, receiver)
    later = receiver.ids()[calls:]
    assert len(later) <= 2 * 3  # what it held in its hands
    assert set(later) <= known
    assert dict(successor.claim([0])) == {0: CHANGES}
    successor.close()
