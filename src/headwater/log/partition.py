"""Partition: an ordered, durable sequence of records, kept in segments.

    log_start_offset ≤ high_watermark ≤ end_offset

Records up to the high watermark are safe and may be read. With ``flush = "commit"`` it moves when a sync has
returned; with ``flush = "os"`` at once. A failed write or sync takes the partition offline until the broker
is started again: what the disk holds behind the last sync is then unknown, and is read back by recovery.
"""

import logging
import struct
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.errors import ErrorCode, ProtocolError, Refused
from headwater.log.disk import Disk
from headwater.log.producer import Producers
from headwater.log.segment import Segment, segment_bases
from headwater.record import CONTROL, BatchHeader, Record, batches

__all__ = ["Appended", "Partition", "TopicConfig"]

logger = logging.getLogger(__name__)

LEADER_EPOCH = 0
"""One broker leads every partition from the first day on."""

_base_offset = struct.Struct(">q")
_leader_epoch = struct.Struct(">i")
_LEADER_EPOCH_AT = 12


class TopicConfig(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", ".")):
    """Settings of a topic, under Kafka's names and with Kafka's defaults."""

    cleanup_policy: str = "delete"
    max_message_bytes: int = 1_048_588
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824


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
        self.offline = False
        self.on_dirty: Callable[[Partition], None] = lambda _: None
        self._sync_on_commit = sync_on_commit
        self._producers = Producers()
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._rolled: list[tuple[Segment, bytes]] = []
        self._clean = False
        self._watchers: set[Callable[[], None]] = set()
        self._open()

    @property
    def log_start_offset(self) -> int:
        return self._segments[0].base_offset

    @property
    def end_offset(self) -> int:
        return self._segments[-1].end_offset

    @property
    def max_timestamp(self) -> int:
        return max(segment.max_timestamp for segment in self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    # ---- writing ---------------------------------------------------------------------------------------

    def append(self, data: memoryview) -> Appended:
        """Appends one batch, or recognises it as a repetition; raises Refused. ``data`` must be writable."""
        header = self._checked(data)
        verdict = self._producers.check(header)
        if isinstance(verdict, ErrorCode):
            raise Refused(verdict, f"producer {header.producer_id} sent sequence {header.base_sequence}")
        if verdict is not None:
            return Appended(verdict, verdict + header.last_offset_delta)
        segment = self._writable(len(data))
        base_offset = segment.end_offset
        _base_offset.pack_into(data, 0, base_offset)
        _leader_epoch.pack_into(data, _LEADER_EPOCH_AT, LEADER_EPOCH)
        try:
            segment.append(data, header, base_offset)
        except OSError as error:
            self.take_offline(error)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._producers.add(header, base_offset)
        if not self._sync_on_commit:
            self._advance(segment.end_offset)
        if self._sync_on_commit or self._rolled:
            self.on_dirty(self)
        return Appended(base_offset, base_offset + header.last_offset_delta)

    def begin_sync(self) -> Callable[[], Callable[[], None]]:
        """Takes note of what is written; the returned function syncs it in a thread and returns what the loop then does."""
        active, end_offset = self._segments[-1], self.end_offset
        rolled, self._rolled = self._rolled, []

        def sync() -> Callable[[], None]:
            for segment, producers in rolled:
                segment.file.sync()
                segment.save_index(producers)
            if self._sync_on_commit:
                active.file.sync()
            return lambda: self._advance(end_offset)

        return sync

    def take_offline(self, error: OSError) -> None:
        """Refuses everything from now on: what the disk did with the last writes is not known."""
        self.offline = True
        logger.error("partition %s is offline: %s", self.folder.name, error)
        self._notify()

    # ---- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from ``offset`` up to the high watermark; the last one may be cut by ``max_bytes``."""
        self._check_online()
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.log_start_offset} to {self.high_watermark}",
            )
        if offset == self.high_watermark:
            return b""
        segment = self._segments[bisect_right(self._bases, offset) - 1]
        return segment.read(offset, max_bytes, self._readable_bytes(segment))

    def available_bytes(self, offset: int) -> int:
        """About how many bytes a reader at an offset could have now; exact when there are none."""
        if self.offline or not self.log_start_offset <= offset < self.high_watermark:
            return 0
        segment = self._segments[bisect_right(self._bases, offset) - 1]
        return self._readable_bytes(segment) - segment.position_of(offset)

    def find_time(self, timestamp: int) -> Record | None:
        """The first readable record that is not older than a timestamp."""
        for segment in self._segments:
            found = segment.find_time(timestamp)
            if found is not None:
                return found if found.offset < self.high_watermark else None
        return None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever more can be read, or never will; returns the function that ends it."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)

    # ---- life ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Syncs and writes the index files, which lets the next start skip the scan."""
        if not self.offline:
            for segment, producers in self._rolled:
                segment.file.sync()
                segment.save_index(producers)
            active = self._segments[-1]
            if not self._clean:
                active.file.sync()
                active.save_index(self._producers.snapshot())
        for segment in self._segments:
            segment.close()

    def remove(self) -> None:
        """Ends the partition and its files."""
        self.offline = True
        for segment in self._segments:
            segment.close()
        self.disk.remove_folder(self.folder)
        self._notify()

    def _open(self) -> None:
        self.disk.make_folder(self.folder)
        bases = segment_bases(self.disk.names(self.folder)) or [0]
        self._segments = [Segment(self.disk, self.folder, base) for base in bases]
        self._bases = bases
        for segment in self._segments:
            self._clean = segment.load_index()
            if self._clean:
                self._producers.restore(segment.producers)
            else:
                self._recover(segment)
            if segment is not self._segments[-1]:
                if not self._clean:
                    segment.save_index(self._producers.snapshot())
                segment.close()
        if not self._clean:
            self.disk.sync_folder(self.folder)
        self._advance(self.end_offset)

    def _recover(self, segment: Segment) -> None:
        found_bytes = segment.file.size()
        for header in segment.recover():
            self._producers.add(header, header.base_offset)
        if segment.size_bytes < found_bytes:
            lost = found_bytes - segment.size_bytes
            logger.warning(
                "%s/%s: cut %d bytes of a torn write behind offset %d",
                self.folder.name,
                segment.path.name,
                lost,
                segment.end_offset,
            )

    def _checked(self, data: memoryview) -> BatchHeader:
        self._check_online()
        if len(data) > self.config.max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes is larger than max.message.bytes = {self.config.max_message_bytes}",
            )
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
            raise Refused(
                ErrorCode.INVALID_RECORD,
                f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} offsets",
            )
        return header

    def _check_online(self) -> None:
        if self.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self.folder.name} is offline")

    def _writable(self, size_bytes: int) -> Segment:
        """The active segment, after a new one was begun if the batch does not fit."""
        active = self._segments[-1]
        if self._clean:
            active.drop_index()
            self._clean = False
        if active.size_bytes and active.size_bytes + size_bytes > self.config.segment_bytes:
            self._rolled.append((active, self._producers.snapshot()))
            active = Segment(self.disk, self.folder, active.end_offset)
            active.file.truncate(0)
            self.disk.sync_folder(self.folder)
            self._segments.append(active)
            self._bases.append(active.base_offset)
        return active

    def _readable_bytes(self, segment: Segment) -> int:
        """Up to which byte of a segment the high watermark lets readers see."""
        if segment.end_offset <= self.high_watermark:
            return segment.size_bytes
        return segment.position_of(self.high_watermark)

    def _advance(self, high_watermark: int) -> None:
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self._notify()

    def _notify(self) -> None:
        for callback in tuple(self._watchers):
            callback()
