"""What a capture says of itself: it fails while its database or the log hangs, though it is reading."""

import types

import pytest

from headwater.capture.loop.condition import SILENT_S, judge
from headwater.capture.loop.phases import Phase
from headwater.health.condition import Condition, State
from headwater.testing import SettableClock


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def feed(clock):
    return types.SimpleNamespace(phase=Phase.STARTING, trouble="", round_at=clock.monotonic())


@pytest.fixture
def state(feed, clock):
    condition = Condition(clock)
    condition.begin()

    def look():
        judge(feed, condition, clock.monotonic())
        return condition.state, condition.error

    return look


def test_a_capture_that_reads_and_gets_nothing_for_long_is_failing_until_it_does(feed, clock, state):
    assert state() == (State.STARTING, "")
    feed.phase = Phase.READING
    assert state() == (State.RUNNING, "")
    clock.advance(SILENT_S + 1)
    assert state() == (State.FAILING, "the database or the log has not answered for more than 60 s")
    feed.round_at = clock.monotonic()
    state()
    clock.advance(5)
    assert state()[0] is State.RUNNING


def test_a_capture_that_is_paused_need_not_read(feed, clock, state):
    feed.phase = Phase.PAUSED
    clock.advance(3_600)
    assert state()[0] is State.PAUSED


def test_its_trouble_is_one_line(feed, state):
    feed.trouble = "connection failed:\n\tis the server running?"
    assert state() == (State.FAILING, "connection failed: is the server running?")
