"""Backoff: how often a message is tried, and how long it waits before each further attempt."""

import msgspec

from headwater.declare.duration import pause_ms
from headwater.errors import UsageError

__all__ = ["ATTEMPTS_MAX", "Backoff", "backoff"]

ATTEMPTS_MAX = 20
"""A share group counts up to 25 deliveries; some are left for processes that die."""
PAUSE_MS_MAX = 366 * 86_400_000
JITTER = 0.5
"""With jitter a pause is at least this part of its length."""


class Backoff(msgspec.Struct, frozen=True):
    """Pauses that grow from ``first_ms`` by a factor to ``longest_ms``."""

    first_ms: int
    factor: float
    jitter: bool
    attempts: int
    longest_ms: int

    def pause_ms(self, failures: int, chance: float) -> int:
        """The pause after so many failures, 1 or more. ``chance``, from 0 to 1, spreads it with jitter."""
        whole = self.first_ms
        for _ in range(failures - 1):
            if whole >= self.longest_ms:
                break
            whole = round(whole * self.factor)
        whole = min(whole, self.longest_ms)
        return round(whole * (JITTER + (1 - JITTER) * chance)) if self.jitter else whole


def backoff(
    first: str, factor: float = 2, *, jitter: bool = True, attempts: int = 5, longest: str = "1 hour"
) -> Backoff:
    """How a worker tries a message again: after ``first``, then ``factor`` times as long, up to ``longest``.

    After ``attempts`` in all it becomes a dead letter. With ``jitter`` a pause is 50 to 100 % of its length,
    so that messages that failed together do not come back together.
    """
    if not isinstance(attempts, int) or not 1 <= attempts <= ATTEMPTS_MAX:
        raise UsageError(
            "backoff: attempts= is wrong", got=repr(attempts), expected=f"1 to {ATTEMPTS_MAX} attempts in all"
        )
    if not isinstance(factor, int | float) or not 1 <= factor <= 100:
        raise UsageError("backoff: factor= is wrong", got=repr(factor), expected="1 to 100")
    first_ms, longest_ms = pause_ms(first), pause_ms(longest)
    for name, text, length_ms in (("first", first, first_ms), ("longest", longest, longest_ms)):
        if length_ms > PAUSE_MS_MAX:
            raise UsageError(f"backoff: {name} is too long", got=repr(text), expected="at most 366 days")
    return Backoff(first_ms, factor, jitter, attempts, max(first_ms, longest_ms))
