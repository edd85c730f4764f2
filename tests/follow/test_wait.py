"""Waiting for a view: never before it has taken in what was written, and with a clear word when it has not."""

import signal
import threading
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.client import Client
from headwater.errors import NotReachedError, UsageError
from headwater.follow.follower import Follower, History, Milestone, wait
from headwater.position import Position
from headwater.result import topic
from headwater.write.writer import Writer
from support.resultlog import Driver
from support.servers import both_logs, wait_until

offsets = st.dictionaries(st.integers(0, 2), st.integers(0, 8), max_size=3)
marks = st.builds(
    Milestone,
    run=st.sampled_from(["a", "a", "a", "b"]),
    inputs=st.fixed_dictionaries({"x": offsets, "y": offsets}),
    outputs=offsets,
    complete=st.none() | st.integers(-5, 5),
    shadow=st.sampled_from([False, False, True]),
)


@pytest.fixture
def view():
    return f"wait-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def driver(bootstrap, view):
    return Driver(bootstrap, view)


def at(**topics):
    return Position(dict(topics))


@given(st.lists(marks, max_size=80), st.fixed_dictionaries({}, optional={"x": offsets, "y": offsets}))
def test_a_position_is_covered_by_a_live_result_of_the_newest_run_or_not_at_all(results, asked):
    history = History("v")
    for result in results:
        history = history.then(result)
    covering = [
        Position({"v": result.outputs} if result.outputs else {})
        for result in newest_run(results)
        if all(result.inputs[t].get(p, 0) >= o for t in asked for p, o in asked[t].items())
    ]

    assert history.covering(Position(asked)) == (covering[0] if covering else None)


def newest_run(results):
    """What readers see: the last 64 results of the run that is live."""
    live = [result for result in results if not result.shadow]
    last = next((i for i in reversed(range(len(live))) if live[i].run != live[-1].run), -1)
    return live[last + 1 :][-64:]


@given(st.lists(marks, max_size=80), offsets, st.integers(0, 3))
def test_a_reader_is_complete_up_to_the_greatest_watermark_of_what_it_has_read_in_full(results, held, build):
    history = History("v")
    for result in results:
        history = history.then(result)
    said = [
        result.complete
        for result in newest_run(results)
        if result.complete is not None and all(held.get(p, 0) >= o for p, o in result.outputs.items())
    ]

    assert history.complete(Position({"v": held}, build)) == (max(said) if said else None)


def mark(complete, run="a", shadow=False, **outputs):
    return Milestone(
        run, {"x": {0: 1}}, {int(p[1:]): o for p, o in outputs.items()}, complete=complete, shadow=shadow
    )


def complete(held, *results):
    history = History("v")
    for result in results:
        history = history.then(result)
    return history.complete(Position({"v": held} if held else {}, 7))


def test_rows_that_were_not_read_are_not_called_complete():
    results = mark(10, p0=5), mark(20, p0=5, p1=3), mark(30, p0=8, p1=3)

    assert complete({}, *results) is None
    assert complete({0: 5}, *results) == 10
    assert complete({0: 7, 1: 3}, *results) == 20
    assert complete({0: 8, 1: 2}, *results) == 10
    assert complete({0: 9, 1: 9}, *results) == 30


def test_a_view_that_has_published_nothing_is_complete_for_everybody():
    assert complete({}, mark(10)) == 10
    assert complete({}, mark(10), mark(20, p0=1)) == 10


def test_a_view_without_a_watermark_says_nothing_of_being_complete():
    assert complete({0: 9}) is None
    assert complete({0: 9}, mark(None, p0=5)) is None
    assert complete({0: 9}, mark(10, p0=5), mark(None, p0=6)) == 10


def test_a_run_beside_the_live_one_says_nothing_and_a_new_one_begins_from_nothing():
    assert complete({0: 9}, mark(10, p0=5), mark(50, "b", shadow=True, p0=5)) == 10
    assert complete({0: 9}, mark(50, p0=5), mark(10, "b", p0=7)) == 10
    assert complete({0: 6}, mark(50, p0=5), mark(10, "b", p0=7)) is None


