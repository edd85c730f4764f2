"""Moment: the time of the view's result with which a batch is compared."""

from collections.abc import Mapping, Sequence

import msgspec

from headwater.clock import SystemClock
from headwater.errors import UsageError

__all__ = ["At"]


class At(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one result of a view. Without a result everything is complete."""

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
        """The watermark up to which an operator has emitted the rows that it delays; None: all of them.

        Raises UsageError while due rows wait for a tick.
        """
        if self.watermark_us is not None:
            self._check_due(kind, self.watermark_us)
        return self.watermark_us

    def clock_us(self, kind: str) -> int:
        """The clock of the view, for an operator that uses it."""
        if self.now_us is None:
            return SystemClock().now_ms() * 1000
        self._check_due(kind, self.now_us)
        return self.now_us

    def _check_due(self, kind: str, upto_us: int) -> None:
        due = any(
            open_us is not None and open_us <= upto_us
            for name, shards in self.opens.items()
            if name.rstrip("0123456789") == kind
            for open_us in shards
        )
        if due:
            raise UsageError(
                f"view {self.view!r} cannot be compared now: due rows of {kind} wait for its next batch",
                hint="check it again in a second, while the pipeline runs",
            )
