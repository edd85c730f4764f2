"""Timeline: the versions of keys, each with the time from which it holds, and which of them held at a time.

Two kinds of input make a timeline, and in both any order of arrival gives the same one:

    changes    every row is a version. Of two that hold from the same time the later in the log counts (``_offset``), without offsets
               the one with the greater bytes. A delete (``_gone``) is a version with nothing in it
    rows       weighted rows of a table that has a row for each version: 1 puts a version in, -1 takes it out again. Of two that
               hold from the same time the one with the greater bytes counts

A version counts from its time on, that microsecond with it, until the next one.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.late import ARRIVAL
from headwater.pipeline import rowbytes
from headwater.pipeline.wire import GONE

__all__ = [
    "FAR",
    "OFFSET",
    "Fresh",
    "Held",
    "Lines",
    "changed_from",
    "fresh",
    "ids",
    "joined",
    "same_versions",
    "searched",
    "stacked",
]

OFFSET = "_offset"
FAR = 1 << 62
"""Never, as a time-out."""
TIMES = pa.timestamp("us", "UTC")
NO_OFFSET = -1
_count = struct.Struct("<I")
_entry = struct.Struct("<qqiI")
_ENTRY = np.dtype([("valid", "<i8"), ("order", "<i8"), ("weight", "<i4"), ("length", "<u4")])

Fresh = tuple[int, int, int, bytes]
"""A version as it comes: the time from which it holds, its offset, its weight (0: gone), its row as bytes."""


class Held(NamedTuple):
    """The versions of a key in order."""

    entries: Sequence[Fresh] = ()

    @classmethod
    def loaded(cls, kept: bytes, at: int = 0) -> "Held":
        """From its bytes, which begin at a place."""
        (count,) = _count.unpack_from(kept, at)
        found, begin = [], at + _count.size + count * _entry.size
        for n in range(count):
            valid, order, weight, length = _entry.unpack_from(kept, at + _count.size + n * _entry.size)
            found.append((valid, order, weight, kept[begin : begin + length]))
            begin += length
        return cls(found)

    def packed(self) -> bytes:
        """Their number, of each its time, offset, weight and the length of its row, then the rows."""
        heads = [_entry.pack(valid, order, weight, len(row)) for valid, order, weight, row in self.entries]
        return b"".join([_count.pack(len(heads)), *heads, *(row for *_, row in self.entries)])

    def with_changes(self, came: Sequence[Fresh]) -> "Held":
        """After some changes: of those with the same time one is left."""
        best = {each[0]: each for each in self.entries}
        for each in came:
            known = best.get(each[0])
            if known is None or (each[1], each[3]) > (known[1], known[3]):
                best[each[0]] = each
        return Held([best[valid] for valid in sorted(best)])

    def with_rows(self, came: Sequence[Fresh]) -> "Held":
        """After rows came in and were taken out."""
        weights = {(valid, row): weight for valid, _, weight, row in self.entries}
        for valid, _, weight, row in came:
            weights[valid, row] = weights.get((valid, row), 0) + weight
        left = sorted((valid, row, weight) for (valid, row), weight in weights.items() if weight)
        return Held([(valid, NO_OFFSET, weight, row) for valid, row, weight in left])

    def since(self, time_us: int) -> "Held":
        """What an event from a time on may meet: the version that held then, and all later ones. A delete is nothing to meet."""
        at = max(0, bisect_right(self.entries, time_us, key=itemgetter(0)) - 1)
        if at < len(self.entries) and self.entries[at][2] <= 0 and self.entries[at][0] <= time_us:
            at += 1
        return self if at == 0 else Held(self.entries[at:])

    def next_us(self) -> int:
        """The time from which on one of them is not needed any more."""
        if self.entries and self.entries[0][2] <= 0:
            return self.entries[0][0]
        return self.entries[1][0] if len(self.entries) > 1 else FAR


def fresh(
    rows: pa.Table, keys: Sequence[bytes], valid: str, shown: Sequence[str], weights: Sequence[int] | None
) -> dict[bytes, list[Fresh]]:
    """The versions in some rows by their keys. Those without a time are left out. ``weights``: these are rows of a table."""
    times = rows.column(valid).cast(TIMES).cast(pa.int64())
    gone = None
    if weights is None and GONE in rows.column_names:
        gone = pc.fill_null(rows.column(GONE), False)
        if ARRIVAL in rows.column_names:
            times = pc.if_else(gone, pc.coalesce(times, rows.column(ARRIVAL).cast(pa.int64())), times)
    flags = gone.to_pylist() if gone is not None else [False] * rows.num_rows
    offsets = (
        pc.fill_null(rows.column(OFFSET), NO_OFFSET).to_pylist()
        if weights is None and OFFSET in rows.column_names
        else [NO_OFFSET] * rows.num_rows
    )
    each = weights if weights is not None else [0 if flag else 1 for flag in flags]
    data = rowbytes.pack(rows.select(shown)).to_pylist()
    found: dict[bytes, list[Fresh]] = {}
    for key, at, offset, weight, flag, row in zip(
        keys, times.to_pylist(), offsets, each, flags, data, strict=True
    ):
        if at is not None:
            found.setdefault(key, []).append((at, offset, weight, b"" if flag else row))
    return found


def changed_from(before: Held, after: Held) -> int | None:
    """The first time at which two timelines differ; None when they do not."""
    different = set(before.entries).symmetric_difference(after.entries)
    return min((each[0] for each in different), default=None)


class Lines(NamedTuple):
    """Timelines one after the other, and all of their versions by number."""

    times: Any
    """From when each version holds that is there."""
    numbers: Any
    """Its number; -1 for a delete."""
    bounds: Any
    """Where each timeline begins among them, with the end of the last."""

    data: bytes
    valid: Any
    order: Any
    begins: Any
    """Of all versions by number: where its row begins in the data."""
    lengths: Any

    def row(self, number: int) -> bytes:
        begin = int(self.begins[number])
        return self.data[begin : begin + int(self.lengths[number])]


def stacked(kept: Sequence[bytes], skip: int = 0) -> Lines:
    """The timelines in these bytes, of which each has something else before it. No version becomes an object: there may be very many."""
    data, starts = rowbytes.stacked(kept)
    counts, entries, begins = rowbytes.listed(data, starts + skip, _ENTRY)
    valid, weight = entries["valid"].astype(np.int64), entries["weight"]
    bounds = np.concatenate(([0], np.cumsum(counts)))
    numbers = np.where(weight > 0, np.arange(len(weight)), -1)
    times = valid
    if (weight < 0).any():  # taken out before it came in
        there = weight >= 0
        bounds = np.concatenate(([0], np.cumsum(there)))[bounds]
        times, numbers = valid[there], numbers[there]
    order = entries["order"].astype(np.int64)
    return Lines(times, numbers, bounds, data, valid, order, begins, entries["length"].astype(np.int64))


def joined(one: Lines, other: Lines) -> Lines:
    """The first, with the versions of the other behind its own."""
    return one._replace(
        data=one.data + other.data,
        valid=np.concatenate((one.valid, other.valid)),
        order=np.concatenate((one.order, other.order)),
        begins=np.concatenate((one.begins, other.begins + len(one.data))),
        lengths=np.concatenate((one.lengths, other.lengths)),
    )


def searched(lines: Lines, line: Any, time: Any) -> Any:
    """The number of the version that held at each time in each of these timelines; -1 for none.

    Binary searches side by side, each in its own stretch: as many steps as the longest timeline needs.
    """
    if not len(lines.times):
        return np.full(len(line), -1, np.int64)
    first = lines.bounds[line]
    low, high = first.copy(), lines.bounds[line + 1]
    longest = int((lines.bounds[1:] - lines.bounds[:-1]).max())
    last = len(lines.times) - 1
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        holds = (low < high) & (lines.times[np.minimum(middle, last)] <= time)
        high = np.where(holds, high, middle)
        low = np.where(holds, middle + 1, low)
    return np.where(low > first, lines.numbers[np.maximum(low - 1, 0)], -1)


def same_versions(lines: Lines, some: Any, others: Any) -> Any:
    """Whether two versions by number are one, for each pair. Pairs repeat: all events of a stretch of time have the same."""
    size = len(lines.valid) + 1
    pairs, places = np.unique((some + 1) * size + others + 1, return_inverse=True)
    answers = [_is_same(lines, *(n - 1 for n in divmod(pair, size))) for pair in pairs.tolist()]
    return np.array(answers, bool)[places]


def _is_same(lines: Lines, one: int, other: int) -> bool:
    if one < 0 or other < 0:
        return one == other
    same_id = lines.valid[one] == lines.valid[other] and lines.order[one] == lines.order[other]
    return bool(same_id) and lines.row(one) == lines.row(other)


def ids(valid: Any, order: Any) -> pa.Array:
    """The ids of versions: the time from which each holds, and where it stands in the log if that is known."""
    times = pa.array(valid, pa.int64()).cast(pa.timestamp("us"))
    ends = pa.array(["Z" if each < 0 else f"Z#{each}" for each in np.asarray(order).tolist()], pa.string())
    return pc.binary_join_element_wise(pc.strftime(times, "%Y-%m-%dT%H:%M:%S"), ends, "")
