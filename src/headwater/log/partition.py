"""Partition: an ordered, durable sequence of records, kept in segments.

    log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ end_offset

Records up to the high watermark are safe and may be read; ``read_committed`` readers stop at the last stable offset,
where the oldest open transaction begins. With ``flush = "commit"`` the high watermark moves when a sync has
returned; with ``flush = "os"`` at once. A failed sync takes the partition offline until the broker is started
again: what the disk holds behind the last sync is then unknown, and is read back by recovery.

Files beside the segments:  start      the log start offset, once it lies inside a segment (DeleteRecords)
                            cleaned    up to which offset the log has been compacted
                            swap       an exchange of segments under way (``swap.py``)
                            manifest   a clean stop's list of segments; gone with the first write after the next start
                            closed     what the last manifest said, until compaction changes it: a start after a crash
                                       trusts all of it but its end

Nothing here waits for a sync: names and contents are synced by ``begin_sync``'s function in a thread, before anything
that depends on them is acknowledged.
"""

import contextlib
import errno
import logging
import re
import struct
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headwater.errors import ErrorCode, Refused
from headwater.log import swap
from headwater.log.config import TopicConfig
from headwater.log.disk import Disk
from headwater.log.history import History, Summary
from headwater.log.incoming import check_keys, check_times, checked
from headwater.log.producer import Aborted, Marker, Producers
from headwater.log.recovery import recover
from headwater.log.room import FULL, Room, has_room
from headwater.log.segment import Segment
from headwater.log.warm import Warm
from headwater.record import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    encode_marker,
    open_batch,
    stamp,
    whole_batches,
)

__all__ = ["Appended", "Partition", "read_all"]

logger = logging.getLogger(__name__)

