"""Run: consecutive offsets of a share partition that have the same state."""

import enum
import math
from typing import NamedTuple

__all__ = ["DeliveryState", "Run"]


class DeliveryState(enum.IntEnum):
    """What has become of a record.

    Kafka's names for SETTLED are Acknowledged and Archived; no member gets such a record again.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    SETTLED = 2
    DELAYED = 3
    """Available later, at its own time."""


class Run(NamedTuple):
    """Offsets from ``first`` to ``last``, both included."""

    first: int
    last: int
    state: DeliveryState
    deliveries: int = 0
    batch_size: int = 0
    """With how many records it was delivered for the first time."""
    member: str = ""
    deadline: float = 0.0
    """When the lock of the member, or the delay, ends."""

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    @property
    def is_scheduled(self) -> bool:
        """Whether it waits for a time and has never been with a member."""
        return self.state is DeliveryState.DELAYED and not self.batch_size

    def cut(self, first: int, last: int) -> "Run":
        """Its part within a range, which overlaps with it."""
        if first <= self.first and self.last <= last:
            return self
        return Run(max(first, self.first), min(last, self.last), *self[2:])

    def locked(self, member: str, deadline: float) -> "Run":
        """Delivered to a member."""
        held = DeliveryState.ACQUIRED
        return Run(self.first, self.last, held, self.deliveries + 1, self.batch_size, member, deadline)

    def continues(self, other: "Run") -> bool:
        """Whether it begins where another one ends, in the same state."""
        return other.last + 1 == self.first and other[2:] == self[2:]

    def is_last_delivery(self, deliveries_max: int) -> bool:
        """Whether a member holds it that is the last one to get it."""
        return self.state is DeliveryState.ACQUIRED and self.deliveries >= deliveries_max

    def settled(self) -> "Run":
        return Run(self.first, self.last, DeliveryState.SETTLED)

    def released(self, deliveries_max: int, until: float = 0.0) -> "Run":
        """Available to all members again, after a delay if ``until`` says so.

        It is settled if it has been delivered as often as is allowed.
        """
        if self.deliveries >= deliveries_max:
            return self.settled()
        state = DeliveryState.DELAYED if until else DeliveryState.AVAILABLE
        return Run(self.first, self.last, state, self.deliveries, self.batch_size, deadline=until)

    def returned(self, until: float = 0.0) -> "Run":
        """Released by a member that has not begun with it: the delivery does not count."""
        state = DeliveryState.DELAYED if until else DeliveryState.AVAILABLE
        return Run(self.first, self.last, state, self.deliveries - 1, self.batch_size, deadline=until)

    def pledged(self, holder: str) -> "Run":
        """Held by a transaction, without end: the transaction ends by itself."""
        return (
            self if self.state is DeliveryState.SETTLED else self._replace(member=holder, deadline=math.inf)
        )

    def due(self) -> "Run":
        """Available, because its delay is over."""
        return self._replace(state=DeliveryState.AVAILABLE, deadline=0.0)
