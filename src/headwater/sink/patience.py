"""Patience: how a sink waits for a store that is away, full or silent, with one log line at each end."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import UnavailableError, one_line
from headwater.sink.store import Full

__all__ = ["Patience"]

AWAY_S = (0.1, 15.0)
"""The first and the longest wait for a store that is away. Each wait doubles, plus or minus a half at
random."""
FULL_S = 1.0
"""The longest wait for a full store: it empties while we wait."""
ANSWER_S = 10.0
"""After how long a missing answer is logged. Drivers time out later: a large batch may take a store long."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Patience:
    """The waits of one sink. One thread waits, until ``stopping`` is set; any thread may `look`."""

    def __init__(self, sink: str, stopping: threading.Event, clock: Clock) -> None:
        self._sink = sink
        self._stopping = stopping
        self._chance = random.Random()  # noqa: S311  spreads waits
        self._wait_s = 0.0
        """The last wait; 0 while the store works."""
        self._full = False
        self.waits = 0
        self.error = ""
        """Why it waits now; empty while the store works."""
        self._clock = clock
        self._asked: float | None = None
        """The time of a call to the store that has not returned."""
        self._missed = False

    @property
    def waiting(self) -> bool:
        """Whether the store has taken nothing since it last failed."""
        return self._wait_s > 0

    def until(self, act: Callable[[], T], error: UnavailableError | None = None) -> T | None:
        """Repeats ``act`` until it succeeds, after a wait if an error is given.

        None if the sink is stopped first.
        """
        while not self._stopping.is_set():
            if error is not None:
                self.wait(error)
                error = None
                continue
            try:
                return act()
            except UnavailableError as failure:
                error = failure
        return None

    def wait(self, error: UnavailableError) -> None:
        """Waits once, longer than the time before."""
        full = isinstance(error, Full)
        if not self._wait_s or full != self._full:
            now, later = ("has no room", "it has") if full else ("is away", "it is back")
            logger.warning("sink %s: the store %s (%s); continuing when %s", self._sink, now, error, later)
        self._full = full
        self.error = f"the store {'has no room' if full else 'is away'}: {one_line(error)}"
        self.waits += 1
        shortest, longest = AWAY_S
        self._wait_s = min(max(2 * self._wait_s, shortest), FULL_S if full else longest)
        self._stopping.wait(self._wait_s * self._chance.uniform(0.5, 1.5))

    def over(self) -> None:
        """The store works again: the next failure is a new one."""
        if self._wait_s:
            logger.info("sink %s: the store %s", self._sink, "has room again" if self._full else "is back")
        self._wait_s = 0.0
        self.error = ""

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Around each call to the store."""
        self._asked = self._clock.monotonic()
        try:
            yield
        finally:
            self._asked = None
            if self._missed:
                self._missed = False
                self.error = ""
                logger.info("sink %s: the store answers again", self._sink)

    def look(self) -> None:
        """Logs, once, that an answer is missing."""
        asked_at = self._asked
        if asked_at is not None and not self._missed and self._clock.monotonic() - asked_at > ANSWER_S:
            self._missed = True
            self.error = f"the store has not answered for more than {ANSWER_S:.0f} s"
            logger.warning(
                "sink %s: the store has not answered for %.0f s; does it hang?", self._sink, ANSWER_S
            )
