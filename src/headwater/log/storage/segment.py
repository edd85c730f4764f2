"""Segment: one file of record batches, and the sparse index that finds an offset or a time in it.

Files, named by the first offset:  00000000000000004200.log    the batches, as they came
                                   00000000000000004200.index  index, end, producers (``index.py``)

The index file is written only after the batches were synced, when the segment is closed or the broker stops.
So an index proves that the log file is complete up to the size it states. A segment without one, or of
another size, is read from its start, checked batch by batch, and cut at the first bad one.
"""

import errno
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from headwater.errors import ProtocolError
from headwater.log.storage.closed_segments import Summary
from headwater.log.storage.disk import Disk, File
from headwater.log.storage.index import INTERVAL_BYTES, VERSION, Index, IndexFile
from headwater.record import CONTROL, HEADER_BYTES, NO_TIMESTAMP, BatchHeader, Record, batches, open_batch

__all__ = ["Segment", "segment_bases"]

SCAN_BYTES = 1 << 20


def segment_bases(names: list[str]) -> list[int]:
    """First offsets of the segments among the files of a partition's folder, in order."""
    return sorted(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))


class Segment:
    """Batches from ``base_offset`` up to, not including, ``end_offset``.

    One partition owns it and calls it from one thread; only ``file.sync`` and ``save_index`` run in another.
    It does not know the high watermark: a reader says up to which byte it may read. A segment that is no
    longer written holds neither file nor index between ``release`` and its next use.
    """

    def __init__(self, disk: Disk, folder: Path, base_offset: int, suffix: str = "") -> None:
        self.disk = disk
        self._folder, self._suffix = folder, suffix
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.began_ms = NO_TIMESTAMP
        """When its first batch was appended; set by the partition."""
        self._file: File | None = None
        self._index: Index | None = None
        self._last = (base_offset, 0)

    @cached_property
    def path(self) -> Path:
        return self._folder / f"{self.base_offset:020}.log{self._suffix}"

    @cached_property
    def index_path(self) -> Path:
        return self._folder / f"{self.base_offset:020}.index{self._suffix}"

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.disk.open(self.path, create=not self.size_bytes)
        return self._file

    @property
    def index(self) -> Index:
        if self._index is None:
            file = IndexFile.decode(self.disk.read(self.index_path))
            fits = file is not None and file.size_bytes == self.size_bytes
            self._index = file.index if file is not None and fits else Index()
        return self._index

    @property
    def summary(self) -> Summary:
        return Summary(self.base_offset, self.end_offset, self.size_bytes, self.max_timestamp)

    # ---- writing and reading ---------------------------------------------------------------------------

    def append(self, data: bytes | bytearray | memoryview, header: BatchHeader, base_offset: int) -> None:
        """Writes one batch, whose base offset is already set in ``data``."""
        self.file.write(data, self.size_bytes)
        self._note(self.size_bytes, header, base_offset)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:
        """Batches from the one that holds ``offset`` up to byte ``end``.

        They are at most ``max_bytes``, but at least one batch.
        """
        position = self.position_of(offset)
        if position >= end:
            return b""
        data = self._exactly(min(max_bytes, end - position), position)
        head = data if len(data) >= HEADER_BYTES else self._exactly(HEADER_BYTES, position)
        first_bytes = BatchHeader.read(head).size_bytes
        return data if len(data) >= first_bytes else self._exactly(first_bytes, position)

    def position_of(self, offset: int) -> int:
        """Byte position of the batch that holds an offset, or of the next batch after it."""
        if offset >= self._last[0]:
            return self._last[1] if offset < self.end_offset else self.size_bytes
        for position, header in self.headers(self.index.before_offset(offset)):
            if header.last_offset >= offset:
                return position
        return self.size_bytes

    def bytes_before(self, limit: int) -> int:
        """The byte up to which a reader may read that may read up to an offset."""
        return self.size_bytes if self.end_offset <= limit else self.position_of(limit)

    def find_time(self, timestamp: int, first_offset: int) -> Record | None:
        """The first record from an offset on that is at or after a timestamp."""
        if self.max_timestamp < timestamp:
            return None
        start = max(self.index.before_time(timestamp), self.index.before_offset(first_offset))
        for position, header in self.headers(start):
            if header.max_timestamp >= timestamp and header.last_offset >= first_offset:
                for record in _records(self._exactly(header.size_bytes, position), header):
                    if record.timestamp >= timestamp and record.offset >= first_offset:
                        return record
        return None

    def first_timestamp(self) -> int:
        """The timestamp of its first batch, or NO_TIMESTAMP."""
        # With a handle of its own: there are as many active segments as partitions, and most are idle.
        file = self.disk.open(self.path)
        try:
            head = file.read(HEADER_BYTES, 0)
        finally:
            file.close()
        return BatchHeader.read(head).max_timestamp if len(head) == HEADER_BYTES else NO_TIMESTAMP

    def marker_at(self, offset: int, producer_id: int) -> bool:
        """Whether a producer's transaction ends at an offset of this segment."""
        position = self.position_of(offset)
        if position >= self.size_bytes:
            return False
        header = BatchHeader.read(self._exactly(HEADER_BYTES, position))
        return (
            header.base_offset == offset
            and bool(header.attributes & CONTROL)
            and header.producer_id == producer_id
        )

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Headers from the position of a batch on; one read is enough to reach the next index entry."""
        start, window = position, b""
        while position < self.size_bytes:
            if position - start + HEADER_BYTES > len(window):
                want = min(INTERVAL_BYTES + HEADER_BYTES, self.size_bytes - position)
                start, window = position, self._exactly(want, position)
            header = BatchHeader.read(window, position - start)
            yield position, header
            position += header.size_bytes

    # ---- recovery, index and files ---------------------------------------------------------------------

    def recover(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Reads the whole file, yields every sound batch, and cuts the file at the first bad one."""
        self._index = Index()
        end, position = self.file.size(), 0
        while position < end:
            data = self._exactly(min(SCAN_BYTES, end - position), position)
            if len(data) >= HEADER_BYTES and BatchHeader.read(data).size_bytes > len(data):
                data = self._exactly(min(BatchHeader.read(data).size_bytes, end - position), position)
            whole = 0
            try:
                for at, header in batches(data, verify=True):
                    if header.base_offset < self.end_offset:
                        break
                    self._note(position + at, header, header.base_offset)
                    whole = at + header.size_bytes
                    yield header, memoryview(data)[at:whole]
            except ProtocolError:
                pass  # the end of what was read, or of the file, is inside a batch: decided below
            if whole == 0:
                break
            position += whole
        if position < end:
            self.file.truncate(position)
        self.file.sync()

    def load(self) -> bytes | None:
        """Uses the index file if it is sound and fits the log file.

        Returns the producers as of the segment's end.
        """
        file = IndexFile.decode(self.disk.read(self.index_path))
        if file is None or file.size_bytes != self.file.size():
            return None
        self.release()  # a start loads every partition, and must not keep a file of each open
        self.restore(Summary(self.base_offset, file.end_offset, file.size_bytes, file.max_timestamp))
        self._index = file.index
        return file.producers

    def restore(self, summary: Summary) -> None:
        """Takes the end, size and timestamp of a segment that is known to be complete."""
        _, self.end_offset, self.size_bytes, self.max_timestamp = summary
        self._last = (self.end_offset, self.size_bytes)

    def reach(self, end_offset: int) -> None:
        """Sets an end after the last batch: the records in between were compacted, or are lost."""
        self.restore(self.summary._replace(end_offset=end_offset))

    def save_index(self, producers: bytes) -> None:
        """Writes the index file. The log file must be synced already."""
        entries = (self.index.offsets.tobytes(), self.index.positions.tobytes(), self.index.times.tobytes())
        file = IndexFile(VERSION, self.size_bytes, self.end_offset, self.max_timestamp, *entries, producers)
        self.disk.replace(self.index_path, file.encode())

    def saved_producers(self) -> bytes | None:
        """The producers as of the segment's end; None if its index file is lost."""
        file = IndexFile.decode(self.disk.read(self.index_path))
        return file.producers if file else None

    def renamed(self, suffix: str) -> None:
        """After a rename of its files, which have lost this suffix."""
        self.release()
        self.path = self.path.with_name(self.path.name.removesuffix(suffix))
        self.index_path = self.index_path.with_name(self.index_path.name.removesuffix(suffix))

    def release(self) -> None:
        """Closes the file and drops the index until they are needed again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._index = None

    def remove(self) -> None:
        self.release()
        self.disk.remove(self.index_path)
        self.disk.remove(self.path)

    def _exactly(self, length: int, position: int) -> bytes:
        """Reads bytes that must be in the file: fewer are a failed read, never the end of the log."""
        data = self.file.read(length, position)
        while len(data) < length:
            more = self.file.read(length - len(data), position + len(data))
            if not more:
                where = f"{self.path.name}: {length - len(data)} bytes are missing at {position + len(data)}"
                raise OSError(errno.EIO, where)
            data += more
        return data

    def _note(self, position: int, header: BatchHeader, base_offset: int) -> None:
        self.index.add(base_offset, position, self.max_timestamp)
        self._last = (base_offset, position)
        self.size_bytes = position + header.size_bytes
        self.end_offset = base_offset + header.last_offset_delta + 1
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)


def _records(batch: bytes, header: BatchHeader) -> list[Record]:
    """The records of a batch; for one that cannot be opened, a record with its offset and timestamp only."""
    try:
        return open_batch(batch)
    except Exception:  # noqa: BLE001  foreign encoders and four decompressors raise what they like
        return [Record(None, None, (), header.max_timestamp, header.base_offset)]
