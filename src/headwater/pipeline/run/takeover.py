"""Takeover: what a fenced driver does: a rebuild is replacing its run, or another driver has taken over.

The cases are a table, like those of a start (``start.py``); DESIGN.md shows it.
"""

from enum import StrEnum
from functools import cached_property

from headwater.clock import Clock
from headwater.follow import results
from headwater.pipeline.run.start import Case
from headwater.pipeline.topics import Topics

__all__ = ["FOLLOW_CASES", "FOLLOW_SECONDS_MAX", "Fate", "Follow"]

FOLLOW_SECONDS_MAX = 120.0
"""How long a view that its rebuild has fenced waits for the rebuild's next result.

Then it takes its place.
"""


class Fate(StrEnum):
    """What becomes of a fenced driver."""

    SWAPPED = "swapped"
    FENCED = "fenced"
    WAITS = "waits"
    ABANDONED = "abandoned"


class Follow:
    """Watches the results of one view since its driver was fenced. Belongs to the runner's watch."""

    def __init__(self, topics: Topics, view: str, run: str, clock: Clock, seconds_max: float) -> None:
        self.run = run
        self._topics = topics
        self._view = view
        self._clock = clock
        self._seconds_max = seconds_max
        self._known: results.Replacement | None = None
        self._since = clock.monotonic()

    def fate(self) -> Fate:
        """What the driver does now, by what the log says."""
        situation = Situation(self)
        return next(case.verdict for case in FOLLOW_CASES if case.holds(situation))

    def seen_run(self) -> str | None:
        """The run that readers see."""
        seen = results.newest(self._topics, self._view)
        return seen.run if seen is not None else None

    def replacement(self) -> results.Replacement | None:
        """The run that is about to replace this one."""
        replacement = results.replacement(self._topics, self._view, self.run)
        if replacement is not None and replacement != self._known:
            self._known, self._since = replacement, self._clock.monotonic()
        return replacement

    def is_quiet(self) -> bool:
        """Whether the replacement has published nothing for too long."""
        return self._clock.monotonic() > self._since + self._seconds_max


class Situation:
    """What the log says at one moment; read only as far as the table needs it."""

    def __init__(self, follow: Follow) -> None:
        self.follow = follow

    @cached_property
    def swapped(self) -> bool:
        run = self.follow.seen_run()
        return run is not None and run != self.follow.run

    @cached_property
    def replaced(self) -> bool:
        return self.follow.replacement() is not None


FOLLOW_CASES: tuple[Case[Situation, Fate], ...] = (
    Case(
        "readers see another run",
        Fate.SWAPPED,
        "the view continues with that run if its definition is the same; otherwise it is stopped",
        lambda situation: situation.swapped,
    ),
    Case(
        "no result says that its run replaces this one",
        Fate.FENCED,
        "another driver has taken over: the view is stopped",
        lambda situation: not situation.replaced,
    ),
    Case(
        "the replacing run has published a result within two minutes",
        Fate.WAITS,
        "the driver waits for the swap",
        lambda situation: not situation.follow.is_quiet(),
    ),
    Case(
        "otherwise",
        Fate.ABANDONED,
        "the rebuild is gone: the view continues with its own run, which fences the rebuild",
        lambda _: True,
    ),
)
"""What becomes of a fenced driver."""