def test_a_follower_knows_what_is_complete_once_it_has_caught_up(bootstrap, view, driver):
    for n in range(40):
        driver.publish({"orders": {0: n}}, {"de": b"{}"}, complete=n)
    held = Position({view: dict(driver.outputs)}, 5)

    with Follower(bootstrap) as follower:
        assert follower.complete(view, held) is None
        follower.follow(view)
        wait_until(lambda: follower.poll(0.1) and follower.caught_up(view), 20, "the end of the results")
        assert follower.complete(view, held) == 39
        assert follower.complete(view, Position({view: {0: driver.outputs[0] - 1}})) == 38


def test_a_follower_has_caught_up_with_a_view_without_a_result_and_after_given_up_batches(
    bootstrap, view, driver
):
    with Follower(bootstrap) as follower:
        assert not follower.caught_up(view)
        follower.follow(view)
        assert follower.caught_up(view)
        assert follower.complete(view, Position()) is None

    driver.publish({"orders": {0: 7}}, complete=5)
    for _ in range(40):
        driver.begin({"orders": {0: 8}}, complete=6)
        driver.abort()
    with Follower(bootstrap) as follower:
        follower.follow(view)
        wait_until(lambda: follower.poll(0.1) and follower.caught_up(view), 20, "the end of the results")
        assert follower.complete(view, Position()) == 5


@both_logs
def test_a_wait_ends_with_the_result_that_covers_it_and_not_before(bootstrap, view, driver):
    driver.publish({"orders": {0: 1}}, {"de": b"{}"})
    found = {}

    def waiting(offset):
        found[offset] = (wait(view, at(orders={0: offset}), 60, log=bootstrap), driver.batch)

    threads = [threading.Thread(target=waiting, args=(offset,)) for offset in range(2, 8)]
    for thread in threads:
        thread.start()
    for offset in range(2, 8):
        driver.begin({"orders": {0: offset}}, {"de": b"{}"})
        time.sleep(0.1)  # time enough to return too early
        assert offset not in found
        driver.commit()
        wait_until(lambda offset=offset: offset in found, 20, "the wait's end")
        assert found[offset] == (Position({view: {0: driver.outputs[0]}}), driver.batch)
        assert max(found) == offset
    for thread in threads:
        thread.join()


@both_logs
def test_what_a_wait_returns_is_where_a_reader_of_the_view_finds_the_rows(bootstrap, view, driver):
    driver.publish({"orders": {0: 3}}, {"de": b'{"n":3}', "fr": b'{"n":1}'})
    driver.publish({"orders": {0: 4}}, {"de": b'{"n":4}'})

    reached = wait(view, at(orders={0: 4}), log=bootstrap).of(view)

    read = [record for record in Client(bootstrap).read([view]) if record.offset() < reached[0]]
    assert [(record.key(), record.value()) for record in read][-1] == (b"de", b'{"n":4}')


def test_a_batch_that_is_given_up_covers_nothing(bootstrap, view, driver):
    driver.publish({"orders": {0: 1}})
    driver.begin({"orders": {0: 5}})
    driver.abort()

    with pytest.raises(NotReachedError, match=r"got 0~orders:0=1; expected 0~orders:0=5"):
        wait(view, at(orders={0: 5}), 0.3, log=bootstrap)


def test_a_batch_that_changes_no_row_covers_with_the_outputs_of_those_before(bootstrap, view, driver):
    driver.publish({"orders": {0: 1}}, {"de": b"{}"})
    driver.publish({"orders": {0: 9}})

    assert wait(view, at(orders={0: 9}), log=bootstrap) == Position({view: {0: 1}})


def test_a_run_that_is_prepared_beside_the_live_one_covers_nothing(bootstrap, view, driver):
    driver.publish({"orders": {0: 1}})
    driver.publish({"orders": {0: 9}}, shadow=True)

    with pytest.raises(NotReachedError, match="orders:0=1;"):
        wait(view, at(orders={0: 2}), 0.3, log=bootstrap)


def test_a_new_run_covers_only_what_it_has_read_itself(bootstrap, view, driver):
    driver.publish({"orders": {0: 9}})
    Driver(bootstrap, view, "run-2").publish({"orders": {0: 2}})

    with pytest.raises(NotReachedError, match="orders:0=2;"):
        wait(view, at(orders={0: 9}), 0.3, log=bootstrap)


