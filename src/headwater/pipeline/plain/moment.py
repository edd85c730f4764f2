"""Moment: what the view had heard of time when it made the result that it is compared at."""

from collections.abc import Mapping, Sequence

import msgspec

from headwater.clock import SystemClock
from headwater.errors import UsageError

__all__ = ["At"]


class At(msgspec.Struct, frozen=True, kw_only=True):
    """The position in time of one result of a view. Without a result everything is complete."""

    view: str
    now_us: int | None = None
    watermark_us: int | None = None
    horizon_us: int = 0
    """How long the view waits for stragglers after the watermark."""
    opens: Mapping[str, Sequence[int | None]] = {}
    """By operator of the view, the earliest time-out of each shard."""

    def impossible(self, uses: str, why: str) -> UsageError:
        return UsageError(
            f"view {self.view!r} cannot be computed by plain operators: it uses {uses}",
            hint=f"{why}; check it without --plain",
        )

    def passed_us(self, kind: str) -> int | None:
        """The watermark at which an operator has let rows go that it holds back; None: all of them. UsageError while some that are due wait for a tick."""
        if self.watermark_us is not None:
            self._check_due(kind, self.watermark_us)
        return self.watermark_us

    def clock_us(self, kind: str) -> int:
        """What the clock said, for an operator that goes by it."""
        if self.now_us is None:
            return SystemClock().now_ms() * 1000
        self._check_due(kind, self.now_us)
        return self.now_us

    def _check_due(self, kind: str, upto_us: int) -> None:
        due = [
            each
            for name, shards in self.opens.items()
            if name.rstrip("0123456789") == kind
            for each in shards
            if each is not None and each <= upto_us
        ]
        if due:
            raise UsageError(
                f"view {self.view!r} cannot be compared now: rows of {kind} that are due wait for its next batch",
                hint="check it again in a second, while the pipeline runs",
            )
