"""Ranges: a few ranges of offsets, sorted and apart from each other. It is a value."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Range", "Ranges"]


class Range(NamedTuple):
    """Offsets from ``first`` to ``last``, both included."""

    first: int
    last: int


class Ranges(tuple[Range, ...]):
    """Sorted ranges, of which no two overlap or touch."""

    __slots__ = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> "Ranges":
        """Any ranges, in any order."""
        joined: list[Range] = []
        for first, last in sorted(ranges):
            if joined and first <= joined[-1].last + 1:
                joined[-1] = Range(joined[-1].first, max(joined[-1].last, last))
            else:
                joined.append(Range(first, last))
        return cls(joined)

    def within(self, first: int, last: int) -> "Ranges":
        """The parts of them between two offsets."""
        return Ranges(
            Range(max(r.first, first), min(r.last, last)) for r in self if r.first <= last and r.last >= first
        )

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """All offsets between two ones, as parts that are in the ranges or not."""
        at = first
        for part in self.within(first, last):
            if at < part.first:
                yield at, part.first - 1, False
            yield part.first, part.last, True
            at = part.last + 1
        if at <= last:
            yield at, last, False

    def has(self, offset: int) -> bool:
        return any(r.first <= offset <= r.last for r in self)
