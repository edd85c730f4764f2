"""Lives of views in virtual time: rows are those of the records that results name, once, whatever becomes of drivers, rebuilds, machines and the log.

SIMULATION_LIVES sets how many lives there are, SIMULATION_SEED the first hundred of them. A life that fails is named by its seed and by the steps that it takes.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import pytest

from simulation.apart import gathered, processes
from simulation.driver_mutations import DRIVER_MUTATIONS
from simulation.ending import is_defect
from simulation.living import FOUND_OF_DRIVER, again_of_driver, lives_of_views

STEPS = 6
LIVES = int(os.environ.get("SIMULATION_LIVES", "2"))
FIRST = int(os.environ.get("SIMULATION_SEED", "0")) * 100
LIVES_AT_ONCE = 10


@pytest.fixture(scope="module")
def apart() -> Iterator[ProcessPoolExecutor]:
    with processes(None if LIVES > LIVES_AT_ONCE else 1) as pool:
        yield pool


def test_readers_of_a_view_see_the_rows_of_its_records_whatever_happens_to_its_driver(apart):
    starts = range(FIRST, FIRST + LIVES, LIVES_AT_ONCE)
    ends = [min(start + LIVES_AT_ONCE, FIRST + LIVES) for start in starts]
    wrong = gathered(apart.map(lives_of_views, repeat(STEPS), starts, ends), LIVES_AT_ONCE, LIVES)
    assert not wrong, "\n".join(wrong)


def test_every_defect_of_a_driver_was_looked_for():
    assert FOUND_OF_DRIVER.keys() == DRIVER_MUTATIONS.keys()


@pytest.mark.parametrize("name", FOUND_OF_DRIVER)
def test_a_life_of_views_that_found_a_defect_finds_it_again(apart, name):
    ended, without = apart.submit(again_of_driver, name).result()
    assert is_defect(ended), ended
    assert without is None


@pytest.mark.parametrize("seed", [35, 48, 73])
def test_a_driver_that_is_overtaken_while_it_starts_is_fenced_and_asks_for_no_reset(apart, seed):
    """Each of these lives ended once with a driver that called for a reset of its view: a second one had gone on in the middle of its start."""
    assert not apart.submit(lives_of_views, STEPS, seed, seed + 1).result()
