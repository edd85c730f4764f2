"""Partition: an ordered, durable sequence of records, kept in segments.

    log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ end_offset

Records up to the high watermark are safe and may be read; ``read_committed`` readers stop at the last stable offset,
where the oldest open transaction begins. With ``flush = "commit"`` the high watermark moves when a sync has
returned; with ``flush = "os"`` at once. A failed sync takes the partition offline until the broker is started
again: what the disk holds behind the last sync is then unknown, and is read back by recovery.

Files beside the segments:  start      the log start offset, once it lies inside a segment (DeleteRecords)
                            swap       an exchange of segments under way (``swap.py``)
                            manifest   a clean stop's list of segments; gone with the first write after the next start
"""

import errno
import logging
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.errors import ErrorCode, ProtocolError, Refused
from headwater.log import swap
from headwater.log.config import TopicConfig
from headwater.log.disk import Disk
from headwater.log.producer import Aborted, Marker, Producers
from headwater.log.segment import Segment, Summary, segment_bases
from headwater.record import (
    CONTROL,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    batches,
    encode_marker,
    is_commit,
    open_batch,
    stamp,
    whole_batches,
)

__all__ = ["Appended", "Partition", "read_all"]

logger = logging.getLogger(__name__)

LEADER_EPOCH = 0
"""One broker leads every partition from the first day on."""
READ_ALL_BYTES = 1 << 20
WARM_SEGMENTS_MAX = 4
"""How many segments behind the active one keep their file and index at hand."""

_base_offset = struct.Struct(">q")
_leader_epoch = struct.Struct(">i")
_LEADER_EPOCH_AT = 12


class Appended(NamedTuple):
    """Where a batch stands, also when it had been appended before."""

    base_offset: int
    last_offset: int


