"""A Python function as the outside: what every effect promises, with the shortest way to a receiver."""

import json
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from headwater.change import Change
from headwater.client.client import Client, producer
from headwater.errors import UnavailableError, UsageError
from headwater.sink import Call, Effect, Reject
from headwater.sink.effects.call import Caller
from headwater.sink.effects.effect import make_effect
from headwater.sink.effects.effect_store import EffectStore
from headwater.sink.effects.schedule import JITTER, PAUSES_S
from headwater.sink.store import Batch, Poison, SinkFeed, Superseded
from headwater.testing import SettableClock
from sink.contract import Contract, batch, change
from sink.receivers import effect_feed, failed, idle, opening
from support.servers import wait_until
from support.viewlog import ViewLog


class Recorder:
    """A function that keeps the effects that it gets."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.fail = lambda _: None
        self.attempts = 0
        self.lock = threading.Lock()

    def __call__(self, effect: Effect) -> None:
        with self.lock:
            self.attempts += 1
            self.fail(effect)
            self.effects.append(effect)

    def totals(self) -> list:
        return [effect.row.get("total") for effect in self.effects]


class OnLog:
    """A target whose feeds are in the test's log, under names of the test's own."""

    def __init__(self, target, bootstrap) -> None:
        self.target = target
        self.names: dict[str, SinkFeed] = {}
        self.bootstrap = bootstrap
        self.stores = []

    def feed(self, feed: SinkFeed) -> SinkFeed:
        return self.names.setdefault(feed.sink, effect_feed(self.bootstrap))

    def open(self, feed: SinkFeed):
        self.stores.append(self.target.open(self.feed(feed)))
        return self.stores[-1]


class Place:
    def __init__(self, bootstrap) -> None:
        self.delivered = Recorder()
        self.target = OnLog(Call(self.delivered), bootstrap)

    def write_format(self, of: SinkFeed, number: int | None) -> None:
        topic, out = f"{self.target.feed(of).sink}.effects", producer(self.target.bootstrap)
        marks = {}
        for message in Client(self.target.bootstrap).read([topic]):
            if message.key() == b"mark":
                marks[message.partition()] = json.loads(message.value())
        assert marks
        for partition, mark in marks.items():
            mark.pop("format", None)
            value = json.dumps(mark if number is None else mark | {"format": number})
            out.produce(topic, value, "mark", partition)
        assert out.flush(30) == 0

    def rows(self, feed: SinkFeed):
        wait_until(lambda: not any(store.waiting() for store in self.target.stores), 10, "nothing waits")
        rows: dict[str, dict] = {}
        for effect in self.delivered.effects:
            if effect.type.startswith(self.target.feed(feed).topic):
                rows.pop(effect.key, None)
                if not effect.deleted:
                    rows[effect.key] = effect.row
        return rows


class TestContract(Contract):
    versions = False
    restores = False  # its memory is in the log
    empties = False

    @pytest.fixture
    def place(self, bootstrap):
        return Place(bootstrap)

    def test_reset_forgets_rows_and_offsets(self, place, store):
        """Of effects, a reset forgets only the offsets: what was delivered is not delivered again."""
        store.claim([0])
        store.apply(batch(change("a", 1, 0), change("b", 1, 1)))
        store.reset()
        assert dict(store.claim([0])) == {}
        store.apply(batch(change("b", 3, 0), change("c", 4, 2)))

        assert self.totals(place) == {"a": 1, "b": 1, "c": 4}
        assert dict(store.claim([0])) == {0: 3}


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def delivered():
    return Recorder()


@pytest.fixture
def opened(bootstrap, delivered, clock):
    with opening(bootstrap, partial(Call, delivered, clock=clock)) as start:
        yield start


def test_a_function_gets_row_id_mode_and_kind_of_each_change(opened, delivered):
    store = opened()
    store.apply(batch(change("a", 1, 7), change("a", None, 8)))
    idle(store)

    first, second = delivered.effects
    topic = opened.feed.topic
    assert (first.type, first.mode, first.key, first.deleted) == (f"{topic}.changed", "live", "a", False)
    assert first.row["total"] == 1
    assert "_revision" not in first.row
    assert first.id.startswith(f"{topic}-0-7-")
    assert (second.type, second.row, second.deleted) == (f"{topic}.deleted", {"id": "a"}, True)


def test_ids_differ_between_facts_and_are_the_same_for_one(bootstrap):
    feed = effect_feed(bootstrap)
    first = make_effect(feed, change("a", 1, 7), "live").id

    assert make_effect(feed, change("a", 1, 7), "replay").id == first
    others = [change("a", 1, 8), change("b", 1, 7), change("a", 1, 7, partition=1)]
    assert first not in {make_effect(feed, each, "live").id for each in others}


def test_an_exception_is_tried_again_by_the_table_of_pauses_until_it_is_dead(opened, delivered, clock):
    def never(effect):
        if effect.key == "a":
            raise RuntimeError("out of order")

    delivered.fail = never
    store = opened()
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    for attempt, pause in enumerate(PAUSES_S[1:], 2):
        clock.advance(pause * 0.99)
        store.apply(batch(change("b", attempt, attempt)))  # would come after one that was due
        wait_until(lambda n=attempt: n in delivered.totals(), 10, "the other key")
        assert delivered.attempts == 2 * attempt - 2
        clock.advance(pause * (JITTER + 0.02))
        if attempt < len(PAUSES_S):
            failed(store, a=attempt)
    idle(store)

    (letter,) = Client(opened.feed.log).read([f"{opened.feed.topic}.dead"])
    headers = {name: value.decode() for name, value in letter.headers()}
    assert headers["reason"] == "8 attempts failed, the last with RuntimeError: out of order"
    assert (headers["partition"], headers["offset"]) == ("0", "0")
    assert json.loads(letter.value())["id"] == "a"
    assert delivered.attempts == 8 + 7


def test_a_rejected_effect_is_dead_at_once_and_the_next_of_its_key_goes(opened, delivered, caplog):
    def reject(effect):
        if effect.row["total"] == 1:
            raise Reject("no such customer: bob@example.com")

    delivered.fail = reject
    store = opened()
    store.apply(batch(change("a", 1, 0), change("a", 2, 1)))
    idle(store)

    assert delivered.totals() == [2]
    (letter,) = Client(opened.feed.log).read([f"{opened.feed.topic}.dead"])
    assert dict(letter.headers())["reason"] == b"no such customer: bob@example.com"
    assert "is dead: no such customer (" in caplog.text
    assert "bob@example.com" not in caplog.text


def test_a_retry_keeps_its_key_waiting_and_no_other(opened, delivered, clock):
    def fail(effect):
        if effect.row["total"] == 1 and clock.monotonic() < 5:
            raise RuntimeError

    delivered.fail = fail
    store = opened(concurrency=3)
    store.apply(batch(change("a", 1, 0), change("a", 2, 1), change("b", 8, 2), change("b", 9, 3)))
    wait_until(lambda: delivered.totals() == [8, 9], 10, "the other key")
    failed(store, a=1)
    clock.advance(6)
    idle(store)

    assert delivered.totals() == [8, 9, 1, 2]


def test_events_without_key_wait_for_none_of_the_others(opened, delivered, clock):
    def fail(effect):
        if effect.row["total"] == 1 and clock.monotonic() < 5:
            raise RuntimeError

    delivered.fail = fail
    store = opened()
    store.apply(batch(change("", 1, 0), change("", 2, 1)))
    wait_until(lambda: delivered.totals() == [2], 10, "the other event")
    clock.advance(6)
    idle(store)

    assert delivered.totals() == [2, 1]


def test_a_restart_hours_later_continues_with_the_attempts_that_were_left(opened, delivered, clock):
    def fail(effect):
        raise RuntimeError

    delivered.fail = fail
    store = opened()
    store.apply(batch(change("a", 1, 0), change("a", 2, 1)))
    failed(store, a=1)
    clock.advance(6)
    failed(store, a=2)
    store.close()

    again = opened()
    clock.advance(200)
    assert delivered.attempts == 2
    delivered.fail = lambda _: None
    clock.advance(200)
    idle(again)
    assert delivered.totals() == [1, 2]


@pytest.mark.parametrize("jump_s", [-366 * 86_400, -3_600, 3_600, 366 * 86_400])
def test_a_clock_that_is_set_neither_hurries_nor_delays_a_retry_nor_disables_anybody(
    opened, delivered, clock, jump_s
):
    def fail(effect):
        raise RuntimeError

    delivered.fail = fail
    store = opened()
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    clock.jump(jump_s)
    store.apply(batch(change("b", 2, 1)))
    failed(store, b=1)
    assert delivered.attempts == 2  # the other has not been tried again
    assert not store.disabled
    delivered.fail = lambda _: None
    clock.advance(6)
    idle(store)

    assert sorted(delivered.totals()) == [1, 2]


def test_a_retry_that_was_put_off_by_a_wrong_clock_waits_no_longer_than_a_day_after_a_restart(
    opened, delivered, clock
):
    def fail(effect):
        raise RuntimeError

    delivered.fail = fail
    clock.jump(366 * 86_400)
    store = opened()
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    store.close()
    clock.jump(-366 * 86_400)
    delivered.fail = lambda _: None
    again = opened()
    clock.advance(86_400 + 1)
    idle(again)

    assert delivered.totals() == [1]


def test_a_full_partition_makes_the_loop_wait_until_there_is_room(opened, delivered, clock, bootstrap):
    feed, broken = effect_feed(bootstrap), threading.Event()

    def fail(effect):
        if not broken.is_set():
            raise RuntimeError

    delivered.fail = fail
    store = EffectStore(feed, Caller(delivered), clock=clock, waiting_max=3, room_s=0.3)
    store.claim([0])
    store.apply(batch(*(change(f"k{n}", n, n) for n in range(3))))
    with pytest.raises(UnavailableError, match=r"3 effects of a partition wait.*too slowly"):
        store.apply(batch(change("more", 9, 3)))
    failed(store, k0=1, k1=1, k2=1)
    broken.set()
    clock.advance(10)
    idle(store)
    store.apply(batch(change("more", 9, 3)))
    idle(store)

    assert sorted(delivered.totals()) == [0, 1, 2, 9]
    store.close()


def test_a_shadow_calls_no_receiver_and_writes_down_what_it_would_have_delivered(opened, delivered):
    store = opened(mode="shadow")
    store.apply(batch(change("a", 1, 0), change("b", None, 1)))
    store.close()

    assert delivered.effects == []
    shadows = [json.loads(m.value()) for m in Client(opened.feed.log).read([f"{opened.feed.sink}.shadow"])]
    assert sorted((each["key"], each["mode"], each["offset"]) for each in shadows) == [
        ("a", "shadow", 0),
        ("b", "shadow", 1),
    ]
    assert dict(opened().claim([0])) == {0: 2}


def test_a_replay_is_delivered_only_where_that_is_asked_for_and_says_so(opened, delivered):
    store = opened()
    store.apply(batch(change("a", 1, 0), change("a", 2, 1)))
    idle(store)
    store.reset()
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change("a", 2, 1), change("a", 3, 2)))
    idle(store)
    assert [(e.row["total"], e.mode) for e in delivered.effects] == [(1, "live"), (2, "live"), (3, "live")]
    ids = [e.id for e in delivered.effects]
    store.reset()
    store.close()
    delivered.effects.clear()

    asked = opened(mode="replay")
    asked.apply(batch(change("a", 1, 0), change("a", 2, 1), change("a", 3, 2), change("a", 4, 3)))
    idle(asked)

    assert [e.mode for e in delivered.effects] == ["replay", "replay", "replay", "live"]
    assert [e.id for e in delivered.effects][:3] == ids


def test_a_topic_that_was_created_again_is_not_delivered_again_but_what_comes_later_is(bootstrap, delivered):
    log = ViewLog(bootstrap)
    topic = log.create(partitions=1)
    feed = effect_feed(bootstrap, topic=topic)
    store = Call(delivered).open(feed)
    store.claim([0])
    log.put(topic, {"a": {"id": "a"}, "b": {"id": "b"}, "c": {"id": "c"}})
    store.apply(batch(change("a", 1, 0), change("b", 1, 1), change("c", 1, 2)))
    idle(store)
    store.close()
    delivered.effects.clear()
    log.delete(topic)
    wait_until(lambda: topic not in Client(bootstrap).partitions(), 20, "the deletion")
    log = ViewLog(bootstrap)
    log.create(topic, partitions=1)
    log.put(topic, {"a": {"id": "a"}})

    store = Call(delivered).open(feed)
    assert dict(store.claim([0])) == {}
    store.apply(batch(change("a", 1, 0)))
    store.apply(batch(change("b", 7, 1)))
    idle(store)

    assert delivered.totals() == [7]
    store.close()


@pytest.mark.parametrize("said", ["\udcff", "long" * 1_000_000], ids=["no text", "long"])
def test_whatever_an_exception_says_the_effect_is_tried_again(opened, delivered, clock, said):
    def fail(effect):
        if delivered.attempts == 1:
            raise RuntimeError(said)

    delivered.fail = fail
    store = opened()
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    clock.advance(6)
    idle(store)

    assert delivered.totals() == [1]


def test_a_record_too_large_for_the_journal_is_poison(opened, delivered):
    store = opened()
    large = Change("a", json.dumps({"id": "x" * 1_000_000}), 0, 3, 0)

    with pytest.raises(Poison, match="larger than the journal takes") as caught:
        store.apply(batch(change("a", 1, 2), large))

    assert caught.value.offset == 3
    store.apply(batch(change("a", 1, 2), p0=4))
    idle(store)
    assert delivered.totals() == [1]


def cpu_seconds(threads: list[threading.Thread]) -> float:
    """What these threads have used: a process of tests has others, of Spark and of clients."""
    used = 0
    for thread in threads:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
        used += int(stat[11]) + int(stat[12])
    return used / os.sysconf("SC_CLK_TCK")


def test_while_a_function_takes_its_time_nothing_runs_in_circles(opened, delivered):
    strangers = set(threading.enumerate())
    may_continue = threading.Event()
    delivered.fail = lambda _: may_continue.wait(10)
    store = opened()
    store.apply(batch(change("a", 1, 0), change("b", 2, 1)))
    wait_until(lambda: delivered.attempts == 1, 10, "the first call")
    ours = [thread for thread in threading.enumerate() if thread not in strangers]
    before = cpu_seconds(ours)
    time.sleep(1)
    spent = cpu_seconds(ours) - before
    may_continue.set()
    idle(store)

    assert ours
    assert spent <= 0.02


def test_a_partition_that_another_has_claimed_is_noticed_without_any_record(opened, clock):
    store = opened()
    store.apply(batch(change("a", 1, 0)))
    idle(store)
    opened().apply(batch(change("a", 2, 1)))
    queue = store._courier.queue(0)
    with queue.writing:
        store._courier._write(queue, 1)  # as the next end, or the next proof, would

    with pytest.raises(Superseded):
        store.apply(Batch((), {}))


def test_changes_of_a_real_time_view_are_refused(opened):
    store = opened()
    repeated = Change("a", '{"id": "a", "_version": 3}', 0, 0, 0, version=3)

    with pytest.raises(UsageError, match="real-time view"):
        store.apply(Batch([repeated], {0: 1}))


def test_a_wrong_function_or_mode_is_refused_at_once():
    with pytest.raises(UsageError, match="needs a function"):
        Call("print")
    with pytest.raises(UsageError, match=r"got 'dry'; expected live or shadow or replay"):
        Call(print, mode="dry")
    with pytest.raises(UsageError, match=r"start is wrong; got 'end'; expected now or beginning"):
        Call(print, start="end")
