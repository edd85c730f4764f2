"""Living: lives of some seeds, and lives that find a defect again, as functions that other processes can be asked for."""

import json
import logging
from pathlib import Path

from simulation import driven, driver_mutations, mutations
from simulation.ending import is_defect
from simulation.kinds import KINDS
from simulation.life import fails, shrunk

__all__ = ["FOUND", "FOUND_OF_DRIVER", "again", "again_of_driver", "lives", "lives_of_views"]

HERE = Path(__file__).parent
FOUND = json.loads((HERE / "found.json").read_text())
FOUND_OF_DRIVER = json.loads((HERE / "found_driver.json").read_text())
Ends = tuple[str | None, str | None]


def lives(kind: str, steps: int, first: int, last: int) -> list[str]:
    """What went wrong in the lives of these seeds."""
    logging.disable(logging.CRITICAL)
    script, played = KINDS[kind]
    wrong = []
    for seed in range(first, last):
        ended = fails(seed, script(seed, steps), played)
        if ended:
            fewer = shrunk(seed, script(seed, steps), played) if is_defect(ended) else script(seed, steps)
            wrong.append(f"{kind}, seed {seed}: {ended}; it takes {fewer}")
    return wrong


def lives_of_views(steps: int, first: int, last: int) -> list[str]:
    """The same of views, whose processes are another kind of world."""
    logging.disable(logging.CRITICAL)
    wrong = []
    for seed in range(first, last):
        played = driven.script(seed, steps)
        ended = driven.fails(seed, played)
        if ended:
            fewer = driven.shrunk(seed, played) if is_defect(ended) else played
            wrong.append(f"views, seed {seed}: {ended}; it takes {fewer}")
    return wrong


def again(name: str) -> Ends:
    """How the life that found a defect ends, with it and without."""
    logging.disable(logging.CRITICAL)
    seed, steps = FOUND[name]["seed"], [tuple(step) for step in FOUND[name]["steps"]]
    played = KINDS[mutations.kind_of(name)].play
    with mutations.mutated(name):
        ended = fails(seed, steps, played)
    return ended, fails(seed, steps, played)


def again_of_driver(name: str) -> Ends:
    """The same of a defect of the driver."""
    logging.disable(logging.CRITICAL)
    seed, steps = FOUND_OF_DRIVER[name]["seed"], [tuple(step) for step in FOUND_OF_DRIVER[name]["steps"]]
    with driver_mutations.mutated(name):
        ended = driven.fails(seed, steps)
    return ended, driven.fails(seed, steps)
