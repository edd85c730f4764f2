"""Segment: one file of record batches, and the sparse index that finds an offset or a time in it.

Files, named by the first offset:  00000000000000004200.log    the batches, as they came
                                   00000000000000004200.index  index, end, producers

The index file is written only after the batches were synced, when a segment is closed for good or the broker
stops. So its presence proves that the log file is whole up to the size it names; a segment without one, or
with another size, is read from its start, checked batch by batch, and cut at the first bad one.
To change the index format: raise INDEX_VERSION; an index of another version is rebuilt by that same scan.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path

import msgspec
from crc32c import crc32c

from headwater.errors import ProtocolError
from headwater.log.disk import Disk, File
from headwater.record import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, Record, batches, open_batch

__all__ = ["Segment", "segment_bases"]

INDEX_INTERVAL_BYTES = 4096
INDEX_VERSION = 1
SCAN_BYTES = 1 << 20


class _IndexFile(msgspec.Struct, frozen=True, array_like=True):
    version: int
    size_bytes: int
    end_offset: int
    max_timestamp: int
    offsets: bytes
    positions: bytes
    times: bytes
    producers: bytes


def segment_bases(names: list[str]) -> list[int]:
    """First offsets of the segments among the files of a partition's folder, in order."""
    return sorted(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))


class Segment:
    """Batches from ``base_offset`` up to, not including, ``end_offset``.

    One partition owns it and calls it from one thread; only ``file.sync`` runs elsewhere. It appends and reads, and
    knows nothing of high watermarks: a reader says up to which byte it may see.
    """

    def __init__(self, disk: Disk, folder: Path, base_offset: int) -> None:
        self.disk = disk
        self.path = folder / f"{base_offset:020}.log"
        self.index_path = folder / f"{base_offset:020}.index"
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.producers = b""
        self._file: File | None = None
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")
        self._indexed_bytes = -INDEX_INTERVAL_BYTES
        self._last = (base_offset, 0)

    @property
    def file(self) -> File:
        """The log file, open from the first use until ``close``."""
        if self._file is None:
            self._file = self.disk.open(self.path, create=True)
        return self._file

    def append(self, data: bytes | bytearray | memoryview, header: BatchHeader, base_offset: int) -> None:
        """Writes one batch whose base offset already stands in ``data``."""
        self.file.write(data, self.size_bytes)
        self._note(self.size_bytes, header, base_offset)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:
        """Batches from the one that holds ``offset``, at most ``max_bytes`` but one whole batch at least, before byte ``end``."""
        position = self.position_of(offset)
        if position >= end:
            return b""
        data = self.file.read(min(max_bytes, end - position), position)
        if len(data) >= HEADER_BYTES:
            first = BatchHeader.read(data)
        else:
            first = BatchHeader.read(self.file.read(HEADER_BYTES, position))
        return data if len(data) >= first.size_bytes else self.file.read(first.size_bytes, position)

    def position_of(self, offset: int) -> int:
        """Byte position of the batch that holds an offset, or of the next one behind it."""
        if offset >= self._last[0]:
            return self._last[1] if offset < self.end_offset else self.size_bytes
        entry = max(bisect_right(self._offsets, offset) - 1, 0)
        for position, header in self._headers(self._positions[entry]):
            if header.last_offset >= offset:
                return position
        return self.size_bytes

    def find_time(self, timestamp: int) -> Record | None:
        """The first record whose timestamp is not before the given one."""
        if self.max_timestamp < timestamp:
            return None
        entry = max(bisect_left(self._times, timestamp) - 1, 0)
        for position, header in self._headers(self._positions[entry]):
            if header.max_timestamp >= timestamp:
                records = open_batch(self.file.read(header.size_bytes, position))
                return next((r for r in records if r.timestamp >= timestamp), None)
        return None

    def recover(self) -> Iterator[BatchHeader]:
        """Reads the whole file, checking every batch, and cuts it at the first bad one; the headers read are yielded."""
        end, position = self.file.size(), 0
        while position < end:
            data = self.file.read(SCAN_BYTES, position)
            size = _first_size(data)
            if size > len(data):
                data = self.file.read(size, position)
            whole = 0
            try:
                for at, header in batches(data, verify=True):
                    if header.base_offset < self.end_offset:
                        break
                    self._note(position + at, header, header.base_offset)
                    whole = at + header.size_bytes
                    yield header
            except ProtocolError:
                pass  # the cut end of the read, or of the file: decided below
            if whole == 0:
                break
            position += whole
        if position < end:
            self.file.truncate(position)
        self.file.sync()

    def load_index(self) -> bool:
        """Takes over the index file if it is sound and fits the log file."""
        data = self.disk.read(self.index_path)
        if data is None or len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return False
        index = msgspec.msgpack.decode(data[4:], type=_IndexFile)
        if index.version != INDEX_VERSION or index.size_bytes != self.file.size():
            return False
        self.size_bytes, self.end_offset, self.max_timestamp = (
            index.size_bytes,
            index.end_offset,
            index.max_timestamp,
        )
        for target, content in (
            (self._offsets, index.offsets),
            (self._positions, index.positions),
            (self._times, index.times),
        ):
            target.frombytes(content)
        self.producers = index.producers
        self._indexed_bytes = self._positions[-1] if self._positions else -INDEX_INTERVAL_BYTES
        self._last = (self.end_offset, self.size_bytes)
        return True

    def save_index(self, producers: bytes) -> None:
        """Writes the index file. The log file must have been synced before."""
        arrays = (self._offsets.tobytes(), self._positions.tobytes(), self._times.tobytes())
        index = _IndexFile(
            INDEX_VERSION, self.size_bytes, self.end_offset, self.max_timestamp, *arrays, producers
        )
        data = msgspec.msgpack.encode(index)
        self.disk.replace(self.index_path, crc32c(data).to_bytes(4, "big") + data)

    def drop_index(self) -> None:
        """Withdraws the proof of a clean end before the first write behind it."""
        self.disk.remove(self.index_path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        self.close()
        self.disk.remove(self.index_path)
        self.disk.remove(self.path)

    def _note(self, position: int, header: BatchHeader, base_offset: int) -> None:
        if position - self._indexed_bytes >= INDEX_INTERVAL_BYTES:
            self._offsets.append(base_offset)
            self._positions.append(position)
            self._times.append(self.max_timestamp)
            self._indexed_bytes = position
        self._last = (base_offset, position)
        self.size_bytes = position + header.size_bytes
        self.end_offset = base_offset + header.last_offset_delta + 1
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)

    def _headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Headers from an indexed position on; one read reaches the next index entry."""
        start, window = position, self.file.read(INDEX_INTERVAL_BYTES + HEADER_BYTES, position)
        while position < self.size_bytes:
            if position - start + HEADER_BYTES > len(window):
                start, window = position, self.file.read(INDEX_INTERVAL_BYTES + HEADER_BYTES, position)
            header = BatchHeader.read(window, position - start)
            yield position, header
            position += header.size_bytes


def _first_size(data: bytes) -> int:
    return BatchHeader.read(data).size_bytes if len(data) >= HEADER_BYTES else 0
