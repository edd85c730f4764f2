"""The kinds of simulated lives: of the log alone, with captures, with sinks. Each has a script of its own, and the same way to fail and to be cut down."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from simulation import captured, ground, life, sunk

__all__ = ["KINDS", "Kind"]


class Kind(NamedTuple):
    script: Callable[[int, int], list[tuple[str, int]]]
    """What happens in the life of a seed, in so many steps."""
    play: life.Play


KINDS = {
    "log": Kind(life.script, life.play),
    "captures": Kind(captured.script, partial(ground.play, captured.Captured)),
    "sinks": Kind(sunk.script, partial(ground.play, sunk.Sunk)),
}
