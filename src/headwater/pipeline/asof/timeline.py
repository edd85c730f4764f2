"""Timelines: the versions of keys with their times, and the version that was valid at a given time.

There are two kinds of input. With both, any order of arrival gives the same timeline:

    changes    every row is a version. Of two that are valid from the same time, the later one in the log
               wins (``_offset``), or without offsets the one with the greater bytes. A deletion
               (``_gone``) is a version without a row
    rows       weighted rows of a table that has a row for each version: 1 inserts a version, -1 retracts
               it. Of two that are valid from the same time, the one with the greater bytes wins

A version is valid from its time, inclusive, until the next one begins.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.declare.lateness import ARRIVAL
from headwater.pipeline.arrow import row_bytes
from headwater.pipeline.wire.wire import GONE

__all__ = [
    "FAR",
    "OFFSET",
    "TIMES",
    "Timeline",
    "Timelines",
    "Version",
    "concat_timelines",
    "find_versions",
    "first_difference",
    "read_versions",
    "same_versions",
    "stack_timelines",
    "version_ids",
]

OFFSET = "_offset"
FAR = 1 << 62
"""Never, as a time-out."""
TIMES = pa.timestamp("us", "UTC")
NO_OFFSET = -1
Numbers = npt.NDArray[np.int64]
_count = struct.Struct("<I")
_entry = struct.Struct("<qqiI")
_ENTRY = np.dtype([("valid", "<i8"), ("order", "<i8"), ("weight", "<i4"), ("length", "<u4")])

Version = tuple[int, int, int, bytes]
"""The time from which a version is valid, its offset, its weight (0 for a deletion), and its row as bytes."""


class Timeline(NamedTuple):
    """The versions of one key, by time."""

    entries: Sequence[Version] = ()

    @classmethod
    def loaded(cls, kept: bytes, at: int = 0) -> "Timeline":
        """From its bytes, which begin at this place."""
        (count,) = _count.unpack_from(kept, at)
        versions, begin = [], at + _count.size + count * _entry.size
        for n in range(count):
            valid, order, weight, length = _entry.unpack_from(kept, at + _count.size + n * _entry.size)
            versions.append((valid, order, weight, kept[begin : begin + length]))
            begin += length
        return cls(versions)

    def packed(self) -> bytes:
        """The number of versions; the time, offset, weight and row length of each; then the rows."""
        heads = [_entry.pack(valid, order, weight, len(row)) for valid, order, weight, row in self.entries]
        return b"".join([_count.pack(len(heads)), *heads, *(row for *_, row in self.entries)])

    def with_changes(self, versions: Sequence[Version]) -> "Timeline":
        """With more changes of the key; one version remains for each time."""
        best = {version[0]: version for version in self.entries}
        for version in versions:
            other = best.get(version[0])
            if other is None or (version[1], version[3]) > (other[1], other[3]):
                best[version[0]] = version
        return Timeline([best[valid] for valid in sorted(best)])

    def with_rows(self, versions: Sequence[Version]) -> "Timeline":
        """After rows were inserted and retracted."""
        weights = {(valid, row): weight for valid, _, weight, row in self.entries}
        for valid, _, weight, row in versions:
            weights[valid, row] = weights.get((valid, row), 0) + weight
        left = sorted((valid, row, weight) for (valid, row), weight in weights.items() if weight)
        return Timeline([(valid, NO_OFFSET, weight, row) for valid, row, weight in left])

    def since(self, time_us: int) -> "Timeline":
        """The versions for events from this time on: the one valid then and all later ones.

        A deletion at the start is left out.
        """
        at = max(0, bisect_right(self.entries, time_us, key=itemgetter(0)) - 1)
        if at < len(self.entries) and self.entries[at][2] <= 0 and self.entries[at][0] <= time_us:
            at += 1
        return self if at == 0 else Timeline(self.entries[at:])

    def next_us(self) -> int:
        """The time from which the first version is no longer needed."""
        if self.entries and self.entries[0][2] <= 0:
            return self.entries[0][0]
        return self.entries[1][0] if len(self.entries) > 1 else FAR


def read_versions(
    rows: pa.Table, keys: Sequence[bytes], valid: str, columns: Sequence[str], weights: Sequence[int] | None
) -> dict[bytes, list[Version]]:
    """The versions in these rows, by key.

    Rows without a time are left out. ``weights``: the rows are those of a table.
    """
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
    if weights is None:
        weights = [0 if flag else 1 for flag in flags]
    data = row_bytes.pack(rows.select(columns)).to_pylist()
    versions: dict[bytes, list[Version]] = {}
    for key, time, offset, weight, flag, row in zip(
        keys, times.to_pylist(), offsets, weights, flags, data, strict=True
    ):
        if time is not None:
            versions.setdefault(key, []).append((time, offset, weight, b"" if flag else row))
    return versions


def first_difference(before: Timeline, after: Timeline) -> int | None:
    """The first time at which two timelines differ; None if they are equal."""
    different = set(before.entries).symmetric_difference(after.entries)
    return min((version[0] for version in different), default=None)


class Timelines(NamedTuple):
    """Several timelines, one after another. Versions are numbered over all of them."""

    times: Numbers
    """The time from which each version is valid, without versions that were retracted before they were
    inserted."""
    numbers: Numbers
    """The number of each of these versions; -1 for a deletion."""
    bounds: Numbers
    """The first of these versions of each timeline, and the end of the last timeline."""

    data: bytes
    valid: Numbers
    """The time from which each version is valid, by number."""
    order: Numbers
    """The offset of each version, by number."""
    begins: Numbers
    """The place of its row in the data, by number."""
    lengths: Numbers

    def row(self, number: int) -> bytes:
        begin = int(self.begins[number])
        return self.data[begin : begin + int(self.lengths[number])]


def stack_timelines(kept: Sequence[bytes], skip: int = 0) -> Timelines:
    """The timelines in these bytes, after ``skip`` bytes each.

    No Python object per version: there may be very many.
    """
    data, starts = row_bytes.stacked(kept)
    counts, entries, begins = row_bytes.listed(data, starts + skip, _ENTRY)
    valid, weight = entries["valid"].astype(np.int64), entries["weight"]
    bounds = np.concatenate(([0], np.cumsum(counts)))
    numbers = np.where(weight > 0, np.arange(len(weight)), -1)
    times = valid
    if (weight < 0).any():  # retracted before they were inserted
        shown = weight >= 0
        bounds = np.concatenate(([0], np.cumsum(shown)))[bounds]
        times, numbers = valid[shown], numbers[shown]
    order = entries["order"].astype(np.int64)
    return Timelines(times, numbers, bounds, data, valid, order, begins, entries["length"].astype(np.int64))


def concat_timelines(one: Timelines, other: Timelines) -> Timelines:
    """The first, with the versions of the other numbered after its own.

    Lookups still find only those of the first.
    """
    return one._replace(
        data=one.data + other.data,
        valid=np.concatenate((one.valid, other.valid)),
        order=np.concatenate((one.order, other.order)),
        begins=np.concatenate((one.begins, other.begins + len(one.data))),
        lengths=np.concatenate((one.lengths, other.lengths)),
    )


def find_versions(lines: Timelines, line: Numbers, time: Numbers) -> Numbers:
    """The number of the version that was valid at each time, in the timeline given for each; -1 for none.

    All binary searches run side by side, each in its own timeline, with as many steps as the longest one
    needs.
    """
    if not len(lines.times):
        return np.full(len(line), -1, np.int64)
    first = lines.bounds[line]
    low, high = first.copy(), lines.bounds[line + 1]
    longest = int((lines.bounds[1:] - lines.bounds[:-1]).max())
    last = len(lines.times) - 1
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        is_valid = (low < high) & (lines.times[np.minimum(middle, last)] <= time)
        high = np.where(is_valid, high, middle)
        low = np.where(is_valid, middle + 1, low)
    return np.where(low > first, lines.numbers[np.maximum(low - 1, 0)], -1)


def same_versions(lines: Timelines, some: Numbers, others: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the versions of each pair of numbers are equal.

    Pairs repeat a lot: events close in time have the same ones.
    """
    size = len(lines.valid) + 1
    pairs, places = np.unique((some + 1) * size + others + 1, return_inverse=True)
    equal = [_is_same(lines, *(n - 1 for n in divmod(pair, size))) for pair in pairs.tolist()]
    answers: npt.NDArray[np.bool_] = np.array(equal, bool)[places]
    return answers


def _is_same(lines: Timelines, one: int, other: int) -> bool:
    if one < 0 or other < 0:
        return one == other
    same_id = lines.valid[one] == lines.valid[other] and lines.order[one] == lines.order[other]
    return bool(same_id) and lines.row(one) == lines.row(other)


def version_ids(valid: Numbers | Sequence[int], order: Numbers | Sequence[int]) -> pa.Array:
    """The ids of versions: the time from which each is valid, and its offset in the log if that is known."""
    times = pa.array(valid, pa.int64()).cast(pa.timestamp("us"))
    offsets = np.asarray(order).tolist()
    ends = pa.array(["Z" if offset < 0 else f"Z#{offset}" for offset in offsets], pa.string())
    return pc.binary_join_element_wise(pc.strftime(times, "%Y-%m-%dT%H:%M:%S"), ends, "")
