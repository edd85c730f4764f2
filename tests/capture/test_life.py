"""The lives of a capture and of a table are those of the page, and have no dead ends but the last states."""

import pytest

from capture.lifepage import MARKS, PAGE, page
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.phases import COMMANDS, LIFE, Outcome, Phase
from headwater.capture.messages import Command
from headwater.capture.reread.table_states import TABLE_LIFE, TableEvent, TableState, TableStates
from headwater.errors import CaptureError

LAST = {Phase.ENDED, Phase.STOPPED, Phase.FENCED}


def test_the_page_has_the_tables_by_which_captures_run():
    text = PAGE.read_text()
    assert all(mark in text for marks in MARKS.values() for mark in marks)
    assert page(text) == text, "run: make capture-page"


def test_every_phase_is_reached_and_every_outcome_occurs():
    reached = {after for outcomes in LIFE.values() for after in outcomes.values()}
    assert reached == set(Phase) == set(LIFE)
    assert {outcome for outcomes in LIFE.values() for outcome in outcomes} == set(Outcome)
    assert {phase for phase, outcomes in LIFE.items() if not outcomes} == LAST


def test_the_loop_has_a_function_for_every_phase_that_is_not_the_last():
    feed = Feed("life", source=object(), log="127.0.0.1:1")
    assert set(feed._phases) == set(Phase) - LAST


def test_every_command_is_an_outcome_while_a_capture_reads_or_is_paused():
    words = Command.__annotations__["do"].__args__
    assert set(words) == set(COMMANDS)
    for phase in (Phase.READING, Phase.PAUSED):
        assert set(COMMANDS.values()) <= set(LIFE[phase])


def test_every_state_of_a_table_is_reached_and_every_event_occurs():
    reached = {after for events in TABLE_LIFE.values() for after in events.values()}
    assert reached == set(TableState) == set(TABLE_LIFE)
    assert {event for events in TABLE_LIFE.values() for event in events} == set(TableEvent)


@pytest.mark.parametrize("state", TableState)
@pytest.mark.parametrize("event", TableEvent)
def test_a_table_changes_its_state_by_the_events_of_its_life_only(state, event):
    read = {} if state is TableState.NEW else {"t": "1"}
    states = TableStates(read, {"t": "its key is gone"} if state is TableState.STOPPED else {})
    assert states.of("t") is state
    after = TABLE_LIFE[state].get(event)

    if after is None:
        with pytest.raises(CaptureError, match=r"is stopped|is not captured"):
            states.change("t", event, "2")
        assert states.of("t") is state
    else:
        assert states.change("t", event, "2") is after
        assert states.of("t") is after
