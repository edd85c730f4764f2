"""Segment: one file of record batches, and the sparse index that finds an offset or a time in it.

Files, named by the first offset:  00000000000000004200.log    the batches, as they came
                                   00000000000000004200.index  index, end, producers (``index.py``)

The index file is written only after the batches were synced, when a segment is closed for good or the broker
stops. So its presence proves that the log file is whole up to the size it names; a segment without one, or
with another size, is read from its start, checked batch by batch, and cut at the first bad one.
"""

from collections.abc import Iterator
from pathlib import Path

from headwater.errors import ProtocolError
from headwater.log.disk import Disk, File
from headwater.log.history import Summary
from headwater.log.index import INTERVAL_BYTES, VERSION, Index, IndexFile
from headwater.log.producer import Producers
from headwater.record import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, Record, batches, open_batch

__all__ = ["Segment", "segment_bases"]

SCAN_BYTES = 1 << 20


def segment_bases(names: list[str]) -> list[int]:
    """First offsets of the segments among the files of a partition's folder, in order."""
    return sorted(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))


class Segment:
    """Batches from ``base_offset`` up to, not including, ``end_offset``.

    One partition owns it and calls it from one thread; only ``file.sync`` and ``save_index`` run elsewhere. It appends and
    reads, and knows nothing of high watermarks: a reader says up to which byte it may see. A segment that is no longer
    written holds neither file nor index between ``release`` and its next use.
    """

    def __init__(self, disk: Disk, folder: Path, base_offset: int, suffix: str = "") -> None:
        self.disk = disk
        self.path = folder / f"{base_offset:020}.log{suffix}"
        self.index_path = folder / f"{base_offset:020}.index{suffix}"
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self._file: File | None = None
        self._index: Index | None = None
        self._last = (base_offset, 0)

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.disk.open(self.path, create=True)
        return self._file

    @property
    def index(self) -> Index:
        if self._index is None:
            found = IndexFile.decode(self.disk.read(self.index_path))
            self._index = found.index if found else Index()
        return self._index

    @property
    def summary(self) -> Summary:
        return Summary(self.base_offset, self.end_offset, self.size_bytes, self.max_timestamp)

    # ---- writing and reading ---------------------------------------------------------------------------

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
        head = data if len(data) >= HEADER_BYTES else self.file.read(HEADER_BYTES, position)
        first_bytes = BatchHeader.read(head).size_bytes
        return data if len(data) >= first_bytes else self.file.read(first_bytes, position)

    def position_of(self, offset: int) -> int:
        """Byte position of the batch that holds an offset, or of the next one behind it."""
        if offset >= self._last[0]:
            return self._last[1] if offset < self.end_offset else self.size_bytes
        for position, header in self.headers(self.index.before_offset(offset)):
            if header.last_offset >= offset:
                return position
        return self.size_bytes

    def bytes_before(self, limit: int) -> int:
        """Up to which byte a reader may see who may read up to an offset."""
        return self.size_bytes if self.end_offset <= limit else self.position_of(limit)

    def find_time(self, timestamp: int) -> Record | None:
        """The first record whose timestamp is not before the given one."""
        if self.max_timestamp < timestamp:
            return None
        for position, header in self.headers(self.index.before_time(timestamp)):
            if header.max_timestamp >= timestamp:
                records = open_batch(self.file.read(header.size_bytes, position))
                found = next((r for r in records if r.timestamp >= timestamp), None)
                if found is not None:
                    return found
        return None

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Headers from a batch's position on; one read reaches the next index entry."""
        start, window = position, b""
        while position < self.size_bytes:
            if position - start + HEADER_BYTES > len(window):
                start, window = position, self.file.read(INTERVAL_BYTES + HEADER_BYTES, position)
            header = BatchHeader.read(window, position - start)
            yield position, header
            position += header.size_bytes

    # ---- life ------------------------------------------------------------------------------------------

    def recover(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Reads the whole file, checking every batch, and cuts it at the first bad one; yields what it finds."""
        self._index = Index()
        end, position = self.file.size(), 0
        while position < end:
            data = self.file.read(SCAN_BYTES, position)
            if len(data) >= HEADER_BYTES and BatchHeader.read(data).size_bytes > len(data):
                data = self.file.read(BatchHeader.read(data).size_bytes, position)
            whole = 0
            try:
                for at, header in batches(data, verify=True):
                    if header.base_offset < self.end_offset:
                        break
                    self._note(position + at, header, header.base_offset)
                    whole = at + header.size_bytes
                    yield header, memoryview(data)[at:whole]
            except ProtocolError:
                pass  # the cut end of the read, or of the file: decided below
            if whole == 0:
                break
            position += whole
        if position < end:
            self.file.truncate(position)
        self.file.sync()

    def load(self) -> bytes | None:
        """Takes over the index file if it is sound and fits the log file; returns the producers as of the segment's end."""
        found = IndexFile.decode(self.disk.read(self.index_path))
        if found is None or found.size_bytes != self.file.size():
            return None
        self.release()  # a start looks at every partition, and must not keep a file of each
        self.restore(Summary(self.base_offset, found.end_offset, found.size_bytes, found.max_timestamp))
        self._index = found.index
        return found.producers

    def restore(self, summary: Summary) -> None:
        """Takes a segment as it was described when it was known to be whole."""
        _, self.end_offset, self.size_bytes, self.max_timestamp = summary
        self._last = (self.end_offset, self.size_bytes)

    def save_index(self, producers: bytes) -> None:
        """Writes the index file. The log file must have been synced before."""
        entries = (self.index.offsets.tobytes(), self.index.positions.tobytes(), self.index.times.tobytes())
        file = IndexFile(VERSION, self.size_bytes, self.end_offset, self.max_timestamp, *entries, producers)
        self.disk.replace(self.index_path, file.encode())

    def saved_producers(self) -> bytes:
        """What was known of producers at the segment's end, from its index file."""
        found = IndexFile.decode(self.disk.read(self.index_path))
        return found.producers if found else Producers().snapshot()

    def renamed(self, suffix: str) -> None:
        """Its files have lost the suffix of their names."""
        self.release()
        self.path = self.path.with_name(self.path.name.removesuffix(suffix))
        self.index_path = self.index_path.with_name(self.index_path.name.removesuffix(suffix))

    def release(self) -> None:
        """Gives back file and index until they are needed again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._index = None

    def remove(self) -> None:
        self.release()
        self.disk.remove(self.index_path)
        self.disk.remove(self.path)

    def _note(self, position: int, header: BatchHeader, base_offset: int) -> None:
        self.index.add(base_offset, position, self.max_timestamp)
        self._last = (base_offset, position)
        self.size_bytes = position + header.size_bytes
        self.end_offset = base_offset + header.last_offset_delta + 1
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
