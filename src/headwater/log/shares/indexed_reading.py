"""Records of the log for one member, where the keys and headers of records count (``queue/record_index.py``).

Batches are opened some way ahead of what is delivered. A member gets the records that it has locked, and no
others: batches with what is left of those in the log.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from headwater.log.shares.reading import Delivery, readable_to, spans
from headwater.log.storage.partition import Partition
from headwater.queue.acquisition import Acquisition, Wish
from headwater.queue.record_index import IndexedRecord, RecordIndex, read_headers
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_partition import SharePartition
from headwater.record import BatchHeader, RecordSlice, join_slices, open_slices, whole_batches

__all__ = ["IndexedReader"]

READ_BYTES = 1 << 18
OPEN_BYTES_MAX = 1 << 22
"""How much of the opened batches is kept, for their delivery."""
STEP_BYTES_MAX = 1 << 20
"""How much is opened in one step of the event loop, if something can be delivered already."""
SEARCH_BYTES_MAX = 1 << 22
"""The same if nothing can be delivered yet."""


class _Opened(NamedTuple):
    """A record, and the header of its batch."""

    header: BatchHeader
    record: RecordSlice

    @property
    def size_bytes(self) -> int:
        return len(self.record.encoded)


@dataclass(slots=True)
class IndexedReader:
    """The opened records of one share partition."""

    share: SharePartition
    log: Partition
    started_ms: int
    """The wall time at which the clock of locks and delays was 0."""
    orders_by_key: bool
    index: RecordIndex = field(init=False)
    _open: dict[int, _Opened] = field(default_factory=dict)
    """By their offsets, the records that were opened last."""
    _open_bytes: int = 0

    def __post_init__(self) -> None:
        self.index = RecordIndex(self.share.start)
        self.share.watch(self.index)

    def may_deliver(self, config: ShareConfig) -> bool:
        """Whether it is worth a look."""
        if not self.share.locks_left(config):
            return False
        return self._has_more(config) or (self.index.ready > 0 and not self._is_catching_up)

    def deliver(
        self, wish: Wish, config: ShareConfig, *, bytes_max: int, is_first: bool, now: float
    ) -> Delivery:
        """Locks what a member may have now. The first record of an answer may exceed ``bytes_max``."""
        self.log.check_online()
        self.share.drop_before(self.log.log_start_offset)
        is_cut = self._open_ahead(config, now)
        if self._is_catching_up:
            return Delivery(b"", [], is_cut=is_cut)
        acquisition = Acquisition(wish._replace(strict=True), config, now)
        wanted = min(wish.records_max, self.share.locks_left(config))
        chosen, rest, size_bytes = list[_Opened](), list[int](), 0
        for offset in self.index.take(wanted):
            opened = self._opened(offset)
            fits = size_bytes + opened.size_bytes <= bytes_max or (is_first and not chosen)
            if fits and self.share.lock(acquisition, offset):
                chosen.append(opened)
                size_bytes += opened.size_bytes
            else:
                rest.append(offset)
        self.index.put_back(offset for offset in rest if self.share.is_available(offset))
        self.share.note_acquired(acquisition)
        return Delivery(b"".join(_batches(chosen)), acquisition.sorted(), is_cut=is_cut and not chosen)

    # ---- opening ---------------------------------------------------------------------------------------

    def _has_more(self, config: ShareConfig) -> bool:
        if self.share.next_unsettled(self.index.scanned) >= readable_to(self.log, config):
            return False
        return self._is_catching_up or (self.index.wants_more and self.share.delayed < config.delayed_max)

    @property
    def _is_catching_up(self) -> bool:
        """Whether records may be with members, or delayed, whose keys the index does not know yet."""
        return self.share.next_unsettled(self.index.scanned) < self.share.end

    def _open_ahead(self, config: ShareConfig, now: float) -> bool:
        """Opens records until enough may be delivered; returns whether it has stopped before that."""
        opened_bytes = 0
        while self._has_more(config):
            is_enough = self.index.ready > 0 and not self._is_catching_up
            if opened_bytes > (STEP_BYTES_MAX if is_enough else SEARCH_BYTES_MAX):
                return True
            offset = self.index.scanned = self.share.next_unsettled(self.index.scanned)
            data = self.log.read(offset, READ_BYTES, committed=config.reads_committed)
            batches = [(BatchHeader.read(batch), batch) for batch in whole_batches(data)]
            at = offset
            found = spans(self.log, offset, batches, config)
            for number, span in enumerate(found):
                self.share.skip(at, span.first - 1)
                if span.deliver:
                    self._open_batch(*batches[number], now)
                else:
                    self.share.skip(max(span.first, at), span.last)
                at = self.index.scanned = max(at, span.last + 1)
            opened_bytes += max(len(data), 1)
        return False

    def _open_batch(self, header: BatchHeader, batch: memoryview, now: float) -> None:
        at = max(header.base_offset, self.index.scanned)
        for record in self._keep(header, batch):
            offset = record.offset
            if offset < at:
                continue
            self.share.skip(at, offset - 1)
            at = offset + 1
            priority, due_ms = read_headers(record.headers)
            until = (due_ms - self.started_ms) / 1000 if due_ms else 0.0
            run = self.share.discover(offset, until if until > now else 0.0)
            key = record.key if self.orders_by_key else None
            self.index.add(IndexedRecord(offset, key, priority), run)
        self.share.skip(at, header.last_offset)

    def _keep(self, header: BatchHeader, batch: memoryview) -> list[RecordSlice]:
        """The records of a batch, in the order of their offsets; they are kept for their delivery."""
        records = list(open_slices(batch))
        for record in records:
            former = self._open.pop(record.offset, None)
            self._open_bytes += len(record.encoded) - (former.size_bytes if former is not None else 0)
            self._open[record.offset] = _Opened(header, record)
        while self._open_bytes > OPEN_BYTES_MAX and len(self._open) > len(records):
            self._open_bytes -= self._open.pop(next(iter(self._open))).size_bytes
        return records

    # ---- delivering ------------------------------------------------------------------------------------

    def _opened(self, offset: int) -> _Opened:
        """A record, whose batch is opened once more if that was long ago."""
        if offset not in self._open:
            batch = next(whole_batches(self.log.read(offset, READ_BYTES)))
            self._keep(BatchHeader.read(batch), batch)
        return self._open[offset]


def _batches(chosen: Iterable[_Opened]) -> Iterator[bytes]:
    """Batches with these records alone, not compressed."""
    for header, opened in groupby(sorted(chosen, key=_offset), key=attrgetter("header")):
        yield join_slices(header, (each.record for each in opened))


def _offset(opened: _Opened) -> int:
    return opened.record.offset
