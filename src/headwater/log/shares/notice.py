"""Notice: lines of the broker's log about one thing that may happen often, at most one in a time."""

import asyncio
import logging

__all__ = ["Notice"]

logger = logging.getLogger(__name__)

PAUSE_S = 60.0
EXAMPLES_MAX = 5


class Notice:
    """The first time is named at once, what comes within the next minute in one line after it."""

    def __init__(self, what: str) -> None:
        self._what = what
        """With ``%d`` for how often, and ``%s`` for the first examples."""
        self._count = 0
        self._examples: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, count: int, examples: list[str]) -> None:
        self._count += count
        self._examples = [*self._examples, *examples][:EXAMPLES_MAX]
        if self._timer is None:
            self._say()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count:
            logger.warning(self._what, self._count, "; ".join(self._examples))
        self._count = 0

    def _say(self) -> None:
        self._timer = None
        if self._count:
            logger.warning(self._what, self._count, "; ".join(self._examples))
            self._count, self._examples = 0, []
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._say)