def test_results_are_found_after_many_batches_that_came_to_nothing(bootstrap, view, driver):
    driver.publish({"orders": {0: 7}}, {"de": b"{}"})
    for _ in range(40):
        driver.begin({"orders": {0: 8}})
        driver.abort()

    assert wait(view, at(orders={0: 7}), log=bootstrap) == Position({view: {0: 1}})


def test_only_the_end_of_the_results_is_read_however_many_there_are(bootstrap, view, driver):
    for n in range(100):
        driver.publish({"orders": {0: n}})

    with Follower(bootstrap) as follower:
        follower.wait(view, at(orders={0: 99}))
        assert len(follower._histories[view].results) <= 16


def test_a_position_in_all_topics_is_covered_when_all_are(bootstrap, view, driver):
    driver.publish({"orders": {0: 5, 1: 5}, "customers": {0: 1}})

    with Follower(bootstrap) as follower:
        asked = at(orders={1: 5}, customers={0: 2})
        with pytest.raises(NotReachedError):
            follower.wait(view, asked, 0)
        driver.publish({"orders": {0: 5, 1: 5}, "customers": {0: 2}})
        assert follower.wait(view, str(asked)) == Position()


def test_topics_that_the_view_does_not_read_are_refused_with_those_that_it_does(bootstrap, view, driver):
    driver.publish({"orders": {0: 5}, "customers": {0: 1}})

    with pytest.raises(UsageError, match="does not read clicks; expected a position of customers, orders"):
        wait(view, at(clicks={0: 1}, orders={0: 1}), log=bootstrap)


def test_a_view_without_results_is_refused_at_once_and_one_before_its_first_is_waited_for(bootstrap, view):
    with pytest.raises(UsageError, match=f"there is no view '{view}' with results"):
        wait(view, at(orders={0: 1}), 60, log=bootstrap)

    Client(bootstrap).ensure_topics([topic(view)], 1)
    with pytest.raises(NotReachedError, match="no result yet"):
        wait(view, at(orders={0: 1}), 0.3, log=bootstrap)


@both_logs
def test_a_view_that_was_reset_is_followed_from_its_beginning(bootstrap, view, driver):
    from headwater.operate.log.topic import delete

    with Follower(bootstrap) as follower:
        for n in range(10):
            driver.publish({"orders": {0: n}})
        follower.wait(view, at(orders={0: 9}))
        delete(bootstrap, topic(view))
        wait_until(lambda: topic(view) not in Client(bootstrap).partitions(), 20, "the end of the topic")
        follower._following[view].checked = 0
        with pytest.raises(UsageError, match="there is no view"):
            follower.wait(view, at(orders={0: 9}))

        again = Driver(bootstrap, view, "run-2")
        again.publish({"orders": {0: 2}})
        follower.wait(view, at(orders={0: 2}))
        with pytest.raises(NotReachedError, match="orders:0=2;"):
            follower.wait(view, at(orders={0: 3}), 0)


def test_a_wait_outlives_a_log_that_is_killed_and_started_again(own_broker, view):
    log = own_broker.bootstrap
    Driver(log, view).publish({"orders": {0: 1}})
    found = []
    with Follower(log) as follower:
        follower.wait(view, at(orders={0: 1}))
        waiting = threading.Thread(
            target=lambda: found.append(follower.wait(view, at(orders={0: 2}), timeout=60))
        )
        waiting.start()
        own_broker.end(signal.SIGKILL)
        own_broker.start()
        Driver(log, view).publish({"orders": {0: 2}}, {"de": b"{}"})
        waiting.join(120)
    assert found == [Position({view: {0: 1}})]


def test_a_log_with_tls_and_users_is_written_to_and_waited_for_by_its_settings(guarded_broker, view):
    _, settings = guarded_broker
    Client(settings.access).ensure_topics(["orders"], 1)
    with Writer(settings) as writer:
        written = writer.send("orders", b"an order")
    Driver(settings.access, view).publish({"orders": {0: 1}}, {"de": b"{}"})

    assert wait(view, written, log=settings) == Position({view: {0: 1}})
