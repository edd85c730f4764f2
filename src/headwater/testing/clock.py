"""A clock to set."""

__all__ = ["SettableClock"]


class SettableClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now_ms: int = 1_767_603_600_000) -> None:
        self._now_ms = now_ms
        self._elapsed = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self._elapsed += seconds
        self._now_ms += int(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Sets the clock to another time, although no time has passed."""
        self._now_ms += int(seconds * 1000)
