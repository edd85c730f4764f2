"""Call: a Python function as the outside of a topic."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.clock import Clock
from headwater.errors import UsageError
from headwater.sink.effect import Again, Dead, Done, Effect, Mode, Outcome, Reject, Start, check_telling
from headwater.sink.outbox import Outbox, Telling
from headwater.sink.store import Feed

__all__ = ["Call"]

PATIENCE_SECONDS = 60.0
"""How long a claim waits for a function that is running; it is never interrupted."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call(Telling):
    """``hw.sink.Call(function)``: calls it with each change, as an `Effect`. An exception is tried again later; `Reject` is not.

    With ``concurrency`` the function is called from so many threads, never twice at a time for one key.
    """

    function: Callable[[Effect], object]
    mode: Mode = "live"
    concurrency: int = 1
    start: Start = "now"
    clock: Clock | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError("hw.sink.Call needs a function", got=type(self.function).__name__)
        check_telling(self.mode, self.start)

    @property
    def kind(self) -> str:
        return "call"

    def check(self, feed: Feed) -> None:
        """Every change can be told to a function."""

    def open(self, feed: Feed) -> Outbox:
        return Outbox(
            feed,
            Caller(self.function),
            mode=self.mode,
            start=self.start,
            concurrency=self.concurrency,
            clock=self.clock,
        )


class Caller:
    """Carries effects to a function."""

    patience_s = PATIENCE_SECONDS

    def __init__(self, function: Callable[[Effect], object]) -> None:
        self._function = function
        self.name = f"function {getattr(function, '__name__', type(function).__name__)}"

    def wants(self, effect: Effect) -> bool:  # noqa: ARG002  a function is told all
        return True

    def carry(self, effect: Effect) -> Outcome:
        try:
            self._function(effect)
        except Reject as error:
            return Dead(str(error) or "rejected")
        except Exception as error:
            logger.debug("%s failed", self.name, exc_info=True)
            return Again(f"{type(error).__name__}: {error}")
        return Done()

    def close(self) -> None:
        """Nothing is kept."""
