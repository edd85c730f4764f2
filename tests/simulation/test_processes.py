"""Lives with captures and with sinks in virtual time: whatever dies, sleeps or is away, their readers and stores have all of it, once.

CRASH_KIND chooses simulation-captures or simulation-sinks alone; SIMULATION_LIVES sets how many lives of each there are, SIMULATION_SEED the first hundred of them.
"""

import os
from itertools import repeat

import pytest

from simulation.apart import gathered, processes
from simulation.living import lives

PREFIX = "simulation-"
ASKED = os.environ.get("CRASH_KIND", "")
CHOSEN = [ASKED.removeprefix(PREFIX)] if ASKED.startswith(PREFIX) else ["captures", "sinks"]
STEPS = 10
LIVES = int(os.environ.get("SIMULATION_LIVES", "10"))
FIRST = int(os.environ.get("SIMULATION_SEED", "0")) * 100
LIVES_AT_ONCE = 10


@pytest.mark.parametrize("kind", CHOSEN)
def test_readers_and_stores_have_every_change_once_whatever_dies(kind: str):
    starts = range(FIRST, FIRST + LIVES, LIVES_AT_ONCE)
    ends = [min(start + LIVES_AT_ONCE, FIRST + LIVES) for start in starts]
    with processes(None if len(starts) > 1 else 1) as pool:
        asked = pool.map(lives, repeat(kind), repeat(STEPS), starts, ends)
        wrong = gathered(asked, LIVES_AT_ONCE, LIVES)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("kind", "seed"), [("sinks", 110), ("sinks", 112), ("sinks", 294)])
def test_a_life_that_failed_once_passes(kind: str, seed: int):
    with processes(1) as pool:
        assert not pool.submit(lives, kind, STEPS, seed, seed + 1).result()
