"""Partition: an ordered, durable sequence of records, kept in segments.

    log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ end_offset

Records up to the high watermark are safe and may be read; ``read_committed`` readers stop at the last stable
offset, where the oldest open transaction begins. With ``flush = "commit"`` the high watermark moves when a
sync has returned; with ``flush = "os"`` at once. A failed sync takes the partition offline until the broker
is started again: what the disk holds of the records after the last sync is then unknown, and the recovery of
the next start reads it.

Files next to the segments:  start      the log start offset, once it is inside a segment (DeleteRecords)
                             cleaned    the offset up to which the log has been compacted
                             swap       an exchange of segments that is under way (``swap.py``)
                             manifest, closed    lists of segments (``manifest.py``)
"""

import contextlib
import errno
import logging
import re
import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from headwater.errors import ErrorCode, RequestError
from headwater.log.storage.batch_check import check_batch, check_keys, check_times
from headwater.log.storage.closed_segments import Summary
from headwater.log.storage.disk import Disk
from headwater.log.storage.disk_space import FULL, DiskSpace
from headwater.log.storage.expiry import Expiry
from headwater.log.storage.producers import Aborted, Marker, Producers
from headwater.log.storage.segment import Segment
from headwater.log.storage.segments import Segments, SyncRound
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import (
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    encode_marker,
    headers,
    open_batch,
    stamp,
    whole_batches,
)

__all__ = ["Appended", "Partition", "read_all"]

logger = logging.getLogger(__name__)

