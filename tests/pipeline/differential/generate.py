"""Groups of programs that share a run: which programs a seed is, and what happens to their tables."""

import random
from typing import NamedTuple

from pipeline.differential.chains import chained
from pipeline.differential.frames import framed
from pipeline.differential.history import history
from pipeline.differential.oracles import Record
from pipeline.differential.programs import Draw, Program, queried
from pipeline.differential.streams import streamed

__all__ = ["TOGETHER", "Group", "group", "program"]

TOGETHER = 12
"""Programs that share a history and a run."""
SHARDS = [2, 2, 1, 3]


class Group(NamedTuple):
    """Some programs, what happens to their tables, and in how many shards they run."""

    programs: list[Program]
    batches: list[list[Record]]
    shards: int


def of_streams(number: int) -> bool:
    """Every third group is about streams."""
    return number % 3 == 2


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = Draw(random.Random(seed))
    if of_streams(seed // TOGETHER):
        return streamed(draw)
    return draw.choose.choice([queried, queried, chained, framed])(draw)


def group(number: int, amount: int = TOGETHER) -> Group:
    """The programs of a number, and their history."""
    first, streams = number * TOGETHER, of_streams(number)
    programs = [program(seed) for seed in range(first, first + amount)]
    batches = history(number, 4 if streams else 3, streams=streams)
    return Group(programs, batches, SHARDS[number % len(SHARDS)])
