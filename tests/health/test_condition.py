"""The condition of a part: what it is called, since when, and when the part is tried again."""

import pytest

from headwater.health.condition import Condition, State
from headwater.testing import SettableClock


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def condition(clock):
    return Condition(clock, pauses_s=(1.0, 4.0, 60.0), steady_s=100.0, recovered_s=5.0)


def end_and_begin(condition, clock):
    """One more failure; the pause until the next start."""
    condition.end("it broke")
    begun = clock.monotonic()
    while not condition.is_due:
        clock.advance(0.5)
    condition.begin()
    return clock.monotonic() - begun


def test_a_part_is_starting_until_it_works(condition):
    condition.begin()
    assert condition.state is State.STARTING
    condition.work()
    assert (condition.state, condition.restarts) == (State.RUNNING, 0)


def test_pauses_grow_to_the_longest_and_never_end(condition, clock):
    condition.begin()
    assert [end_and_begin(condition, clock) for _ in range(6)] == [1, 4, 60, 60, 60, 60]
    assert condition.restarts == 6


def test_a_part_that_crashes_again_and_again_is_failing_all_the_time(condition, clock):
    condition.begin()
    condition.work()
    clock.advance(10)
    since = clock.now_ms()
    for _ in range(4):
        end_and_begin(condition, clock)
        condition.work()
        assert condition.state is State.FAILING
        clock.advance(2)
        condition.work()
        assert condition.state is State.FAILING, "two seconds of work prove nothing"
    status = condition.status("view", "revenue")
    assert (status.since_ms, status.error, status.restarts) == (since, "it broke", 4)


def test_a_part_has_recovered_once_it_has_worked_as_long_as_its_last_pause(condition, clock):
    condition.begin()
    for _ in range(3):
        end_and_begin(condition, clock)
    condition.work()
    clock.advance(59)
    condition.work()
    assert condition.state is State.FAILING
    clock.advance(1)
    condition.work()
    assert condition.state is State.RUNNING
    assert condition.status("view", "revenue").error == "it broke", "its last error stays known"


def test_failures_no_longer_count_after_steady_work(condition, clock):
    condition.begin()
    for _ in range(3):
        end_and_begin(condition, clock)
    condition.work()
    clock.advance(100)
    assert end_and_begin(condition, clock) == 1


def test_what_cannot_heal_is_stopped_until_it_is_begun_again(condition, clock):
    condition.begin()
    condition.work()
    condition.end("its definition has changed", heals=False)
    clock.advance(1_000_000)
    assert (condition.state, condition.is_due, condition.has_ended) == (State.STOPPED, False, True)
    assert condition.status("view", "revenue").next_try_ms is None
    condition.begin()
    condition.work()
    assert (condition.state, condition.has_ended) == (State.RUNNING, False)


def test_a_part_that_waits_for_something_outside_is_failing_and_not_restarted(condition, clock):
    condition.begin()
    condition.work()
    for why in ("connection refused", "connection refused", "time-out"):
        clock.advance(30)
        condition.fail(why)
        assert (condition.state, condition.is_due, condition.has_ended) == (State.FAILING, False, False)
    clock.advance(30)
    condition.work()
    clock.advance(5)
    condition.work()
    assert (condition.state, condition.restarts) == (State.RUNNING, 0)


def test_a_status_says_when_the_next_try_is(condition, clock):
    condition.begin()
    condition.end("it broke")
    end_and_begin(condition, clock)
    condition.end("it broke")
    clock.advance(1)
    assert condition.status("view", "revenue").next_try_ms == clock.now_ms() + 59_000


def test_a_paused_part_is_not_failing(condition):
    condition.begin()
    condition.fail("connection refused")
    condition.pause()
    assert condition.state is State.PAUSED
    condition.work()
    assert condition.state is State.RUNNING


def test_what_an_operator_has_to_mend_is_tried_at_the_longest_pauses(condition, clock):
    condition.begin()
    condition.end("its file is half written", slowly=True)
    assert (condition.state, condition.is_due) == (State.FAILING, False)
    clock.advance(59)
    assert not condition.is_due
    clock.advance(1)
    assert condition.is_due
