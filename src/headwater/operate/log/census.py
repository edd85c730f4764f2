"""The census of a partition: what its offsets are, from the headers of its batches.

Records, aborted records, markers or holes.

Markers have offsets too, so records cannot be counted by offsets alone. A batch is opened only if its header
is not enough: a marker, to learn whether it commits or aborts its transaction, and a batch from which
compaction has removed records.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

from headwater.record import CONTROL, TRANSACTIONAL, BatchHeader, is_commit, open_batch

__all__ = ["Census", "Kind", "Stretch", "take"]

Kind = Literal["record", "open", "aborted", "marker"]
"""``open``: a record of a transaction that has not ended."""


class Stretch(NamedTuple):
    """Consecutive offsets of one kind."""

    first: int
    end: int
    kind: Kind


class Census:
    """One partition from ``start`` to before ``end``. Offsets in no stretch are holes: compacted, or lost."""

    def __init__(self, start: int, end: int, stretches: Iterable[Stretch]) -> None:
        self.start = start
        self.end = end
        self._stretches = list(_merge(_clip(stretches, start, end)))
        self._firsts = [stretch.first for stretch in self._stretches]
        self._sums: dict[Kind, list[int]] = {}

    def starting_at(self, start: int) -> "Census":
        """The same census if the log begins at a later offset."""
        return self if start <= self.start else Census(start, max(start, self.end), self._stretches)

    def count(self, *kinds: Kind, first: int = 0, end: int | None = None) -> int:
        """The number of offsets of these kinds from ``first`` to before ``end``."""
        bound = self.end if end is None else end
        if bound <= first:
            return 0
        return sum(self._upto(kind, bound) - self._upto(kind, first) for kind in kinds)

    def holes(self, first: int = 0, end: int | None = None) -> int:
        """The number of holes from ``first`` to before ``end``."""
        low, high = max(first, self.start), min(self.end if end is None else end, self.end)
        return max(high - low, 0) - self.count("record", "open", "aborted", "marker", first=low, end=high)

    def kind(self, offset: int) -> Kind | None:
        """The kind of an offset; None for a hole, and for an offset that the log does not have."""
        at = bisect_right(self._firsts, offset) - 1
        stretch = self._stretches[at] if at >= 0 else None
        return stretch.kind if stretch is not None and offset < stretch.end else None

    def _upto(self, kind: Kind, offset: int) -> int:
        if kind not in self._sums:
            lengths = (
                stretch.end - stretch.first if stretch.kind == kind else 0 for stretch in self._stretches
            )
            self._sums[kind] = [0, *accumulate(lengths)]
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return 0
        last = self._stretches[at]
        inside = min(offset, last.end) - last.first if last.kind == kind else 0
        return self._sums[kind][at] + inside


def take(batches: Iterable[memoryview], start: int, end: int) -> Census:
    """Takes the census of a partition from its batches, in order from the log's start."""
    stretches: list[Stretch] = []
    pending: dict[int, list[int]] = {}
    """By producer: the indexes of the stretches of its open transaction."""
    for batch in batches:
        header = BatchHeader.read(batch)
        if header.attributes & CONTROL:
            if header.record_count:
                kind: Kind = "record" if is_commit(open_batch(batch)) else "aborted"
                for at in pending.pop(header.producer_id, ()):
                    stretches[at] = stretches[at]._replace(kind=kind)
                stretches.append(Stretch(header.base_offset, header.last_offset + 1, "marker"))
        elif header.attributes & TRANSACTIONAL:
            of_batch = list(_stretches(batch, header, "open"))
            indexes = range(len(stretches), len(stretches) + len(of_batch))
            pending.setdefault(header.producer_id, []).extend(indexes)
            stretches += of_batch
        else:
            stretches += _stretches(batch, header, "record")
    return Census(start, end, stretches)


def _stretches(batch: memoryview, header: BatchHeader, kind: Kind) -> Iterator[Stretch]:
    """The offsets of a batch's records."""
    if header.record_count == header.last_offset_delta + 1:
        yield Stretch(header.base_offset, header.last_offset + 1, kind)
    elif header.record_count:
        yield from (Stretch(record.offset, record.offset + 1, kind) for record in open_batch(batch))


def _clip(stretches: Iterable[Stretch], start: int, end: int) -> Iterator[Stretch]:
    for stretch in stretches:
        first, last = max(stretch.first, start), min(stretch.end, end)
        if first < last:
            yield Stretch(first, last, stretch.kind)


def _merge(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """Adjacent stretches of one kind as one."""
    last: Stretch | None = None
    for stretch in stretches:
        if last is not None and (last.end, last.kind) == (stretch.first, stretch.kind):
            last = last._replace(end=stretch.end)
            continue
        if last is not None:
            yield last
        last = stretch
    if last is not None:
        yield last