LEADER_EPOCH = 0
"""One broker leads every partition, always."""
READ_ALL_BYTES = 1 << 20
TOPIC_ID = re.compile(r"\.[0-9a-f]{32}$")
"""The end of the name of a partition's folder."""
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""A temporary shortage of the process or the machine; the disk has done nothing."""

_base_offset = struct.Struct(">q")
_leader_epoch = struct.Struct(">i")
_LEADER_EPOCH_AT = 12


class Appended(NamedTuple):
    """The offsets of a batch, also if it had been appended before."""

    base_offset: int
    last_offset: int


class Partition:
    """Offsets, producers and readers of one partition; its ``segments`` own the files.

    Belongs to the event loop.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        config: TopicConfig,
        *,
        sync_on_commit: bool,
        gaps_are_cuts: bool = True,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.name = TOPIC_ID.sub("", folder.name)
        """For people: the topic's name and the number of the partition."""
        self.config = config
        self.high_watermark = 0
        self.log_start_offset = 0
        self.cleaned_to = 0
        """The offset up to which the log has been compacted."""
        self.offline = False
        self._removed = False
        self._disk_space = DiskSpace(self.name)
        self.on_dirty: Callable[[Partition], None] = lambda _: None
        self.producers = Producers()
        self.segments = Segments(disk, folder, self._disk_space)
        self.expiry = Expiry(self.segments)
        self._sync_on_commit = sync_on_commit
        self.watchers: set[Callable[[], None]] = set()
        """Called whenever more can be read, and when nothing more ever will."""
        self.holds: set[Callable[[int], int]] = set()
        """What retention leaves: each says at a time from which offset on records are needed."""
        try:
            self._open(gaps_are_cuts=gaps_are_cuts)
        except OSError as error:
            self.take_offline(error)

    @property
    def end_offset(self) -> int:
        return self.segments.active.end_offset

    @property
    def last_stable_offset(self) -> int:
        first_open = self.producers.first_open_offset()
        if first_open is None:
            return self.high_watermark
        return max(min(first_open, self.high_watermark), self.log_start_offset)

    @property
    def max_timestamp(self) -> int:
        return self.segments.max_timestamp

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    # ---- writing ---------------------------------------------------------------------------------------

    def append(self, data: memoryview, *, now_ms: int = NO_TIMESTAMP, sequenced: bool = True) -> Appended:
        """Appends one batch, or recognizes it as a repetition; raises RequestError.

        ``data`` must be writable. Our own internal records carry a producer without sequence numbers:
        ``sequenced=False``.
        """
        self.check_online()
        header = check_batch(data, self.config.max_message_bytes)
        verdict = self.producers.check(header) if sequenced else None
        if isinstance(verdict, ErrorCode):
            raise RequestError(verdict, f"producer {header.producer_id} sent sequence {header.base_sequence}")
        if verdict is not None:
            return Appended(verdict, verdict + header.last_offset_delta)
        if self.config.compacts:
            check_keys(data, header)
        if self.config.appends_time:
            header = stamp(data, now_ms)
        elif now_ms != NO_TIMESTAMP:
            check_times(data, header, self.config, now_ms)
        base_offset = self._write(data, header, now_ms)
        self.producers.add(header, base_offset)
        self._written()
        return Appended(base_offset, base_offset + header.last_offset_delta)

    def append_marker(self, marker: Marker, now_ms: int) -> int:
        """Ends a producer's transaction; returns the offset of the marker."""
        self.check_online()
        data = bytearray(encode_marker(marker.producer_id, marker.epoch, now_ms, commit=marker.commit))
        offset = self._write(memoryview(data), BatchHeader.read(data), now_ms)
        self.producers.end(marker, offset)
        self._written()
        return offset

    def _write(self, data: memoryview, header: BatchHeader, now_ms: int) -> int:
        """Gives a batch its offset and writes it.

        On a full disk only this batch fails; any other error takes us offline.
        """
        try:
            self.segments.touch()
            active = self.segments.active
            if active.size_bytes and active.size_bytes + len(data) > self.config.segment_bytes:
                active = self.segments.roll(self.producers.snapshot())
            base_offset = active.end_offset
            _base_offset.pack_into(data, 0, base_offset)
            _leader_epoch.pack_into(data, _LEADER_EPOCH_AT, LEADER_EPOCH)
            if not active.size_bytes:
                active.began_ms = now_ms
            if header.max_timestamp == NO_TIMESTAMP != now_ms:
                self.expiry.untimed_ms[active.base_offset] = now_ms
            active.append(data, header, base_offset)
        except OSError as error:
            if error.errno in FULL:
                self._disk_space.mark_full()
            elif error.errno not in PASSING:
                self.take_offline(error)
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._disk_space.mark_free()
        return base_offset

    def _written(self) -> None:
        if not self._sync_on_commit:
            self._advance(self.end_offset)
        if self._sync_on_commit or self.segments.unindexed or self.segments.renamed:
            self.on_dirty(self)

    # ---- syncing ---------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncRound:
        """A round that covers what was written so far: ``run`` it in a thread, then ``finish_sync`` here."""
        return self.segments.begin_sync(sync_active=self._sync_on_commit)

    def finish_sync(self, sync_round: SyncRound) -> None:
        """What the round covered is durable: readers may see it."""
        self.segments.finish_sync(sync_round)
        self._advance(sync_round.end_offset)

    def take_offline(self, error: Exception) -> None:
        """Refuses everything from now on: it is unknown what the disk did with the last writes."""
        if self.offline:
            return  # removed while it was synced
        self.offline = True
        logger.error("partition %s is offline: %s", self.name, error)
        self._notify()

    def check_online(self) -> None:
        """Raises RequestError if the partition is deleted, or offline until the next start."""
        if self._removed:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {self.name} is deleted")
        if self.offline:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self.name} is offline")

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, high_watermark)
        if self.watchers:
            self._notify()

    def _notify(self) -> None:
        for callback in tuple(self.watchers):
            try:
                callback()
            except Exception:  # one watcher must not stop the others, nor the writers that wait for a sync
                logger.exception("partition %s: a waiting reader has failed", self.name)

    # ---- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> bytes:
        """Whole batches from ``offset`` up to what may be read; ``max_bytes`` may cut the last one."""
        self.check_online()
        limit = self.last_stable_offset if committed else self.high_watermark
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise self._out_of_range(offset)
        with self._reading():
            return self.segments.read(offset, limit, max_bytes)

    def aborted(self, offset: int, data: bytes) -> list[Aborted]:
        """The aborted transactions that a reader of this data must skip."""
        if not self.producers.aborted or not data:
            return []
        last_offset = max(header.last_offset for header in headers(data))
        return self.producers.aborted_between(offset, last_offset)

    def is_readable(self, offset: int) -> bool:
        """Whether a reader may be at an offset; at the end it waits for records to come."""
        return not self.offline and self.log_start_offset <= offset <= self.high_watermark

    def available_bytes(self, offset: int, *, committed: bool = False) -> int:
        """About how many bytes a reader at an offset could get now; exact if there are none."""
        limit = self.last_stable_offset if committed else self.high_watermark
        if self.offline or not self.log_start_offset <= offset < limit:
            return 0
        with self._reading():
            segment = self.segments.at(self.segments.holding(offset))
            return max(segment.bytes_before(limit) - segment.position_of(offset), 1)

    def find_time(self, timestamp: int, *, committed: bool = False) -> Record | None:
        """The first readable record at or after a timestamp."""
        self.check_online()
        limit = self.last_stable_offset if committed else self.high_watermark
        with self._reading():
            record = self.segments.find_time(timestamp, self.log_start_offset)
        return record if record is not None and record.offset < limit else None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A failed read is an error of this request only: the disk may well succeed the next time."""
        try:
            yield
        except OSError as error:
            logger.error("partition %s: a read failed: %s", self.name, error)  # noqa: TRY400
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _out_of_range(self, offset: int) -> RequestError:
        what = f"offset {offset} is not between {self.log_start_offset} and {self.high_watermark}"
        return RequestError(ErrorCode.OFFSET_OUT_OF_RANGE, what)

    # ---- retention and compaction ----------------------------------------------------------------------

    def delete_records(self, offset: int) -> None:
        """Moves the log start forward to an offset.

        Segments that end before it are dropped some at a time.
        """
        self.check_online()
        if not 0 <= offset <= self.high_watermark:
            raise self._out_of_range(offset)
        if offset <= self.log_start_offset:
            return
        try:
            self.segments.touch()
            self.disk.replace(self.folder / "start", str(offset).encode())
            self.log_start_offset = offset
            self._drop_segments()
        except OSError as error:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def expire(self, now_ms: int) -> bool:
        """Applies retention to a bounded number of segments.

        Returns whether any was dropped, so that there may be more.
        """
        if self.offline:
            return False
        kept_from = self.expiry.first_kept(self.config, self.needed_from(now_ms), now_ms)
        self.log_start_offset = max(self.log_start_offset, kept_from)
        return self._drop_segments()

    def needed_from(self, now_ms: int) -> int:
        """The offset before which no reader needs records; what is not readable yet is needed."""
        return min((hold(now_ms) for hold in self.holds), default=self.high_watermark)

    def roll(self) -> None:
        """Begins a new segment, so that retention and compaction can take the records so far."""
        if self.segments.active.size_bytes and not self.offline:
            self.segments.touch()
            self.segments.roll(self.producers.snapshot())
            self.on_dirty(self)

    def dirty_since_ms(self) -> int:
        """The timestamp of the first record that is not compacted yet; NO_TIMESTAMP if it has none."""
        with self._reading():
            return self.segments.at(self.segments.closed.ended(self.cleaned_to)).first_timestamp()

    def swap(
        self, old: list[Summary], new: Segment, cleaned_to: int, dropped_markers: Collection[int] = ()
    ) -> None:
        """Replaces segments by the compacted one that was made from them, whose files are in place."""
        self.producers.forget_ends(dropped_markers)
        self.segments.replace(old, new)
        self.cleaned_to = max(self.cleaned_to, cleaned_to)

    def _drop_segments(self) -> bool:
        """Drops segments before the log start, a bounded number at a time; returns whether there were any."""
        dropped = self.segments.drop_before(self.log_start_offset)
        if not dropped:
            return False
        self.producers.forget_before(self.log_start_offset)
        self.expiry.forget(dropped)
        self.on_dirty(self)
        return True

    # ---- opening and closing ---------------------------------------------------------------------------

    def close(self) -> None:
        """Syncs, and writes what lets the next start skip the scan."""
        if not self.offline:
            self.segments.close(self.producers)
        self.segments.release()

    def remove(self) -> None:
        """Ends the partition and removes its files."""
        self.offline = self._removed = True
        self.segments.release()
        self.disk.remove_folder(self.folder)
        self._notify()

    def _open(self, *, gaps_are_cuts: bool) -> None:
        self.segments.open(self.producers, gaps_are_cuts=gaps_are_cuts)
        self.cleaned_to = int(self.disk.read(self.folder / "cleaned") or 0)
        start = int(self.disk.read(self.folder / "start") or 0)
        if start > self.end_offset:
            # Records before `start` were deleted, and a power cut has lost the last of them.
            self.segments.restart_at(start)
        self.log_start_offset = max(self.segments.first_offset, start)
        self._forget_lost_markers()
        self._drop_segments()
        self._advance(self.end_offset)

    def _forget_lost_markers(self) -> None:
        """Checks aborted transactions: an index may be older than the compaction that removed a marker."""
        has_marker = self.segments.has_marker
        lost = {a.last_offset for a in self.producers.aborted if not has_marker(a.last_offset, a.producer_id)}
        self.producers.forget_ends(lost)


def read_all(partition: Partition) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Every batch of a partition with its records: for the topics that hold the broker's own state."""
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        data = partition.read(offset, READ_ALL_BYTES)
        if not data:
            return
        for batch in whole_batches(data):
            header = BatchHeader.read(batch)
            yield header, open_batch(batch)
            offset = header.last_offset + 1
