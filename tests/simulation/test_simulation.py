"""Lives of the log in virtual time: what was acknowledged is there, once and in order, whatever happens in weeks.

SIMULATION_LIVES sets how many lives there are, SIMULATION_SEED the first thousand of them; CRASH_KIND=simulation-long makes each ten times as
long. A life that fails is named by its seed and by the steps that it takes.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import pytest

from simulation.apart import gathered, processes
from simulation.ending import is_defect
from simulation.living import FOUND, again, lives
from simulation.mutations import MUTATIONS

LONG = os.environ.get("CRASH_KIND") == "simulation-long"
STEPS = 120 if LONG else 12
LIVES = int(os.environ.get("SIMULATION_LIVES", "200"))
FIRST = int(os.environ.get("SIMULATION_SEED", "0")) * (10 if LONG else 1000)
LIVES_AT_ONCE = 5 if LONG else 25


@pytest.fixture(scope="module")
def apart() -> Iterator[ProcessPoolExecutor]:
    with processes(None if LIVES >= 1000 or LONG else 1) as pool:
        yield pool


def test_nothing_acknowledged_is_lost_doubled_or_shown_wrongly_in_weeks_of_a_log(apart):
    starts = range(FIRST, FIRST + LIVES, LIVES_AT_ONCE)
    ends = [min(start + LIVES_AT_ONCE, FIRST + LIVES) for start in starts]
    asked = apart.map(lives, repeat("log"), repeat(STEPS), starts, ends)
    wrong = gathered(asked, LIVES_AT_ONCE, LIVES)
    assert not wrong, "\n".join(wrong)


def test_every_mended_defect_was_looked_for():
    assert FOUND.keys() == MUTATIONS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_life_that_found_a_defect_finds_it_again_when_it_is_put_back(apart, name):
    ended, without = apart.submit(again, name).result()
    assert is_defect(ended), ended
    assert without is None