class Partition:
    """Owns the segments of one folder. All calls come from the event loop; ``sync`` alone runs in a thread."""

    def __init__(self, disk: Disk, folder: Path, config: TopicConfig, *, sync_on_commit: bool) -> None:
        self.disk = disk
        self.folder = folder
        self.config = config
        self.high_watermark = 0
        self.log_start_offset = 0
        self.cleaned_to = 0
        """Up to which offset the log has been compacted, since the broker started."""
        self.offline = False
        self.on_dirty: Callable[[Partition], None] = lambda _: None
        self.producers = Producers()
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._sync_on_commit = sync_on_commit
        self._rolled: list[tuple[Segment, bytes]] = []
        self._warm: OrderedDict[int, Segment] = OrderedDict()
        self._clean = False
        self._blank = False
        """Nothing was ever written, so there are no files: a topic of a thousand partitions costs nothing until it is used."""
        self._watchers: set[Callable[[], None]] = set()
        self._open()

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset

    @property
    def last_stable_offset(self) -> int:
        first_open = self.producers.first_open_offset()
        return self.high_watermark if first_open is None else min(first_open, self.high_watermark)

    @property
    def max_timestamp(self) -> int:
        return max(segment.max_timestamp for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # ---- writing ---------------------------------------------------------------------------------------

    def append(self, data: memoryview, *, now_ms: int = NO_TIMESTAMP, sequenced: bool = True) -> Appended:
        """Appends one batch, or recognises it as a repetition; raises Refused. ``data`` must be writable.

        Our own internal records carry a producer without sequence numbers: ``sequenced=False``.
        """
        header = self._checked(data)
        verdict = self.producers.check(header) if sequenced else None
        if isinstance(verdict, ErrorCode):
            raise Refused(verdict, f"producer {header.producer_id} sent sequence {header.base_sequence}")
        if verdict is not None:
            return Appended(verdict, verdict + header.last_offset_delta)
        if self.config.appends_time:
            header = stamp(data, now_ms)
        base_offset = self._write(data, header)
        self.producers.add(header, base_offset)
        self._written()
        return Appended(base_offset, base_offset + header.last_offset_delta)

    def append_marker(self, marker: Marker, now_ms: int) -> int:
        """Ends a producer's transaction; the offset of the marker is returned."""
        self._check_online()
        data = memoryview(
            bytearray(encode_marker(marker.producer_id, marker.epoch, now_ms, commit=marker.commit))
        )
        offset = self._write(data, BatchHeader.read(data))
        self.producers.end(marker, offset)
        self._written()
        return offset

    def begin_sync(self) -> Callable[[], Callable[[], None]]:
        """Takes note of what is written; the returned function syncs it in a thread and returns what the loop then does."""
        active, end_offset = self.segments[-1], self.end_offset
        rolled, self._rolled = self._rolled, []

        def sync() -> Callable[[], None]:
            for segment, producers in rolled:
                segment.file.sync()
                segment.save_index(producers)
            if self._sync_on_commit:
                active.file.sync()
            return lambda: self._synced(end_offset, rolled)

        return sync

    def take_offline(self, error: OSError) -> None:
        """Refuses everything from now on: what the disk did with the last writes is not known."""
        self.offline = True
        logger.error("partition %s is offline: %s", self.folder.name, error)
        self._notify()

    # ---- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> bytes:
        """Whole batches from ``offset`` up to what may be read; the last one may be cut by ``max_bytes``."""
        self._check_online()
        limit = self.last_stable_offset if committed else self.high_watermark
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.log_start_offset} to {self.high_watermark}",
            )
        at = bisect_right(self._bases, offset) - 1
        while offset < limit and at < len(self.segments):
            segment = self._warmed(self.segments[at])
            data = segment.read(offset, max_bytes, _readable_bytes(segment, limit))
            if data:
                return data
            at += 1  # compaction may have left nothing behind this offset in its segment
        return b""

    def aborted(self, offset: int, data: bytes) -> list[Aborted]:
        """The aborted transactions that a reader of this data must skip."""
        if not self.producers.aborted or not data:
            return []
        last = max(BatchHeader.read(data, at).last_offset for at in _batch_starts(data))
        return self.producers.aborted_between(offset, last)

    def available_bytes(self, offset: int, *, committed: bool = False) -> int:
        """About how many bytes a reader at an offset could have now; exact when there are none."""
        limit = self.last_stable_offset if committed else self.high_watermark
        if self.offline or not self.log_start_offset <= offset < limit:
            return 0
        segment = self._warmed(self.segments[bisect_right(self._bases, offset) - 1])
        return max(_readable_bytes(segment, limit) - segment.position_of(offset), 1)

    def find_time(self, timestamp: int) -> Record | None:
        """The first readable record that is not older than a timestamp."""
        for segment in self.segments:
            if segment.max_timestamp >= timestamp:
                found = self._warmed(segment).find_time(timestamp)
                if found is not None:
                    return found if self.log_start_offset <= found.offset < self.high_watermark else None
        return None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever more can be read, or never will; returns the function that ends it."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)

    # ---- forgetting ------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> None:
        """Moves the log start to an offset; the files behind it go segment by segment."""
        self._check_online()
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.log_start_offset} to {self.high_watermark}",
            )
        try:
            self.touch()
            self.disk.replace(self.folder / "start", str(offset).encode())
            self.log_start_offset = offset
            self._drop_segments()
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def expire(self, now_ms: int) -> None:
        """Applies retention: whole segments whose youngest record is too old, then the oldest beyond the size allowed."""
        config, closed = self.config, self.segments[:-1]
        if self.offline or not config.deletes:
            return
        start, excess = self.log_start_offset, self.size_bytes - config.retention_bytes
        for segment, successor in zip(closed, self.segments[1:], strict=True):
            too_old = config.retention_ms >= 0 and segment.max_timestamp < now_ms - config.retention_ms
            too_much = config.retention_bytes >= 0 and excess >= segment.size_bytes
            if successor.base_offset > self.high_watermark or not (too_old or too_much):
                break
            excess -= segment.size_bytes
            start = successor.base_offset
        if start > self.log_start_offset:
            self.log_start_offset = start
            self._drop_segments()

    def roll(self) -> None:
        """Begins a new segment, so that the records so far come under retention and compaction."""
        if self.segments[-1].size_bytes and not self.offline:
            self.touch()
            self._begin_segment()
            self.on_dirty(self)

    def swap(self, old: list[Segment], new: Segment, cleaned_to: int) -> None:
        """Puts a compacted segment, whose files are in place, where those were that it was made from."""
        first = self.segments.index(old[0])
        self.segments[first : first + len(old)] = [new]
        self._bases = [segment.base_offset for segment in self.segments]
        for segment in old:
            self._warm.pop(segment.base_offset, None)
            segment.release()
        self.cleaned_to = max(self.cleaned_to, cleaned_to)

    # ---- life ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Syncs and writes what lets the next start skip the scan."""
        if not self.offline and not self._clean and not self._blank:
            self.begin_sync()()
            active = self.segments[-1]
            active.file.sync()
            active.save_index(self.producers.snapshot())
            manifest = [segment.summary for segment in self.segments]
            self.disk.replace(self.folder / "manifest", msgspec.msgpack.encode(manifest))
        for segment in self.segments:
            segment.release()

    def remove(self) -> None:
        """Ends the partition and its files."""
        self.offline = True
        for segment in self.segments:
            segment.release()
        self.disk.remove_folder(self.folder)
        self._notify()

    def _open(self) -> None:
        self._blank = not self.disk.names(self.folder)
        if self._blank:
            self.segments = [Segment(self.disk, self.folder, 0)]
        else:
            self._open_files()
        self._bases = [segment.base_offset for segment in self.segments]
        start = self.disk.read(self.folder / "start")
        self.log_start_offset = max(self.segments[0].base_offset, int(start or 0))
        self._drop_segments()
        self._advance(self.end_offset)

    def _open_files(self) -> None:
        swap.finish(self.disk, self.folder)
        manifest = self.disk.read(self.folder / "manifest")
        if manifest is None or not self._open_clean(msgspec.msgpack.decode(manifest, type=list[Summary])):
            self._open_unclean()

    def _open_clean(self, summaries: list[Summary]) -> bool:
        """After a clean stop only the last segment is looked at."""
        segments = [Segment(self.disk, self.folder, summary.base_offset) for summary in summaries]
        for segment, summary in zip(segments, summaries, strict=True):
            segment.restore(summary)
        producers = segments[-1].load()
        if producers is None:
            return False
        self.producers.restore(producers)
        self.segments, self._clean = segments, True
        return True

    def _open_unclean(self) -> None:
        """Reads every segment that has no proof of its end; where one was cut, what lies behind the cut is no log any more."""
        bases = segment_bases(self.disk.names(self.folder)) or [0]
        found = [Segment(self.disk, self.folder, base) for base in bases]
        while found:
            segment = found.pop(0)
            self.segments.append(segment)
            producers = segment.load()
            if producers is not None:
                self.producers.restore(producers)
                segment.release()
                continue
            self._recover(segment)
            if found and segment.end_offset < found[0].base_offset:
                logger.warning("%s: dropped %d segments behind the cut", self.folder.name, len(found))
                for lost in found:
                    lost.remove()
                found = []
            if found:
                segment.save_index(self.producers.snapshot())
                segment.release()
        self.disk.sync_folder(self.folder)

    def _recover(self, segment: Segment) -> None:
        found_bytes = segment.file.size()
        for header, data in segment.recover():
            if header.attributes & CONTROL:
                marker = Marker(header.producer_id, header.producer_epoch, is_commit(open_batch(data)))
                self.producers.end(marker, header.base_offset)
            else:
                self.producers.add(header, header.base_offset)
        lost = found_bytes - segment.size_bytes
        if lost:
            where = f"{self.folder.name}/{segment.path.name}"
            logger.warning(
                "%s: cut %d bytes of a torn write behind offset %d", where, lost, segment.end_offset
            )

    # ---- inside ----------------------------------------------------------------------------------------

    def _checked(self, data: memoryview) -> BatchHeader:
        self._check_online()
        if len(data) > self.config.max_message_bytes:
            what = f"a batch of {len(data)} bytes is larger than max.message.bytes = {self.config.max_message_bytes}"
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, what)
        try:
            found = [header for _, header in batches(data, verify=True)]
        except ProtocolError as error:
            code = ErrorCode.INVALID_RECORD if "format" in error.what else ErrorCode.CORRUPT_MESSAGE
            raise Refused(code, str(error)) from error
        if len(found) != 1:
            raise Refused(ErrorCode.INVALID_RECORD, f"{len(found)} batches where one is expected")
        header = found[0]
        if (
            header.record_count != header.last_offset_delta + 1
            or header.record_count < 1
            or header.attributes & CONTROL
        ):
            what = f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} offsets"
            raise Refused(ErrorCode.INVALID_RECORD, what)
        return header

    def _check_online(self) -> None:
        if self.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self.folder.name} is offline")

    def _write(self, data: memoryview, header: BatchHeader) -> int:
        """Gives a batch its offset and writes it. A full disk refuses it and harms nothing; any other failure ends the partition."""
        try:
            self.touch()
            active = self.segments[-1]
            if active.size_bytes and active.size_bytes + len(data) > self.config.segment_bytes:
                active = self._begin_segment()
            base_offset = active.end_offset
            _base_offset.pack_into(data, 0, base_offset)
            _leader_epoch.pack_into(data, _LEADER_EPOCH_AT, LEADER_EPOCH)
            active.append(data, header, base_offset)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                self.take_offline(error)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return base_offset

    def _written(self) -> None:
        if not self._sync_on_commit:
            self._advance(self.end_offset)
        if self._sync_on_commit or self._rolled:
            self.on_dirty(self)

    def touch(self) -> None:
        """Before the first change: makes the files of a new partition, or withdraws the proofs of a clean end."""
        if self._blank:
            self.disk.make_folder(self.folder)
            self.segments[-1].file.truncate(0)
            self.disk.sync_folder(self.folder)
            self.disk.sync_folder(self.folder.parent)
            self._blank = False
        if self._clean:
            self.disk.remove(self.folder / "manifest")
            self.segments[-1].disk.remove(self.segments[-1].index_path)
            self.disk.sync_folder(self.folder)
            self._clean = False

    def _begin_segment(self) -> Segment:
        active = self.segments[-1]
        fresh = Segment(self.disk, self.folder, active.end_offset)
        fresh.file.truncate(0)
        self.disk.sync_folder(self.folder)
        self._rolled.append((active, self.producers.snapshot()))
        self.segments.append(fresh)
        self._bases.append(fresh.base_offset)
        return fresh

    def _synced(self, end_offset: int, rolled: list[tuple[Segment, bytes]]) -> None:
        for segment, _ in rolled:
            self._warmed(segment)
        self._advance(end_offset)

    def _warmed(self, segment: Segment) -> Segment:
        """Keeps the segments that were read last at hand, and releases the others."""
        if segment is self.segments[-1]:
            return segment
        self._warm[segment.base_offset] = segment
        self._warm.move_to_end(segment.base_offset)
        while len(self._warm) > WARM_SEGMENTS_MAX:
            _, coldest = self._warm.popitem(last=False)
            if all(coldest is not waiting for waiting, _ in self._rolled):
                coldest.release()
        return segment

    def _drop_segments(self) -> None:
        """Removes the files of segments that lie wholly before the log start, each durably before the next.

        A power cut that forgot one of them and kept a later removal would leave a hole, and a hole looks like the end of the log.
        """
        doomed = []
        while len(self.segments) > 1 and self.segments[1].base_offset <= self.log_start_offset:
            doomed.append(self.segments.pop(0))
        if not doomed:
            return
        self.touch()
        self._bases = [segment.base_offset for segment in self.segments]
        self.producers.forget_before(self.log_start_offset)
        for segment in doomed:
            self._warm.pop(segment.base_offset, None)
            self._rolled = [(s, p) for s, p in self._rolled if s is not segment]
            segment.remove()
            self.disk.sync_folder(self.folder)

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, high_watermark)
        self._notify()

    def _notify(self) -> None:
        for callback in tuple(self._watchers):
            callback()


def read_all(partition: Partition) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Every batch of a partition, opened: for the topics that keep the broker's own state."""
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        data = partition.read(offset, READ_ALL_BYTES)
        if not data:
            return
        for batch in whole_batches(data):
            header = BatchHeader.read(batch)
            yield header, open_batch(batch)
            offset = header.last_offset + 1


def _readable_bytes(segment: Segment, limit: int) -> int:
    """Up to which byte of a segment a reader may see who may read up to an offset."""
    return segment.size_bytes if segment.end_offset <= limit else segment.position_of(limit)


def _batch_starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at + HEADER_BYTES <= len(data):
        starts.append(at)
        at += BatchHeader.read(data, at).size_bytes
    return starts
