"""Patience: how a sink waits for a store that is away, has no room or does not answer: with growing waits, one line at the begin and one at the end."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import Away
from headwater.sink.store import Full

__all__ = ["Patience"]

AWAY_S = (0.1, 15.0)
"""The first and the longest wait for a store that is away; each is twice the one before, give or take a half."""
FULL_S = 1.0
"""The longest wait for one that has no room: it empties while we wait."""
ANSWER_S = 10.0
"""When it is said that an answer is missing; a driver gives up by itself, but only after what its store may need for a great batch."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Patience:
    """Of one sink. One thread waits; whoever sets ``stopping`` ends it, and any thread may `look`."""

    def __init__(self, sink: str, stopping: threading.Event, clock: Clock) -> None:
        self._sink = sink
        self._stopping = stopping
        self._chance = random.Random()  # noqa: S311  spreads waits
        self._wait_s = 0.0
        """The last wait; 0 while there is no trouble."""
        self._full = False
        self.waits = 0
        self._clock = clock
        self._asked: float | None = None
        """Since when the store owes an answer."""
        self._missed = False

    @property
    def waiting(self) -> bool:
        """Whether nothing has been taken in since the last trouble."""
        return self._wait_s > 0

    def until(self, act: Callable[[], T], error: Away | None = None) -> T | None:
        """Does it as often as it takes, after a wait if there is an error to begin with; None when the end came first."""
        while not self._stopping.is_set():
            if error is not None:
                self.wait(error)
                error = None
                continue
            try:
                return act()
            except Away as found:
                error = found
        return None

    def wait(self, error: Away) -> None:
        """Waits once, for longer than the time before."""
        full = isinstance(error, Full)
        if not self._wait_s or full != self._full:
            now, later = ("has no room", "it has") if full else ("is away", "it is back")
            logger.warning("sink %s: the store %s (%s); going on when %s", self._sink, now, error, later)
        self._full = full
        self.waits += 1
        shortest, longest = AWAY_S
        self._wait_s = min(max(2 * self._wait_s, shortest), FULL_S if full else longest)
        self._stopping.wait(self._wait_s * self._chance.uniform(0.5, 1.5))

    def over(self) -> None:
        """The store has taken something in: the next trouble is a new one."""
        if self._wait_s:
            logger.info("sink %s: the store %s", self._sink, "has room again" if self._full else "is back")
        self._wait_s = 0.0

    @contextmanager
    def answer(self) -> Iterator[None]:
        """While the store is asked for something."""
        self._asked = self._clock.monotonic()
        try:
            yield
        finally:
            self._asked = None
            if self._missed:
                self._missed = False
                logger.info("sink %s: the store answers again", self._sink)

    def look(self) -> None:
        """Says, once, that an answer is missing."""
        asked = self._asked
        if asked is not None and not self._missed and self._clock.monotonic() - asked > ANSWER_S:
            self._missed = True
            logger.warning(
                "sink %s: the store has not answered for %.0f s; does it hang?", self._sink, ANSWER_S
            )
