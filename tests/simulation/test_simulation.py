"""Lives of the log in virtual time: what was acknowledged is there, once and in order, whatever happens in weeks.

SIMULATION_LIVES sets how many lives there are, SIMULATION_SEED the first thousand of them; CRASH_KIND=simulation-long makes each ten times as
long. A life that fails is told by its seed and by the steps that it takes.
"""

import json
import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from simulation.life import fails, script, shrunk
from simulation.mutations import MUTATIONS, mutated

FOUND = json.loads((Path(__file__).parent / "found.json").read_text())
LONG = os.environ.get("CRASH_KIND") == "simulation-long"
STEPS = 120 if LONG else 12
LIVES = int(os.environ.get("SIMULATION_LIVES", "200"))
FIRST = int(os.environ.get("SIMULATION_SEED", "0")) * (10 if LONG else 1000)
LIVES_AT_ONCE = 25


@pytest.fixture(autouse=True)
def quiet():
    """Faults are what a life is made of; the log need not tell of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lives(first: int, last: int) -> list[str]:
    """What went wrong in the lives of these seeds."""
    logging.disable(logging.CRITICAL)
    told = []
    for seed in range(first, last):
        ended = fails(seed, script(seed, STEPS))
        if ended:
            told.append(f"seed {seed}: {ended}; it takes {shrunk(seed, script(seed, STEPS))}")
    return told


def test_nothing_acknowledged_is_lost_doubled_or_shown_wrongly_in_weeks_of_a_log():
    starts = range(FIRST, FIRST + LIVES, LIVES_AT_ONCE)
    ends = [min(start + LIVES_AT_ONCE, FIRST + LIVES) for start in starts]
    if LIVES > 1000 or LONG:
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            told = [line for lines in pool.map(lives, starts, ends) for line in lines]
    else:
        told = [line for start, end in zip(starts, ends, strict=True) for line in lives(start, end)]
    assert not told, "\n".join(told)


def test_every_mended_defect_was_looked_for():
    assert FOUND.keys() == MUTATIONS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_life_that_found_a_defect_finds_it_again_when_it_is_put_back(name):
    seed, steps = FOUND[name]["seed"], [tuple(step) for step in FOUND[name]["steps"]]
    with mutated(name):
        assert fails(seed, steps)
    assert fails(seed, steps) is None
