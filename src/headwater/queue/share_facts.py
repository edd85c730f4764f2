"""ShareFacts: what a share partition must not forget beside its runs."""

from typing import NamedTuple

from headwater.queue.ranges import Ranges
from headwater.queue.schedule import NEVER_DUE, Due

__all__ = ["Counts", "ShareFacts"]


class Counts(NamedTuple):
    """How many records have come to an end that no member has asked for, since the group began."""

    expired: int = 0
    """Deleted, or out of date, before they were settled."""
    exhausted: int = 0
    """Delivered as often as is allowed, and not settled."""
    duplicate: int = 0
    """Settled because a record with their id had come before."""
    invalid: int = 0
    """Delivered with headers that cannot be read."""

    def plus(self, **more: int) -> "Counts":
        return self._replace(**{name: getattr(self, name) + count for name, count in more.items()})


class ShareFacts(NamedTuple):
    """A value: it is stored again whenever it differs from what was stored last."""

    settled_ahead: Ranges = Ranges()
    """Offsets after those of which anything is known, settled before they came up."""
    counts: Counts = Counts()
    due_to: Due = NEVER_DUE
    """Of the parking."""
    scan_from: int = -1
    """No parked record is before this offset; -1 if none is parked."""
    scheduled: int = 0
    parked: int = 0
    """How many are parked, and how many of these are scheduled."""
