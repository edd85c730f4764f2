"""Batch order: the records of a batch as numbers, by topic, partition and offset, for a search among them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from headwater.pipeline.build.skips import Range

__all__ = ["BatchOrder"]


class BatchOrder:
    """Numbers the records of a batch, by topic, partition and offset."""

    def __init__(self, batch: Iterable[Range]) -> None:
        self._batch = sorted(batch)
        self._begins = [0]
        for part in self._batch:
            self._begins.append(self._begins[-1] + part.end - part.first)

    def __len__(self) -> int:
        return self._begins[-1]

    def place(self, number: int) -> tuple[str, int, int]:
        for part, (begin, end) in zip(self._batch, pairwise(self._begins), strict=True):
            if begin <= number < end:
                return part.topic, part.partition, part.first + number - begin
        raise IndexError(number)

    def without(self, taken: Sequence[int]) -> Iterator[Range]:
        """The ranges to leave out, so that only some records are taken."""
        gaps = list(_gaps(taken, len(self)))
        for part, (begin, end) in zip(self._batch, pairwise(self._begins), strict=True):
            for first, last in gaps:
                low, high = max(first, begin), min(last, end)
                if low < high:
                    yield Range(
                        part.topic, part.partition, part.first + low - begin, part.first + high - begin
                    )


def _gaps(taken: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """The ranges of numbers below ``count`` between those that are taken."""
    if isinstance(taken, range):  # a part that was only halved so far may be long
        yield from ((0, taken.start), (taken.stop, count))
        return
    before = 0
    for number in taken:
        if number > before:
            yield before, number
        before = number + 1
    yield before, count
