"""Call: a Python function as the receiver of a topic."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.clock import Clock
from headwater.errors import UsageError
from headwater.sink.effects.effect import (
    Dead,
    Delivered,
    Effect,
    Mode,
    Outcome,
    Reject,
    Retry,
    Start,
    check_options,
)
from headwater.sink.effects.effect_store import EffectStore, EffectTarget
from headwater.sink.store import SinkFeed

__all__ = ["Call"]

PATIENCE_SECONDS = 60.0
"""How long a claim waits for a running function, which is never interrupted."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call(EffectTarget):
    """``hw.sink.Call(function)``: calls a function with each change, as an `Effect`.

    After an exception it is called again later, but not after `Reject`. ``concurrency`` is the number of
    threads that call it, never two at a time for one key.
    """

    function: Callable[[Effect], object]
    mode: Mode = "live"
    concurrency: int = 1
    start: Start = "now"
    clock: Clock | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError("hw.sink.Call needs a function", got=type(self.function).__name__)
        check_options(self.mode, self.start)

    @property
    def kind(self) -> str:
        return "call"

    def check(self, feed: SinkFeed) -> None:
        """A function takes every change."""

    def open(self, feed: SinkFeed) -> EffectStore:
        return EffectStore(
            feed,
            Caller(self.function),
            mode=self.mode,
            start=self.start,
            concurrency=self.concurrency,
            clock=self.clock,
        )


class Caller:
    """Delivers effects to a function."""

    patience_s = PATIENCE_SECONDS

    def __init__(self, function: Callable[[Effect], object]) -> None:
        self._function = function
        self.name = f"function {getattr(function, '__name__', type(function).__name__)}"

    def wants(self, effect: Effect) -> bool:  # noqa: ARG002  a function gets all
        return True

    def deliver(self, effect: Effect) -> Outcome:
        try:
            self._function(effect)
        except Reject as error:
            return Dead(str(error) or "rejected")
        except Exception as error:
            logger.debug("%s failed", self.name, exc_info=True)
            return Retry(f"{type(error).__name__}: {error}")
        return Delivered()

    def close(self) -> None:
        """Nothing is open."""
