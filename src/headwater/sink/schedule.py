"""Schedule: which effect is due next. One of a key after the other, keys beside each other; no clock, no I/O.

Whoever drives it says what time it is: hours of waiting are a number in a test.
"""

import heapq
import random
from collections import deque

__all__ = ["PAUSES_S", "Schedule", "pause_ms", "probe_ms"]

PAUSES_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
"""How long each attempt waits behind the one before it; after the last of them an effect is dead."""
JITTER = 0.1
"""By at most this part a pause is longer: what failed together must not come back together."""


def pause_ms(attempts: int, chance: random.Random, asked_s: float = 0.0) -> int | None:
    """How long to wait after so many failed attempts, not less than the receiver has asked for; None when it was the last."""
    if attempts >= len(PAUSES_S):
        return None
    return _pause_ms(PAUSES_S[attempts], chance, asked_s)


def probe_ms(chance: random.Random, asked_s: float = 0.0) -> int:
    """How long a receiver that is not called any more is left in peace before it gets one effect again: the last of the pauses."""
    return _pause_ms(PAUSES_S[-1], chance, asked_s)


def _pause_ms(pause_s: float, chance: random.Random, asked_s: float) -> int:
    return round(1000 * max(pause_s * (1 + JITTER * chance.random()), asked_s))


class Schedule:
    """The unfinished effects of one partition, by id.

    Of the effects of a key only the first is ever given out, whenever the others are due; it is out until `finish` or `retry`.
    """

    def __init__(self) -> None:
        self._keys: dict[str, deque[str]] = {}
        self._places: dict[str, tuple[str, int, int]] = {}
        """Of each effect its key, when it is due, and its place in the order of arrival."""
        self._heads: list[tuple[int, int, str]] = []
        """A heap of the first effect of each key, without those that are out."""
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, effect: str, key: str, due_ms: int) -> None:
        """Behind all that the key has already."""
        self._places[effect] = (key, due_ms, self._arrived)
        self._arrived += 1
        waiting = self._keys.setdefault(key, deque())
        waiting.append(effect)
        if len(waiting) == 1:
            self._show(effect)

    def take(self, now_ms: int) -> str | None:
        """The effect that has been due for longest, or None."""
        if not self._heads or self._heads[0][0] > now_ms:
            return None
        return heapq.heappop(self._heads)[2]

    def due_ms(self) -> int | None:
        """When the next one is due that is not out."""
        return self._heads[0][0] if self._heads else None

    def retry(self, effect: str, due_ms: int) -> None:
        """Takes one back that was out: it is due again then, and still the first of its key."""
        key, _, arrived = self._places[effect]
        self._places[effect] = (key, due_ms, arrived)
        self._show(effect)

    def finish(self, effect: str) -> None:
        """Forgets one that was out; the next of its key may go."""
        key, _, _ = self._places.pop(effect)
        waiting = self._keys[key]
        waiting.popleft()
        if waiting:
            self._show(waiting[0])
        else:
            del self._keys[key]

    def _show(self, effect: str) -> None:
        _, due_ms, arrived = self._places[effect]
        heapq.heappush(self._heads, (due_ms, arrived, effect))
