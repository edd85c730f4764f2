"""Claims: what one process holds of a store, by partition, and which part of a batch is new to it.

Every store keeps a claim and an offset for each partition (see `headwater.sink.store.Store`). Where it
keeps them is the store's business; what follows from them is the same for all stores, and is here.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headwater.change import Change
from headwater.sink.store import Batch, Superseded

__all__ = ["NOTHING", "Claims", "PartitionState", "complete_ms", "superseded"]

NOTHING = -1
"""The offset of a partition of which the store has nothing, and the claim of one that this process does
not hold."""


class PartitionState(NamedTuple):
    """What a store has for one partition."""

    claim: int = 0
    offset: int = NOTHING
    """The next offset: the store has everything before it."""

    def claimed(self) -> "PartitionState":
        """The state after one more claim."""
        return PartitionState(self.claim + 1, self.offset)

    def reset(self) -> "PartitionState":
        """The state after a reset: nothing is stored, and no present claim is valid any more."""
        return PartitionState(self.claim + 1, NOTHING)


class Claims:
    """The partitions of one sink that this process has claimed, as it left them in the store."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._states: dict[int, PartitionState] = {}

    def take(self, states: Mapping[int, PartitionState]) -> dict[int, int]:
        """Notes the states after a claim.

        Returns what `Store.claim` returns: the offsets to continue from.
        """
        self._states |= states
        return {number: state.offset for number, state in states.items() if state.offset > NOTHING}

    def advance(self, offsets: Mapping[int, int]) -> None:
        """The store has taken a batch up to these offsets."""
        for number, offset in offsets.items():
            self._states[number] = PartitionState(self.claim(number), offset)

    def clear(self) -> None:
        """Forgets all partitions; they must be claimed again."""
        self._states.clear()

    def claim(self, number: int) -> int:
        state = self._states.get(number)
        return NOTHING if state is None else state.claim

    def offset(self, number: int) -> int:
        """The offset that this process has left in the store, or `NOTHING`."""
        state = self._states.get(number)
        return NOTHING if state is None else state.offset

    def new_changes(self, batch: Batch) -> list[Change]:
        """The changes that the store does not have yet; those before its offsets took effect earlier."""
        return [change for change in batch.changes if change.offset >= self.offset(change.partition)]

    def new_offsets(self, batch: Batch) -> dict[int, int]:
        """The offsets of a batch that are past those in the store."""
        return {number: offset for number, offset in batch.upto.items() if offset > self.offset(number)}

    def check(self, number: int, state: PartitionState) -> None:
        """Superseded if another process has claimed a partition, or the store does not have our offset."""
        if state.claim != self.claim(number):
            raise superseded(self._sink, number)
        self.check_offset(number, state.offset)

    def check_offset(self, number: int, stored: int) -> None:
        """Superseded if the store does not have the offset that we left: it was restored from a copy.

        A batch applied to such a store would skip what was lost; after a new claim it is read again.
        """
        left = self.offset(number)
        if stored != left:
            offsets = (stored, left)
            got, expected = (str(offset) if offset > NOTHING else "its beginning" for offset in offsets)
            raise Superseded(
                f"sink {self._sink}: the store does not hold partition {number} as it was left",
                got=f"offset {got}",
                expected=f"offset {expected}",
            )


def superseded(sink: str, number: int) -> Superseded:
    """The error for a partition that another process has claimed."""
    return Superseded(f"sink {sink}: partition {number} was taken over by another process")


def complete_ms(
    batch: Batch, changes: Iterable[Change], begun_ms: Mapping[int, int], now_ms: int
) -> dict[int, int]:
    """For each partition of a batch, the time up to which a store is known to have seen all deletions.

    Records after a record were written after it; a batch without changes for a partition was at its end;
    and the log keeps deletions for a reader that has begun at the start. So a store that is being filled
    from old records is as young as the beginning of its fill, which ``begun_ms`` has.
    """
    times = {change.partition: min(change.timestamp_ms, now_ms) for change in changes}
    return {number: max(times.get(number, now_ms), begun_ms.get(number, 0)) for number in batch.upto}
