"""The lives of sinks, effects and receivers: the pages show the tables, and the code follows them."""

import random

import pytest

from headwater.clock import SystemClock
from headwater.sink import Sqlite
from headwater.sink.effects.effect import Dead, Delivered, Effect, Gone, JournalEntry, Retry
from headwater.sink.effects.life import (
    EFFECT_LIFE,
    RECEIVER_LIFE,
    DeliveryEvent,
    EffectState,
    ReceiverState,
)
from headwater.sink.effects.receiver_health import DISABLED_AFTER_MS, ReceiverHealth
from headwater.sink.effects.schedule import PAUSES_S
from headwater.sink.loop.life import LIFE, SinkEvent, SinkState
from headwater.sink.loop.loop import Loop
from sink.lifepage import PAGES

FIRST = JournalEntry(Effect("o-0-1-x", "live", "o.changed", "a", {}, 0, 0, 1), 0)
LAST = JournalEntry(FIRST.effect, 0, len(PAUSES_S) - 1)


class Now(SystemClock):
    """A clock that a test sets."""

    ms = 1_769_853_600_000

    def now_ms(self) -> int:
        return self.ms


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.name)
def test_a_page_shows_the_tables_as_they_are(page):
    assert page.text() == page.path.read_text(), f"run: make {page.target}"


@pytest.mark.parametrize(
    ("life", "first", "last"),
    [
        (LIFE, SinkState.BEGINNING, {SinkState.STOPPED}),
        (EFFECT_LIFE, EffectState.WAITING, {EffectState.DELIVERED, EffectState.DEAD}),
        (RECEIVER_LIFE, ReceiverState.ACTIVE, {ReceiverState.CLOSED}),
    ],
)
def test_every_state_is_reached_and_only_the_last_have_no_next(life, first, last):
    reached, new = set(), {first}
    while new:
        reached |= new
        new = {after for state in new for after in life[state].values()} - reached

    assert reached == set(type(first)) == set(life)
    assert {state for state in life if not life[state]} == last


def test_every_event_occurs():
    assert {event for events in LIFE.values() for event in events} == set(SinkEvent)
    assert {event for events in EFFECT_LIFE.values() for event in events} == set(DeliveryEvent)


def test_a_loop_has_a_step_for_every_state_but_the_last():
    loop = Loop("127.0.0.1:1", "life", "topic", Sqlite("life.db"), lambda: None)
    assert set(loop._steps) == set(LIFE) - {SinkState.STOPPED}


@pytest.fixture
def health():
    """A receiver that has failed for five days, less a millisecond."""
    clock = Now()
    receiver = ReceiverHealth("receiver", clock, random.Random(0))
    assert receiver.event(FIRST, Retry("no answer")) is DeliveryEvent.FAILED
    clock.ms += DISABLED_AFTER_MS - 1
    receiver.clock = clock
    return receiver


def test_an_outcome_is_an_event(health):
    assert health.event(FIRST, Retry("no answer")) is DeliveryEvent.FAILED
    assert health.event(LAST, Retry("no answer")) is DeliveryEvent.EXHAUSTED
    assert health.event(FIRST, Dead("no row")) is DeliveryEvent.REJECTED
    assert health.event(FIRST, Gone("410")) is DeliveryEvent.CLOSED
    health.clock.ms += 1
    assert health.event(LAST, Retry("no answer")) is DeliveryEvent.LONG_FAILED
    assert health.event(FIRST, Delivered()) is DeliveryEvent.ACCEPTED
    assert health.event(LAST, Retry("no answer")) is DeliveryEvent.EXHAUSTED


@pytest.mark.parametrize("event", set(DeliveryEvent) - {DeliveryEvent.DUE})
def test_a_receiver_that_wants_nothing_any_more_is_not_called_whatever_ends_later(health, event):
    """Calls that were made before its answer may end after it, and may fail."""
    health.clock.ms += 1
    health.move(DeliveryEvent.CLOSED, "it answered 410 Gone", 0)
    health.move(event, "no answer", 0)
    health.clock.ms += 10 * DISABLED_AFTER_MS

    assert not health.may_call()
    assert health.reason == "it answered 410 Gone"


def test_a_disabled_receiver_is_probed_until_it_accepts_an_effect(health):
    health.move(DeliveryEvent.LONG_FAILED, "no answer", 0)
    assert not health.may_call()
    health.clock.ms += 12 * 3_600_000
    assert health.may_call()
    health.called()
    assert not health.may_call()
    health.move(DeliveryEvent.ACCEPTED, "", 0)
    assert health.may_call()
    assert not health.reason
