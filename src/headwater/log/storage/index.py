"""Index: finds an offset or a time in a segment, with one entry every few kilobytes.

As a file: CRC-32C, then msgpack of version, the end of the segment, the entries, and the producers as of its
end. To change the format: raise VERSION; a file of another version is treated as missing, and the segment is
scanned.
"""

from array import array
from bisect import bisect_left, bisect_right

import msgspec
from crc32c import crc32c

from headwater.decoders import from_msgpack

__all__ = ["Index", "IndexFile"]

INTERVAL_BYTES = 4096
VERSION = 2


class Index:
    """Entry i: the batch at ``positions[i]`` begins with ``offsets[i]``.

    All records before it are at most ``times[i]``.
    """

    def __init__(self, offsets: bytes = b"", positions: bytes = b"", times: bytes = b"") -> None:
        self.offsets, self.positions, self.times = (
            array("q", offsets),
            array("q", positions),
            array("q", times),
        )
        self._reached = self.positions[-1] if self.positions else -INTERVAL_BYTES

    def add(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """Adds an entry for a batch if it is far enough from the last entry."""
        if position - self._reached >= INTERVAL_BYTES:
            self.offsets.append(offset)
            self.positions.append(position)
            self.times.append(max_timestamp_before)
            self._reached = position

    def before_offset(self, offset: int) -> int:
        """A position at or before the batch that holds an offset; the next entry is after it."""
        return self.positions[max(bisect_right(self.offsets, offset) - 1, 0)] if self.positions else 0

    def before_time(self, timestamp: int) -> int:
        """A position at or before the first batch that reaches a timestamp."""
        return self.positions[max(bisect_left(self.times, timestamp) - 1, 0)] if self.positions else 0


class IndexFile(msgspec.Struct, frozen=True, array_like=True):
    """The content of the file of a closed segment's index."""

    version: int
    size_bytes: int
    end_offset: int
    max_timestamp: int
    offsets: bytes
    positions: bytes
    times: bytes
    producers: bytes

    @property
    def index(self) -> Index:
        return Index(self.offsets, self.positions, self.times)

    def encode(self) -> bytes:
        data = msgspec.msgpack.encode(self)
        return crc32c(data).to_bytes(4, "big") + data

    @classmethod
    def decode(cls, data: bytes | None) -> "IndexFile | None":
        """None for a file that is missing, damaged or of another version."""
        if data is None or len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        try:
            file = from_msgpack(data[4:], cls)
        except msgspec.ValidationError:
            return None
        return file if file.version == VERSION else None
