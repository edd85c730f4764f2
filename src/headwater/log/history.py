"""History: the closed segments of a partition, as columns of numbers; a segment becomes an object only when somebody reads it.

So a hundred thousand segments cost four megabytes, are listed by one small file after a clean stop, and are searched by offset
and by time as quickly as ten. As a file (``manifest``): CRC-32C, then msgpack of version and columns, the last entry being the
active segment. To change the format: raise VERSION; a file of another version counts as missing.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from headwater.decoders import from_msgpack

__all__ = ["History", "Summary"]

VERSION = 1


class Summary(NamedTuple):
    """What must be known of a segment that nobody reads."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int


class _Manifest(msgspec.Struct, frozen=True, array_like=True):
    version: int
    bases: bytes
    ends: bytes
    sizes: bytes
    times: bytes


class History:
    """Summaries in the order of their offsets. One partition owns it and calls it from the event loop."""

    def __init__(self, summaries: Iterable[Summary] = ()) -> None:
        self.bases, self.ends, self.sizes, self.times = (array("q") for _ in range(4))
        self._reached = array("q")
        """The greatest timestamp up to and with each segment: it only grows, so it can be searched."""
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
        """Takes the last one out."""
        last = self[-1]
        self.replace(len(self) - 1, 1, [])
        return last

    @property
    def max_timestamp(self) -> int:
        return self._reached[-1] if self._reached else -1

    def holding(self, offset: int) -> int:
        """The place of the segment in which an offset lies, of those that begin before it the last."""
        return bisect_right(self.bases, offset) - 1

    def ended(self, offset: int) -> int:
        """How many segments, from the first on, end at or before an offset."""
        return bisect_right(self.ends, offset)

    def reaching(self, timestamp: int) -> int:
        """The place of the first segment with a record that is not older; the number of all if there is none."""
        return bisect_left(self._reached, timestamp)

    def replace(self, first: int, count: int, summaries: Iterable[Summary]) -> None:
        """Puts other segments where those were."""
        fresh = History(summaries)
        in_order = first + count == len(self) or self._reached[first + count - 1] <= self.times[first + count]
        cut = first == 0 and not fresh and in_order
        self.size_bytes += fresh.size_bytes - sum(self.sizes[first : first + count])
        self.bases[first : first + count] = fresh.bases
        self.ends[first : first + count] = fresh.ends
        self.sizes[first : first + count] = fresh.sizes
        self.times[first : first + count] = fresh.times
        self._reached = self._reached[count:] if cut else array("q", accumulate(self.times, max))

    def encode(self) -> bytes:
        columns = (self.bases, self.ends, self.sizes, self.times)
        data = msgspec.msgpack.encode(_Manifest(VERSION, *(column.tobytes() for column in columns)))
        return crc32c(data).to_bytes(4, "big") + data

    @classmethod
    def decode(cls, data: bytes | None) -> "History | None":
        """None for a file that is missing, damaged or of another version."""
        if data is None or len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        try:
            found = from_msgpack(data[4:], _Manifest)
        except msgspec.DecodeError:
            return None
        if found.version != VERSION or not found.bases:
            return None
        history = cls()
        for column, content in zip(
            (history.bases, history.ends, history.sizes, history.times),
            (found.bases, found.ends, found.sizes, found.times),
            strict=True,
        ):
            column.frombytes(content)
        history._reached = array("q", accumulate(history.times, max))
        history.size_bytes = sum(history.sizes)
        return history
