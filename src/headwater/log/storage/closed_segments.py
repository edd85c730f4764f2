"""ClosedSegments: the closed segments of a partition as columns of numbers.

Only a segment that is read becomes an object. So a hundred thousand segments take four megabytes, are listed
by one small file after a clean stop, and are searched by offset or time as quickly as ten. As a file
(``manifest.py``): CRC-32C, then msgpack of version and columns; the last entry is the active segment. To
change the format: raise VERSION; a file of another version is treated as missing.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from headwater.decoders import from_msgpack

__all__ = ["ClosedSegments", "Summary"]

VERSION = 1


class Summary(NamedTuple):
    """The facts about a segment that are needed while it is not read."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    """The content of the file."""

    version: int
    bases: bytes
    ends: bytes
    sizes: bytes
    times: bytes


class ClosedSegments:
    """Summaries in the order of their offsets. One partition owns it and calls it from the event loop."""

    def __init__(self, summaries: Iterable[Summary] = ()) -> None:
        self.bases, self.ends, self.sizes, self.times = (array("q") for _ in range(4))
        self._reached = array("q")
        """The maximum timestamp up to each segment: it never decreases, so it can be searched."""
        self.size_bytes = 0
        for summary in summaries:
            self.append(summary)

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, at: int) -> Summary:
        return Summary(self.bases[at], self.ends[at], self.sizes[at], self.times[at])

    def __iter__(self) -> Iterator[Summary]:
        return map(Summary, self.bases, self.ends, self.sizes, self.times)

    def append(self, summary: Summary) -> None:
        self.bases.append(summary.base_offset)
        self.ends.append(summary.end_offset)
        self.sizes.append(summary.size_bytes)
        self.times.append(summary.max_timestamp)
        self._reached.append(max(summary.max_timestamp, self._reached[-1] if self._reached else -1))
        self.size_bytes += summary.size_bytes

    def pop(self) -> Summary:
        """Removes and returns the last summary."""
        last = self[-1]
        self.replace(len(self) - 1, 1, [])
        return last

    @property
    def max_timestamp(self) -> int:
        return self._reached[-1] if self._reached else -1

    def holding(self, offset: int) -> int:
        """The index of the last segment that begins at or before an offset; -1 if there is none."""
        return bisect_right(self.bases, offset) - 1

    def ended(self, offset: int) -> int:
        """The number of segments that end at or before an offset."""
        return bisect_right(self.ends, offset)

    def reaching(self, timestamp: int) -> int:
        """The index of the first segment with a record at or after a timestamp.

        The number of segments if there is none.
        """
        return bisect_left(self._reached, timestamp)

    def replace(self, first: int, count: int, summaries: Iterable[Summary]) -> None:
        """Replaces ``count`` segments, from index ``first`` on."""
        new = ClosedSegments(summaries)
        in_order = first + count == len(self) or self._reached[first + count - 1] <= self.times[first + count]
        only_cut = first == 0 and not new and in_order
        self.size_bytes += new.size_bytes - sum(self.sizes[first : first + count])
        self.bases[first : first + count] = new.bases
        self.ends[first : first + count] = new.ends
        self.sizes[first : first + count] = new.sizes
        self.times[first : first + count] = new.times
        self._reached = self._reached[count:] if only_cut else array("q", accumulate(self.times, max))

    def encode(self) -> bytes:
        columns = (self.bases, self.ends, self.sizes, self.times)
        data = msgspec.msgpack.encode(_Columns(VERSION, *(column.tobytes() for column in columns)))
        return crc32c(data).to_bytes(4, "big") + data

    @classmethod
    def decode(cls, data: bytes | None) -> "ClosedSegments | None":
        """None for a file that is missing, damaged or of another version."""
        if data is None or len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        try:
            columns = from_msgpack(data[4:], _Columns)
        except msgspec.DecodeError:
            return None
        if columns.version != VERSION or not columns.bases:
            return None
        segments = cls()
        for column, content in zip(
            (segments.bases, segments.ends, segments.sizes, segments.times),
            (columns.bases, columns.ends, columns.sizes, columns.times),
            strict=True,
        ):
            column.frombytes(content)
        segments._reached = array("q", accumulate(segments.times, max))
        segments.size_bytes = sum(segments.sizes)
        return segments
