"""OpenedRecords: the records of batches that were opened last, for their delivery."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from headwater.log.storage.partition import Partition
from headwater.record import BatchHeader, RecordSlice, join_slices, open_slices, whole_batches

__all__ = ["Opened", "OpenedRecords", "joined"]

READ_BYTES = 1 << 18
OPEN_BYTES_MAX = 1 << 22
"""How much of the opened batches is kept."""
RECORD_BYTES = 400
"""What a record takes beside its bytes."""


class Opened(NamedTuple):
    """A record, and the header of its batch."""

    header: BatchHeader
    record: RecordSlice

    @property
    def size_bytes(self) -> int:
        return len(self.record.encoded)

    @property
    def kept_bytes(self) -> int:
        return self.size_bytes + RECORD_BYTES


class OpenedRecords:
    """Of one partition. A record that was opened long ago is read again."""

    def __init__(self, log: Partition) -> None:
        self._log = log
        self._open: dict[int, Opened] = {}
        """By their offsets, in the order in which they were opened."""
        self._open_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, header: BatchHeader, batch: memoryview) -> list[RecordSlice]:
        """The records of a batch, in the order of their offsets."""
        records = list(open_slices(batch))
        for record in records:
            former = self._open.pop(record.offset, None)
            opened = self._open[record.offset] = Opened(header, record)
            self._open_bytes += opened.kept_bytes - (former.kept_bytes if former is not None else 0)
        while self._open_bytes > OPEN_BYTES_MAX and len(self._open) > len(records):
            self._open_bytes -= self._open.pop(next(iter(self._open))).kept_bytes
        return records

    def at(self, offset: int) -> Opened:
        """One record. Raises RequestError if it cannot be read."""
        if offset not in self._open:
            batch = next(whole_batches(self._log.read(offset, READ_BYTES)))
            self.open(BatchHeader.read(batch), batch)
        return self._open[offset]


def joined(chosen: Iterable[Opened]) -> Iterator[bytes]:
    """Batches with these records alone, not compressed."""
    for header, opened in groupby(sorted(chosen, key=_offset), key=attrgetter("header")):
        yield join_slices(header, (each.record for each in opened))


def _offset(opened: Opened) -> int:
    return opened.record.offset
