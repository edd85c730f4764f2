"""Follow: what becomes of a view whose driver was fenced: a rebuild takes its place, or another driver has."""

from typing import Literal

from headwater import result
from headwater.clock import Clock
from headwater.pipeline.topics import Topics

__all__ = ["FOLLOW_SECONDS_MAX", "Follow"]

FOLLOW_SECONDS_MAX = 120.0
"""How long a view that is fenced by its rebuild waits for the next result of that before it takes its place back."""

Fate = Literal["swapped", "waits", "abandoned", "fenced"]


class Follow:
    """Looks at the results of one view since its driver was fenced. Belongs to the runner's watching thread."""

    def __init__(self, topics: Topics, view: str, run: str, clock: Clock, seconds_max: float) -> None:
        self._topics = topics
        self._view = view
        self._run = run
        self._clock = clock
        self._seconds_max = seconds_max
        self._known: result.Replacement | None = None
        self._since = clock.monotonic()

    def fate(self) -> Fate:
        """Whether readers see another run by now, a rebuild gets on, it has stopped doing so, or there is none."""
        seen = result.newest(self._topics, self._view)
        if seen is not None and seen.run != self._run:
            return "swapped"
        found = result.replacement(self._topics, self._view, self._run)
        if found is None:
            return "fenced"
        if found != self._known:
            self._known, self._since = found, self._clock.monotonic()
        return "waits" if self._clock.monotonic() <= self._since + self._seconds_max else "abandoned"
