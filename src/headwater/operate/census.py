"""Census: what the offsets of a partition are, from the headers of its batches: records that count, aborted ones, markers, holes.

Offsets number markers too, so nothing is counted by them. A batch is opened only where the header cannot tell: a marker, to know how it ends
its transaction, and a batch that compaction has thinned out.
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
    """Neighbouring offsets of one kind."""

    first: int
    end: int
    kind: Kind


class Census:
    """One partition between ``start`` and ``end``. What is in no stretch is a hole: compaction has taken it, or it was lost."""

    def __init__(self, start: int, end: int, stretches: Iterable[Stretch]) -> None:
        self.start = start
        self.end = end
        self._stretches = list(_joined(_clipped(stretches, start, end)))
        self._firsts = [each.first for each in self._stretches]
        self._sums: dict[Kind, list[int]] = {}

    def behind(self, start: int) -> "Census":
        """The same of a log that begins later."""
        return self if start <= self.start else Census(start, max(start, self.end), self._stretches)

    def count(self, *kinds: Kind, first: int = 0, end: int | None = None) -> int:
        """How many offsets from ``first`` up to ``end`` are of these kinds."""
        bound = self.end if end is None else end
        if bound <= first:
            return 0
        return sum(self._upto(kind, bound) - self._upto(kind, first) for kind in kinds)

    def holes(self, first: int = 0, end: int | None = None) -> int:
        """How many offsets between two, of those that the log should have, it has not."""
        low, high = max(first, self.start), min(self.end if end is None else end, self.end)
        return max(high - low, 0) - self.count("record", "open", "aborted", "marker", first=low, end=high)

    def kind(self, offset: int) -> Kind | None:
        """What stands at an offset; None for a hole, and for what the log does not have."""
        at = bisect_right(self._firsts, offset) - 1
        found = self._stretches[at] if at >= 0 else None
        return found.kind if found is not None and offset < found.end else None

    def _upto(self, kind: Kind, offset: int) -> int:
        if kind not in self._sums:
            lengths = (each.end - each.first if each.kind == kind else 0 for each in self._stretches)
            self._sums[kind] = [0, *accumulate(lengths)]
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return 0
        last = self._stretches[at]
        inside = min(offset, last.end) - last.first if last.kind == kind else 0
        return self._sums[kind][at] + inside


def take(batches: Iterable[memoryview], start: int, end: int) -> Census:
    """Counts the batches of a partition, given in their order from the log's start on."""
    found: list[Stretch] = []
    pending: dict[int, list[int]] = {}
    """By producer, which stretches are those of its open transaction."""
    for batch in batches:
        header = BatchHeader.read(batch)
        if header.attributes & CONTROL:
            if header.record_count:
                kind: Kind = "record" if is_commit(open_batch(batch)) else "aborted"
                for at in pending.pop(header.producer_id, ()):
                    found[at] = found[at]._replace(kind=kind)
                found.append(Stretch(header.base_offset, header.last_offset + 1, "marker"))
        elif header.attributes & TRANSACTIONAL:
            runs = list(_runs(batch, header, "open"))
            pending.setdefault(header.producer_id, []).extend(range(len(found), len(found) + len(runs)))
            found += runs
        else:
            found += _runs(batch, header, "record")
    return Census(start, end, found)


def _runs(batch: memoryview, header: BatchHeader, kind: Kind) -> Iterator[Stretch]:
    """The offsets of a batch's records."""
    if header.record_count == header.last_offset_delta + 1:
        yield Stretch(header.base_offset, header.last_offset + 1, kind)
    elif header.record_count:
        yield from (Stretch(each.offset, each.offset + 1, kind) for each in open_batch(batch))


def _clipped(stretches: Iterable[Stretch], start: int, end: int) -> Iterator[Stretch]:
    for each in stretches:
        first, last = max(each.first, start), min(each.end, end)
        if first < last:
            yield Stretch(first, last, each.kind)


def _joined(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    held: Stretch | None = None
    for each in stretches:
        if held is not None and (held.end, held.kind) == (each.first, each.kind):
            held = held._replace(end=each.end)
            continue
        if held is not None:
            yield held
        held = each
    if held is not None:
        yield held
