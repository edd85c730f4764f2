"""Outcomes of handlers, and what follows from each for its message. No I/O.

success without writes              accepted
success with writes                 accepted together with what was written
failure with attempts left          released, and delivered again after a pause
RetryError with attempts left       the same, after a pause of its own
ctx.defer(...)                      released, and delivered again when it says; this is no attempt
the last failure, RejectError, or   a dead letter
a message that does not fit
"""

from typing import NamedTuple

from headwater.declare.backoff import Backoff

__all__ = [
    "Bury",
    "Deferred",
    "Failed",
    "GiveBack",
    "Outcome",
    "Rejected",
    "Retry",
    "Succeeded",
    "Verdict",
    "judge",
]


class Succeeded(NamedTuple):
    """The handler has returned."""


class Failed(NamedTuple):
    """The handler has raised, or ran for too long."""

    reason: str
    stack: str = ""


class Retry(NamedTuple):
    """The handler wants another attempt, after a pause that it names."""

    pause_ms: int
    reason: str
    stack: str = ""


class Deferred(NamedTuple):
    """The handler wants the message later, and has not tried it."""

    pause_ms: int


class Rejected(NamedTuple):
    """No further attempt will help."""

    reason: str
    stack: str = ""


Outcome = Succeeded | Failed | Retry | Rejected | Deferred


class GiveBack(NamedTuple):
    """Release the message; it is delivered again after the pause."""

    pause_ms: int
    reason: str
    is_counted: bool = True
    """Whether it was an attempt."""


class Bury(NamedTuple):
    """Make the message a dead letter."""

    reason: str
    stack: str = ""
    is_parked: bool = False
    """Whether that is because of an earlier message of its key."""


Verdict = Succeeded | GiveBack | Bury


def judge(outcome: Outcome, attempt: int, policy: Backoff, chance: float) -> Verdict:
    """What follows from the outcome of that attempt, 1 or more. ``chance``, from 0 to 1, spreads pauses."""
    if isinstance(outcome, Succeeded):
        return outcome
    if isinstance(outcome, Deferred):
        return GiveBack(outcome.pause_ms, "", is_counted=False)
    if isinstance(outcome, Rejected) or attempt >= policy.attempts:
        return Bury(outcome.reason, outcome.stack)
    pause_ms = outcome.pause_ms if isinstance(outcome, Retry) else policy.pause_ms(attempt, chance)
    return GiveBack(pause_ms, outcome.reason)
