"""Plan: the day scaled to ``minutes``. All lengths of time come from here."""

from dataclasses import dataclass, field

DAY_S = 86_400
ACTS = 3
"""The same faults at the same moments of each third, so that the thirds can be compared."""
SHORT_MINUTES = 20
"""A shorter run has one act: three would leave no time between two faults."""
SAFE_S = 300
"""Retention removes nothing younger than this, however short the run: a view may be away for a while."""
SEGMENT_S_MIN = 10


@dataclass(frozen=True)
class Plan:
    """``rate`` is in records a second; ``seed`` decides about every one of them."""

    minutes: float = 60
    rate: float = 120
    seed: int = 23
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", self.minutes * 60)

    @property
    def speed(self) -> float:
        """Seconds of the shop in a second of ours."""
        return DAY_S / self.seconds

    @property
    def acts(self) -> int:
        return ACTS if self.minutes >= SHORT_MINUTES else 1

    @property
    def act_s(self) -> float:
        return self.seconds / self.acts

    @property
    def segment_ms(self) -> int:
        """A segment of a user's topic holds 24 minutes of the shop's day: 60 of them in a run."""
        return int(max(self.seconds / 60, SEGMENT_S_MIN) * 1000)

    @property
    def retention_ms(self) -> int:
        """Four hours of the shop's day; deletions of compacted topics stay as long."""
        return int(max(self.seconds / 6, SAFE_S) * 1000)
