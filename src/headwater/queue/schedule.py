"""Schedule: records that are due later, by time. Each takes sixteen bytes, so there may be millions."""

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["NEVER_DUE", "Due", "Schedule"]

BLOCK_RECORDS = 4096


class Due(NamedTuple):
    """A record, and when it is due. The order is that in which they go out."""

    due_ms: int
    offset: int


NEVER_DUE = Due(0, -1)


@dataclass(slots=True)
class _Block:
    """Records in the order of their times; those before ``at`` have gone out."""

    dues_ms: "array[int]"
    offsets: "array[int]"
    lowest: int
    highest: int
    """Their offsets are between these two."""
    at: int = 0

    @classmethod
    def of(cls, dues: list[Due]) -> "_Block":
        offsets = array("q", map(_offset, dues))
        return cls(array("q", [due.due_ms for due in dues]), offsets, min(offsets), max(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - self.at

    @property
    def first(self) -> Due:
        return Due(self.dues_ms[self.at], self.offsets[self.at])

    def rest(self) -> Iterator[Due]:
        return map(Due, self.dues_ms[self.at :], self.offsets[self.at :])


class Schedule:
    """Blocks that are sorted once, and the newest records as a heap. No offset comes twice."""

    def __init__(self) -> None:
        self._newest: list[Due] = []
        self._newest_lowest = 0
        """No offset of these is before this one."""
        self._blocks: list[_Block] = []
        self._heads: list[tuple[Due, int]] = []
        """The first record of each block, and the number of the block, as a heap."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due: Due) -> None:
        self._newest_lowest = min(self._newest_lowest, due.offset) if self._newest else due.offset
        heapq.heappush(self._newest, due)
        self._count += 1
        if len(self._newest) >= BLOCK_RECORDS:
            block = _Block.of(sorted(self._newest))
            self._newest = []
            self._use([*self._blocks, block])

    def first(self) -> Due | None:
        """The one that is due first."""
        if not self._heads:
            return self._newest[0] if self._newest else None
        return min(self._newest[0], self._heads[0][0]) if self._newest else self._heads[0][0]

    def pop(self) -> Due:
        """Takes the one that is due first."""
        self._count -= 1
        if not self._heads or (self._newest and self._newest[0] < self._heads[0][0]):
            return heapq.heappop(self._newest)
        due, number = self._heads[0]
        block = self._blocks[number]
        block.at += 1
        if len(block):
            heapq.heapreplace(self._heads, (block.first, number))
        else:
            heapq.heappop(self._heads)
        return due

    def within(self, first: int, last: int) -> list[Due]:
        """Those at the offsets of a range, in the order of their offsets."""
        dues = [due for due in self._newest if first <= due.offset <= last]
        for block in self._blocks:
            if block.lowest <= last and block.highest >= first:
                dues += [due for due in block.rest() if first <= due.offset <= last]
        return sorted(dues, key=_offset)

    def lowest_offset(self) -> int | None:
        lowest = min(map(_offset, self._newest), default=None)
        for block in sorted(self._blocks, key=_lowest):
            if lowest is not None and block.lowest >= lowest:
                break
            if len(block):
                first = min(block.offsets[block.at :])
                lowest = first if lowest is None else min(first, lowest)
        return lowest

    def lowest_bound(self) -> int | None:
        """No offset is before this one; it costs less than the lowest one."""
        bounds = [block.lowest for block in self._blocks if len(block)]
        if self._newest:
            bounds.append(self._newest_lowest)
        return min(bounds, default=None)

    def remove(self, first: int, last: int) -> int:
        """Drops those at the offsets of a range; returns how many there were."""
        before = self._count
        self._newest = [due for due in self._newest if not first <= due.offset <= last]
        heapq.heapify(self._newest)
        blocks = []
        for block in self._blocks:
            if block.lowest <= last and block.highest >= first:
                dues = [due for due in block.rest() if not first <= due.offset <= last]
                blocks += [_Block.of(dues)] if dues else []
            else:
                blocks.append(block)
        self._use(blocks)
        self._count = len(self._newest) + sum(map(len, self._blocks))
        return before - self._count

    def _use(self, blocks: list[_Block]) -> None:
        """These blocks, without those from which all has gone out."""
        self._blocks = [block for block in blocks if len(block)]
        self._heads = [(block.first, number) for number, block in enumerate(self._blocks)]
        heapq.heapify(self._heads)


def _offset(due: Due) -> int:
    return due.offset


def _lowest(block: _Block) -> int:
    return block.lowest