LEADER_EPOCH = 0
"""One broker leads every partition from the first day on."""
READ_ALL_BYTES = 1 << 20
TOPIC_ID = re.compile(r"\.[0-9a-f]{32}$")
"""In the name of its folder."""
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the process or the machine lacks for a moment; the disk has done nothing."""
DROP_SEGMENTS_MAX = 64
"""How many segments retention takes in one step; more would hold up the event loop."""

_base_offset = struct.Struct(">q")
_leader_epoch = struct.Struct(">i")
_LEADER_EPOCH_AT = 12


class Appended(NamedTuple):
    """Where a batch stands, also when it had been appended before."""

    base_offset: int
    last_offset: int


class Partition:
    """Owns the segments of one folder. All calls come from the event loop; ``sync`` alone runs in a thread."""

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
        """As people know it: its topic and its number."""
        self.config = config
        self.high_watermark = 0
        self.log_start_offset = 0
        self.cleaned_to = 0
        """Up to which offset the log has been compacted."""
        self.offline = False
        self._removed = False
        self._room = Room(self.name)
        self.on_dirty: Callable[[Partition], None] = lambda _: None
        self.producers = Producers()
        self.closed = History()
        self.active = Segment(disk, folder, 0)
        self._sync_on_commit = sync_on_commit
        self._rolled: list[tuple[Segment, bytes]] = []
        self._unsaved: dict[int, Segment] = {}
        """Closed segments whose index file is not written yet; a sync may have their files in hand."""
        self._warm = Warm()
        self._doomed: list[int] = []
        """Segments that are no part of the log any more; their files go in the thread that syncs."""
        self._untimed: dict[int, int] = {}
        """When a batch without a time was written last, by segment."""
        self._met_ms = NO_TIMESTAMP
        """When retention has looked at this partition first."""
        self._renamed = False
        """Names of files have changed since they were synced."""
        self._clean = False
        self._blank = False
        """Nothing was ever written, so there are no files: a topic of a thousand partitions costs nothing until it is used."""
        self.watchers: set[Callable[[], None]] = set()
        """Called whenever more can be read, or never will."""
        try:
            self._open(gaps_are_cuts=gaps_are_cuts)
        except OSError as error:
            self.take_offline(error)

    @property
    def end_offset(self) -> int:
        return self.active.end_offset

    @property
    def last_stable_offset(self) -> int:
        first_open = self.producers.first_open_offset()
        if first_open is None:
            return self.high_watermark
        return max(min(first_open, self.high_watermark), self.log_start_offset)

    @property
    def max_timestamp(self) -> int:
        return max(self.closed.max_timestamp, self.active.max_timestamp)

    @property
    def size_bytes(self) -> int:
        return self.closed.size_bytes + self.active.size_bytes

    # ---- writing ---------------------------------------------------------------------------------------

    def append(self, data: memoryview, *, now_ms: int = NO_TIMESTAMP, sequenced: bool = True) -> Appended:
        """Appends one batch, or recognises it as a repetition; raises Refused. ``data`` must be writable.

        Our own internal records carry a producer without sequence numbers: ``sequenced=False``.
        """
        self.check_online()
        header = checked(data, self.config.max_message_bytes)
        verdict = self.producers.check(header) if sequenced else None
        if isinstance(verdict, ErrorCode):
            raise Refused(verdict, f"producer {header.producer_id} sent sequence {header.base_sequence}")
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
        """Ends a producer's transaction; the offset of the marker is returned."""
        self.check_online()
        data = memoryview(
            bytearray(encode_marker(marker.producer_id, marker.epoch, now_ms, commit=marker.commit))
        )
        offset = self._write(data, BatchHeader.read(data), now_ms)
        self.producers.end(marker, offset)
        self._written()
        return offset

    def begin_sync(self) -> Callable[[], Callable[[], None]]:
        """Takes note of what is written; the returned function syncs it in a thread and returns what the loop then does."""
        active, end_offset = self.active, self.end_offset
        rolled, self._rolled = self._rolled, []
        renamed, self._renamed = self._renamed, False
        doomed, self._doomed = self._doomed, []
        unsaved: list[tuple[Segment, bytes]] = []

        def sync() -> Callable[[], None]:
            if renamed:
                self.disk.sync_folder(self.folder.parent)
                self.disk.sync_folder(self.folder)
            for segment, producers in rolled:
                segment.file.sync()
                if not self._room.takes(
                    partial(segment.save_index, producers)
                ):  # it only spares a start the scan
                    unsaved.append((segment, producers))
            if self._sync_on_commit:
                active.file.sync()
            for (
                base_offset
            ) in doomed:  # each durably before the next: a hole would look like the end of the log
                Segment(self.disk, self.folder, base_offset).remove()
                self.disk.sync_folder(self.folder)
            return lambda: self._synced(end_offset, rolled, unsaved)

        return sync

    def take_offline(self, error: Exception) -> None:
        """Refuses everything from now on: what the disk did with the last writes is not known."""
        if self.offline:
            return  # removed while it was synced
        self.offline = True
        logger.error("partition %s is offline: %s", self.name, error)
        self._notify()

    # ---- reading ---------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> bytes:
        """Whole batches from ``offset`` up to what may be read; the last one may be cut by ``max_bytes``."""
        self.check_online()
        limit = self.last_stable_offset if committed else self.high_watermark
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.log_start_offset} to {self.high_watermark}",
            )
        at = self._holding(offset)
        with self._reading():
            while offset < limit and at <= len(self.closed):
                segment = self._segment(at)
                data = segment.read(offset, max_bytes, segment.bytes_before(limit))
                if data:
                    return data
                at += 1  # compaction may have left nothing after this offset in its segment
        return b""

    def aborted(self, offset: int, data: bytes) -> list[Aborted]:
        """The aborted transactions that a reader of this data must skip."""
        if not self.producers.aborted or not data:
            return []
        last = max(BatchHeader.read(data, at).last_offset for at in _batch_starts(data))
        return self.producers.aborted_between(offset, last)

    def is_readable(self, offset: int) -> bool:
        """Whether a reader may stand at an offset: what is behind the end may come yet."""
        return not self.offline and self.log_start_offset <= offset <= self.high_watermark

    def available_bytes(self, offset: int, *, committed: bool = False) -> int:
        """About how many bytes a reader at an offset could have now; exact when there are none."""
        limit = self.last_stable_offset if committed else self.high_watermark
        if self.offline or not self.log_start_offset <= offset < limit:
            return 0
        with self._reading():
            segment = self._segment(self._holding(offset))
            return max(segment.bytes_before(limit) - segment.position_of(offset), 1)

    def find_time(self, timestamp: int, *, committed: bool = False) -> Record | None:
        """The first readable record that is not older than a timestamp."""
        self.check_online()
        limit = self.last_stable_offset if committed else self.high_watermark
        first = max(self.closed.reaching(timestamp), self._holding(self.log_start_offset), 0)
        with self._reading():
            for at in range(first, len(self.closed) + 1):
                if at == len(self.closed) or self.closed.times[at] >= timestamp:
                    found = self._segment(at).find_time(timestamp, self.log_start_offset)
                    if found is not None:
                        return found if found.offset < limit else None
        return None

    # ---- forgetting ------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> None:
        """Moves the log start to an offset, never back; the files before it go segment by segment."""
        self.check_online()
        if not 0 <= offset <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.log_start_offset} to {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return
        try:
            self.touch()
            self.disk.replace(self.folder / "start", str(offset).encode())
            self.log_start_offset = offset
            self._drop_segments()
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def active_since_ms(self, now_ms: int) -> int:
        """When the active segment got its first record; a clock that was set back since begins it now."""
        active = self.active
        if active.began_ms == NO_TIMESTAMP:  # from before a start
            began_ms = active.first_timestamp()
            active.began_ms = began_ms if began_ms != NO_TIMESTAMP else now_ms
        active.began_ms = min(active.began_ms, now_ms)
        return active.began_ms

    def expire(self, now_ms: int) -> bool:
        """Applies retention: whole segments whose youngest record is too old, then the oldest beyond the size allowed.

        One call takes a bounded number of segments; returns whether it took any, so that there may be more.
        """
        if self.offline:
            return False
        config, start = self.config, self.log_start_offset
        excess = self.size_bytes - config.retention_bytes
        for at in range(min(len(self.closed), DROP_SEGMENTS_MAX) if config.deletes else 0):
            summary = self.closed[at]
            end_offset, size_bytes = summary.end_offset, summary.size_bytes
            too_old = self._is_too_old(summary, now_ms)
            too_much = config.retention_bytes >= 0 and excess >= size_bytes
            if end_offset > self.high_watermark or not (too_old or too_much):
                break
            excess -= size_bytes
            start = max(start, end_offset)
        self.log_start_offset = start
        return self._drop_segments()

    def outlives_retention(self, now_ms: int) -> bool:
        """Whether retention keeps something of the log. If not, the active segment has to be closed, so that it goes too."""
        config = self.config
        if not config.deletes or not self.active.size_bytes:
            return True
        if config.retention_bytes == 0:
            return False
        if not self._is_too_old(self.active.summary, now_ms):
            return True
        return not all(self._is_too_old(self.closed[at], now_ms) for at in range(len(self.closed)))

    def _is_too_old(self, summary: Summary, now_ms: int) -> bool:
        """By its youngest record. Records without a time are as old as the last write to their segment, or as the broker's start."""
        if self._met_ms == NO_TIMESTAMP:
            self._met_ms = now_ms
        youngest_ms = summary.max_timestamp
        if youngest_ms == NO_TIMESTAMP:
            youngest_ms = self._untimed.get(summary.base_offset, self._met_ms)
        return 0 <= self.config.retention_ms < now_ms - youngest_ms

    def roll(self) -> None:
        """Begins a new segment, so that the records so far come under retention and compaction."""
        if self.active.size_bytes and not self.offline:
            self.touch()
            self._begin_segment()
            self.on_dirty(self)

    def dirty_since_ms(self) -> int:
        """The time of the first record that was not compacted yet, of those in closed segments; NO_TIMESTAMP if it has none."""
        with self._reading():
            return self._segment(self.closed.ended(self.cleaned_to)).first_timestamp()

    def synced_segments(self) -> int:
        """How many of the closed segments, from the first on, are synced and have their index: no sync has their files in hand."""
        return self.closed.holding(min(self._unsaved)) if self._unsaved else len(self.closed)

    def swap(
        self, old: list[Summary], new: Segment, cleaned_to: int, dropped_markers: Collection[int] = ()
    ) -> None:
        """Puts a compacted segment, whose files are in place, where those were that it was made from."""
        self.producers.forget_ends(dropped_markers)
        self.closed.replace(self.closed.holding(old[0].base_offset), len(old), [new.summary])
        for summary in old:
            self._warm.drop(summary.base_offset)
        self.cleaned_to = max(self.cleaned_to, cleaned_to)

    # ---- life ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Syncs and writes what lets the next start skip the scan."""
        if not self.offline and not self._clean and not self._blank:
            self.begin_sync()()
            self.active.file.sync()
            if self._room.takes(lambda: self.active.save_index(self.producers.snapshot())):
                manifest = History([*self.closed, self.active.summary])
                has_room(lambda: self.disk.replace(self.folder / "manifest", manifest.encode()))
        self._release_all()

    def remove(self) -> None:
        """Ends the partition and its files."""
        self.offline = self._removed = True
        self._release_all()
        self.disk.remove_folder(self.folder)
        self._notify()

    def _release_all(self) -> None:
        for segment in (self.active, *self._warm, *self._unsaved.values()):
            segment.release()

    def _open(self, *, gaps_are_cuts: bool) -> None:
        manifest = History.decode(self.disk.read(self.folder / "manifest"))
        if manifest is None or not self._open_clean(manifest):
            self._blank = not self.disk.names(self.folder)
            if not self._blank:
                self._withdraw_manifest()
                swap.finish(self.disk, self.folder)
                self.closed, self.active = recover(
                    self.disk, self.folder, self.producers, gaps_are_cuts=gaps_are_cuts
                )
        self.cleaned_to = int(self.disk.read(self.folder / "cleaned") or 0)
        start = int(self.disk.read(self.folder / "start") or 0)
        if start > self.end_offset:
            self._begin_at(start)
        first = self.closed.bases[0] if self.closed else self.active.base_offset
        self.log_start_offset = max(first, start)
        self._forget_lost_markers()
        self._drop_segments()
        self._advance(self.end_offset)

    def _open_clean(self, manifest: History) -> bool:
        """After a clean stop only the last segment is looked at."""
        first, last = Segment(self.disk, self.folder, manifest.bases[0]), manifest.pop()
        behind = Segment(self.disk, self.folder, last.end_offset)
        if not self.disk.exists(first.path) or (last.size_bytes and self.disk.exists(behind.path)):
            return False  # written to since: a power cut has brought the manifest back
        active = Segment(self.disk, self.folder, last.base_offset)
        producers = active.load()
        if producers is None or active.summary != last:
            active.release()
            return False
        self.producers.restore(producers)
        self.closed, self.active, self._clean = manifest, active, True
        return True

    def _begin_at(self, offset: int) -> None:
        """Records before an offset were deleted, and the last of them lost with the power: offsets are not used twice."""
        fresh = Segment(self.disk, self.folder, offset)
        fresh.file.truncate(0)
        self.touch()
        self.active.release()
        for base_offset in (*self.closed.bases, self.active.base_offset):
            Segment(self.disk, self.folder, base_offset).remove()
        self.disk.sync_folder(self.folder)
        self.closed, self.active, self._renamed = History(), fresh, True

    def _forget_lost_markers(self) -> None:
        """An index may be older than the compaction that took a marker: what it says of aborted transactions is checked."""
        lost = {a.last_offset for a in self.producers.aborted if not self._has_marker(a)}
        self.producers.forget_ends(lost)

    def _has_marker(self, aborted: Aborted) -> bool:
        at = self._holding(aborted.last_offset)
        return at >= 0 and self._segment(at).marker_at(aborted.last_offset, aborted.producer_id)

    # ---- inside ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """A failed read is the answer to the one who reads, and nothing else: the disk may well read it the next time."""
        try:
            yield
        except OSError as error:
            logger.error("partition %s: a read failed: %s", self.name, error)  # noqa: TRY400
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def check_online(self) -> None:
        """Raises Refused if nothing can be said of the partition until the next start."""
        if self._removed:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {self.name} is deleted")
        if self.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self.name} is offline")

    def _write(self, data: memoryview, header: BatchHeader, now_ms: int) -> int:
        """Gives a batch its offset and writes it. A full disk refuses it and harms nothing; any other failure ends the partition."""
        try:
            self.touch()
            active = self.active
            if active.size_bytes and active.size_bytes + len(data) > self.config.segment_bytes:
                active = self._begin_segment()
            base_offset = active.end_offset
            _base_offset.pack_into(data, 0, base_offset)
            _leader_epoch.pack_into(data, _LEADER_EPOCH_AT, LEADER_EPOCH)
            if not active.size_bytes:
                active.began_ms = now_ms
            if header.max_timestamp == NO_TIMESTAMP != now_ms:
                self._untimed[active.base_offset] = now_ms
            active.append(data, header, base_offset)
        except OSError as error:
            if error.errno in FULL:
                self._room.is_gone()
            elif error.errno not in PASSING:
                self.take_offline(error)
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._room.is_there()
        return base_offset

    def _written(self) -> None:
        if not self._sync_on_commit:
            self._advance(self.end_offset)
        if self._sync_on_commit or self._rolled or self._renamed:
            self.on_dirty(self)

    def touch(self) -> None:
        """Before the first change: makes the files of a new partition, or withdraws the proofs of a clean end."""
        if self._blank:
            self.disk.make_folder(self.folder)
            self.active.file.truncate(0)
            self._blank, self._renamed = False, True
        if self._clean:
            self._withdraw_manifest()
            self.disk.remove(self.active.index_path)
            self._clean, self._renamed = False, True

    def _withdraw_manifest(self) -> None:
        """It describes a log that is about to be written to, or was since; what was closed then stays closed."""
        if self.disk.exists(self.folder / "manifest"):
            self.disk.rename(self.folder / "manifest", self.folder / "closed")

    def prepare_swap(self) -> None:
        """Before segments are exchanged: withdraws whatever describes them."""
        self.touch()
        self.disk.remove(self.folder / "closed")

    def _begin_segment(self) -> Segment:
        fresh = Segment(self.disk, self.folder, self.end_offset)
        fresh.file.truncate(0)  # a full disk refuses here, while nothing has changed
        closed, self.active = self.active, fresh
        self._renamed = True
        self._rolled.append((closed, self.producers.snapshot()))
        self._unsaved[closed.base_offset] = closed
        self.closed.append(closed.summary)
        return self.active

    def _synced(
        self, end_offset: int, rolled: list[tuple[Segment, bytes]], unsaved: list[tuple[Segment, bytes]]
    ) -> None:
        self._rolled[:0] = [each for each in unsaved if each[0].base_offset in self._unsaved]
        waiting = {segment.base_offset for segment, _ in self._rolled}
        for segment, _ in rolled:
            if segment.base_offset in waiting:
                continue  # there was no room for its index file: the next round tries again
            if self._unsaved.pop(segment.base_offset, None) is None:
                segment.release()  # dropped while it was synced; its files go in the next round, in their order
            else:
                self._warm.keep(segment)
        self._advance(end_offset)

    def _holding(self, offset: int) -> int:
        """The place of the segment in which an offset lies; the active one stands behind the closed ones."""
        return len(self.closed) if offset >= self.active.base_offset else self.closed.holding(offset)

    def _segment(self, at: int) -> Segment:
        """The segment at a place; the ones that were used last are kept at hand."""
        if at == len(self.closed):
            return self.active
        base_offset = self.closed.bases[at]
        segment = self._unsaved.get(base_offset)
        if segment is None:
            segment = self._warm.get(base_offset)
            if segment is None:
                segment = Segment(self.disk, self.folder, base_offset)
                segment.restore(self.closed[at])
            self._warm.keep(segment)
        return segment

    def _drop_segments(self) -> bool:
        """Gives up segments that lie wholly before the log start, some at a time; returns whether there were any."""
        count = min(max(self._holding(self.log_start_offset), 0), DROP_SEGMENTS_MAX)
        if not count:
            return False
        self.touch()
        doomed = self.closed.bases[:count]
        self.closed.replace(0, count, [])
        self.producers.forget_before(self.log_start_offset)
        waiting = {segment.base_offset: (segment, known) for segment, known in self._rolled}
        for base_offset in doomed:
            self._warm.drop(base_offset)
            self._unsaved.pop(base_offset, None)
            self._untimed.pop(base_offset, None)
            if base_offset in waiting:
                waiting.pop(base_offset)[0].release()
        self._rolled = list(waiting.values())
        self._doomed += doomed
        self.on_dirty(self)
        return True

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, high_watermark)
        if self.watchers:
            self._notify()

    def _notify(self) -> None:
        for callback in tuple(self.watchers):
            try:
                callback()
            except Exception:  # who watches must not keep those who wait for a sync, or the other watchers
                logger.exception("partition %s: a reader that waits has failed", self.name)


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


def _batch_starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at + HEADER_BYTES <= len(data):
        starts.append(at)
        at += BatchHeader.read(data, at).size_bytes
    return starts
