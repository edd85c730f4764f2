"""ParkedScan: finds the parked records of a share partition again, and the ids that came within a time.

After a start, or when a change could not be stored, what is parked is known by a few numbers only
(``queue/parking.py``). The scan reads the log from there, in steps, up to where the group had opened it.
"""

from collections.abc import Iterator

from headwater.log.shares.reading import spans
from headwater.log.storage.partition import Partition
from headwater.queue.parking import hash_of
from headwater.queue.recent_ids import RecentIds
from headwater.queue.record_headers import read_headers
from headwater.queue.run import DeliveryState
from headwater.queue.schedule import Due
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_partition import SharePartition
from headwater.record import BatchHeader, RecordSlice, open_slices, whole_batches

__all__ = ["ParkedScan"]

STEP_BYTES = 1 << 18
"""How much is read in one step of the event loop."""


class ParkedScan:
    """One scan. ``ids`` learns the ids of its records, if there are any to learn."""

    def __init__(self, share: SharePartition, log: Partition, ids: RecentIds | None) -> None:
        self._share = share
        self._log = log
        self._ids = ids
        self.generation = share.parking.generation
        self._parked_from = share.end
        if not share.parking.is_complete:
            self._parked_from = max(share.parking.lowest_offset(share.end), 0)
            self.generation = share.parking.restart()
        self.end = share.end
        self.at = min(self._parked_from, self._ids_from())

    @property
    def is_over(self) -> bool:
        return self.at >= self.end

    def covers(self, offset: int) -> bool:
        """Whether the record at an offset will be looked at."""
        return max(self.at, self._parked_from) <= offset < self.end

    def complete(self) -> None:
        """When it is over: all that is parked was found."""
        if not self._share.parking.is_complete:
            self._share.parking.complete()

    def step(self, config: ShareConfig) -> None:
        """Reads a little. Raises RequestError if it cannot be read."""
        if not self.is_over:
            offset = max(self.at, self._log.log_start_offset)
            data = self._log.read(offset, STEP_BYTES, committed=config.reads_committed)
            batches = [(BatchHeader.read(batch), batch) for batch in whole_batches(data)]
            for number, span in enumerate(spans(self._log, offset, batches, config)):
                if span.deliver:
                    for record in self._records(batches[number][1], offset):
                        self._look_at(record)
                offset = max(offset, span.last + 1)
            self.at = offset

    def _ids_from(self) -> int:
        """Where the ids begin that count for the records after the end."""
        log, end = self._log, self._share.end
        if self._ids is None or log.log_start_offset >= end:
            return end
        last = next(whole_batches(log.read(end - 1, STEP_BYTES)), None)
        if last is None:
            return end
        first = log.find_time(BatchHeader.read(last).base_timestamp - self._ids.window_ms)
        return end if first is None else min(first.offset, end)

    def _records(self, batch: memoryview, first: int) -> Iterator[RecordSlice]:
        return (record for record in open_slices(batch) if first <= record.offset < self.end)

    def _look_at(self, record: RecordSlice) -> None:
        offset, parking = record.offset, self._share.parking
        headers = read_headers(record.headers)
        if self._ids is not None and headers.id is not None:
            self._ids.is_repeated(headers.id, record.timestamp)
        if offset < self._parked_from:
            return
        run = self._share.reach(offset)
        if run is None or run.state is not DeliveryState.SETTLED or parking.cancelled.has(offset):
            return
        due = Due(headers.due_ms, offset)
        if headers.due_ms and parking.may_schedule(due):
            if not 0 < headers.expires_ms <= headers.due_ms:
                parking.schedule(due)
        elif record.key is not None and parking.first_deferred:
            key_hash = hash_of(record.key)
            if parking.defers(key_hash, offset):
                parking.defer(key_hash, offset)
