"""Schedule: which effect is due next.

Effects of a key follow one another, keys are independent; no clock, no I/O.

The caller gives the time: hours of waiting are a number in a test.
"""

import heapq
import random
from collections import deque

__all__ = ["PAUSES_S", "Schedule", "is_last", "pause_ms", "probe_ms"]

PAUSES_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
"""How long each attempt waits after the one before; after the last attempt an effect is dead."""
JITTER = 0.1
"""A pause is longer by up to this part, at random: effects that failed together must not come back
together."""


def is_last(attempts: int) -> bool:
    """Whether an effect has no further attempt after so many failed ones."""
    return attempts >= len(PAUSES_S)


def pause_ms(attempts: int, chance: random.Random, asked_s: float = 0.0) -> int:
    """How long to wait after so many failed attempts, at least as long as the receiver has asked for."""
    return _pause_ms(PAUSES_S[attempts], chance, asked_s)


def probe_ms(chance: random.Random, asked_s: float = 0.0) -> int:
    """How long a disabled receiver is not called before it gets one effect again: the last of the pauses."""
    return _pause_ms(PAUSES_S[-1], chance, asked_s)


def _pause_ms(pause_s: float, chance: random.Random, asked_s: float) -> int:
    return round(1000 * max(pause_s * (1 + JITTER * chance.random()), asked_s))


class Schedule:
    """The unfinished effects of one partition, by id.

    `take` returns only the first effect of a key, whenever the others are due; it is taken until `finish`
    or `retry`.
    """

    def __init__(self) -> None:
        self._keys: dict[str, deque[str]] = {}
        self._places: dict[str, tuple[str, int, int]] = {}
        """For each effect: its key, when it is due, and its number in the order of arrival."""
        self._heads: list[tuple[int, int, str]] = []
        """A heap of the first effect of each key, without those that are taken."""
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, effect: str, key: str, due_ms: int) -> None:
        """Adds an effect after all others of its key."""
        self._places[effect] = (key, due_ms, self._arrived)
        self._arrived += 1
        waiting = self._keys.setdefault(key, deque())
        waiting.append(effect)
        if len(waiting) == 1:
            self._push(effect)

    def take(self, now_ms: int) -> str | None:
        """The effect that has been due for longest, or None."""
        if not self._heads or self._heads[0][0] > now_ms:
            return None
        return heapq.heappop(self._heads)[2]

    def due_ms(self) -> int | None:
        """When the next effect is due that is not taken."""
        return self._heads[0][0] if self._heads else None

    def retry(self, effect: str, due_ms: int) -> None:
        """Puts a taken effect back: it is due again then, and still the first of its key."""
        key, _, arrived = self._places[effect]
        self._places[effect] = (key, due_ms, arrived)
        self._push(effect)

    def finish(self, effect: str) -> None:
        """Removes a taken effect; the next one of its key may be taken."""
        key, _, _ = self._places.pop(effect)
        waiting = self._keys[key]
        waiting.popleft()
        if waiting:
            self._push(waiting[0])
        else:
            del self._keys[key]

    def _push(self, effect: str) -> None:
        _, due_ms, arrived = self._places[effect]
        heapq.heappush(self._heads, (due_ms, arrived, effect))
