"""The progress of a rebuild: it moves within a batch, counts no ticks and never goes back."""

import pytest

from headwater.operate.views.catch_up_progress import CatchUpProgress, records
from headwater.result import TICKS

STARTS = {"orders": {0: 100, 1: 0}}
ENDS = {"orders": {0: 150, 1: 50}}
NOTHING = {}


@pytest.fixture
def said():
    return []


@pytest.fixture
def progress(said):
    return CatchUpProgress(STARTS, ENDS, said.append)


def test_it_moves_while_a_batch_is_open(progress, said):
    for reading in (0, 10, 10, 60):
        progress.note(NOTHING, ENDS, reading)
    assert said == ["0 of 100 records", "10 of 100 records", "60 of 100 records"]


def test_it_goes_on_from_a_closed_batch_and_never_goes_back(progress, said):
    half = {"orders": {0: 120, 1: 20}}
    progress.note(NOTHING, half, 39)
    progress.note(NOTHING, half, 0)  # the reading is done; another stage of the batch runs
    progress.note(half, ENDS, 0)
    progress.note(half, ENDS, 5)
    progress.note(ENDS, ENDS, 0)
    assert said == [f"{read} of 100 records" for read in (39, 40, 45, 100)]


def test_a_task_that_is_repeated_reads_no_more_than_its_batch_has(progress, said):
    progress.note(NOTHING, {"orders": {0: 110, 1: 5}}, 1_000)
    assert said == ["15 of 100 records"]


def test_ticks_are_no_records(said):
    ticks = {TICKS: {3: 1_000}}
    assert records({}, ENDS | ticks) == records({}, ENDS)
    CatchUpProgress({}, ENDS | ticks, said.append).note(ENDS | ticks, ENDS | ticks, 7)
    assert said == ["200 of 200 records"]
