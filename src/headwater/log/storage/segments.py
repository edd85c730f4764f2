"""Segments: the files of one partition, from the first closed segment to the active one.

A segment is closed when the active one is full, old or given up by retention (``roll``). It stays open in
memory until a sync round has made it durable and written its index; after that it is numbers in ``closed``,
and a file only while it is read. Retention drops segments from the front (``drop_before``), compaction
exchanges some in the middle (``replace``).

No call here waits for a sync. Names and contents are synced by a ``SyncRound`` in a thread, before anything
that depends on them is acknowledged.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headwater.log.storage import manifest, swap
from headwater.log.storage.closed_segments import ClosedSegments, Summary
from headwater.log.storage.disk import Disk
from headwater.log.storage.disk_space import DiskSpace, try_write
from headwater.log.storage.producers import Producers
from headwater.log.storage.recovery import recover
from headwater.log.storage.segment import Segment
from headwater.log.storage.segment_cache import SegmentCache
from headwater.record import Record

__all__ = ["DROP_SEGMENTS_MAX", "Segments", "SyncRound"]

DROP_SEGMENTS_MAX = 64
"""Segments that are dropped in one step; more would hold up the event loop."""

Unindexed = tuple[Segment, bytes]
"""A closed segment whose index file is not written yet, with the producers as of its end."""


@dataclass(slots=True)
class SyncRound:
    """One sync of a partition's files: of what was written before the round was made.

    The event loop makes it and later passes it to ``finish_sync``; a thread calls ``run`` in between.
    """

    disk: Disk
    folder: Path
    disk_space: DiskSpace
    end_offset: int
    active: Segment | None
    """The active segment, if its content is to be synced."""
    closed: list[Unindexed]
    """Segments that were closed since the last round."""
    dropped: list[int]
    """Base offsets of segments whose files are to be removed."""
    renamed: bool
    """Whether names of files have changed since the last round."""
    without_index: list[Unindexed] = field(default_factory=list)
    """After ``run``: the segments for whose index file the disk had no space."""

    def run(self) -> None:
        """Syncs and removes files; blocks. After an OSError it is unknown what the disk holds."""
        if self.renamed:
            self.disk.sync_folder(self.folder.parent)
            self.disk.sync_folder(self.folder)
        for segment, producers in self.closed:
            segment.file.sync()
            # An index only saves the next start a scan, so a full disk is not a failure here.
            if not self.disk_space.try_write(partial(segment.save_index, producers)):
                self.without_index.append((segment, producers))
        if self.active is not None:
            self.active.file.sync()
        # Each removal is durable before the next one: a hole would look like the end of the log.
        for base_offset in self.dropped:
            Segment(self.disk, self.folder, base_offset).remove()
            self.disk.sync_folder(self.folder)


class Segments:
    """Owns the files of one folder. All calls come from the event loop."""

    def __init__(self, disk: Disk, folder: Path, disk_space: DiskSpace) -> None:
        self.disk = disk
        self.folder = folder
        self._disk_space = disk_space
        self.closed = ClosedSegments()
        self.active = Segment(disk, folder, 0)
        self.unindexed: list[Unindexed] = []
        """Closed segments that the next sync round takes."""
        self.renamed = False
        """Whether names of files have changed since the last sync round."""
        self._open_closed: dict[int, Segment] = {}
        """Closed segments whose index file is not written yet; a sync round may be using their files."""
        self._cache = SegmentCache()
        self._dropped: list[int] = []
        """Segments that are no longer part of the log; the next sync round removes their files."""
        self._listed = False
        """The manifest describes the log exactly."""
        self._blank = False
        """Nothing was ever written and there are no files.

        So a topic of a thousand partitions costs nothing until it is used.
        """

    @property
    def size_bytes(self) -> int:
        return self.closed.size_bytes + self.active.size_bytes

    @property
    def max_timestamp(self) -> int:
        return max(self.closed.max_timestamp, self.active.max_timestamp)

    @property
    def first_offset(self) -> int:
        return self.closed.bases[0] if self.closed else self.active.base_offset

    # ---- finding ---------------------------------------------------------------------------------------

    def holding(self, offset: int) -> int:
        """The index of the segment that holds an offset; the active one comes after the closed ones."""
        return len(self.closed) if offset >= self.active.base_offset else self.closed.holding(offset)

    def at(self, index: int) -> Segment:
        """The segment at an index; the most recently used ones are kept open."""
        if index == len(self.closed):
            return self.active
        base_offset = self.closed.bases[index]
        segment = self._open_closed.get(base_offset)
        if segment is None:
            segment = self._cache.get(base_offset)
            if segment is None:
                segment = Segment(self.disk, self.folder, base_offset)
                segment.restore(self.closed[index])
            self._cache.put(segment)
        return segment

    def read(self, offset: int, limit: int, max_bytes: int) -> bytes:
        """Whole batches from an offset up to a limit; ``max_bytes`` may cut the last one."""
        index = self.holding(offset)
        while offset < limit and index <= len(self.closed):
            segment = self.at(index)
            data = segment.read(offset, max_bytes, segment.bytes_before(limit))
            if data:
                return data
            index += 1  # compaction may have left nothing after this offset in its segment
        return b""

    def has_marker(self, offset: int, producer_id: int) -> bool:
        """Whether a producer's transaction ends at an offset."""
        index = self.holding(offset)
        return index >= 0 and self.at(index).marker_at(offset, producer_id)

    def find_time(self, timestamp: int, first_offset: int) -> Record | None:
        """The first record from an offset on that is at or after a timestamp."""
        closed = self.closed
        for index in range(max(closed.reaching(timestamp), self.holding(first_offset), 0), len(closed) + 1):
            if index == len(closed) or closed.times[index] >= timestamp:
                record = self.at(index).find_time(timestamp, first_offset)
                if record is not None:
                    return record
        return None

    def synced_count(self) -> int:
        """How many of the closed segments, from the first on, are synced and have their index."""
        return self.closed.holding(min(self._open_closed)) if self._open_closed else len(self.closed)

    # ---- changing --------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Before the first change: makes the files of a new partition, or withdraws the manifest."""
        if self._blank:
            self.disk.make_folder(self.folder)
            self.active.file.truncate(0)
            self._blank, self.renamed = False, True
        if self._listed:
            manifest.withdraw(self.disk, self.folder)
            self.disk.remove(self.active.index_path)
            self._listed, self.renamed = False, True

    def roll(self, producers: bytes) -> Segment:
        """Closes the active segment, at whose end the producers are as given, and returns a new one."""
        new = Segment(self.disk, self.folder, self.active.end_offset)
        new.file.truncate(0)  # a full disk fails here, while nothing has changed
        closed, self.active = self.active, new
        self.renamed = True
        self.unindexed.append((closed, producers))
        self._open_closed[closed.base_offset] = closed
        self.closed.append(closed.summary)
        return new

    def drop_before(self, offset: int) -> list[int]:
        """Drops segments that end at or before an offset, a bounded number at a time.

        Returns their base offsets.
        """
        count = min(max(self.holding(offset), 0), DROP_SEGMENTS_MAX)
        if not count:
            return []
        self.touch()
        dropped = self.closed.bases[:count].tolist()
        self.closed.replace(0, count, [])
        unindexed = {segment.base_offset: (segment, producers) for segment, producers in self.unindexed}
        for base_offset in dropped:
            self._cache.drop(base_offset)
            self._open_closed.pop(base_offset, None)
            if base_offset in unindexed:
                unindexed.pop(base_offset)[0].release()
        self.unindexed = list(unindexed.values())
        self._dropped += dropped
        return dropped

    def prepare_replace(self) -> None:
        """Before segments are replaced: withdraws whatever describes them."""
        self.touch()
        manifest.forget(self.disk, self.folder)

    def replace(self, old: list[Summary], new: Segment) -> None:
        """Replaces segments by the compacted one that was made from them, whose files are in place."""
        self.closed.replace(self.closed.holding(old[0].base_offset), len(old), [new.summary])
        for summary in old:
            self._cache.drop(summary.base_offset)

    # ---- syncing ---------------------------------------------------------------------------------------

    def begin_sync(self, *, sync_active: bool) -> SyncRound:
        """A round that covers everything written so far.

        It includes the content of the active segment only if asked to.
        """
        sync_round = SyncRound(
            self.disk,
            self.folder,
            self._disk_space,
            end_offset=self.active.end_offset,
            active=self.active if sync_active else None,
            closed=self.unindexed,
            dropped=self._dropped,
            renamed=self.renamed,
        )
        self.unindexed, self._dropped, self.renamed = [], [], False
        return sync_round

    def finish_sync(self, sync_round: SyncRound) -> None:
        """Takes over the outcome of a round that has run.

        Closed segments that have their index now need not stay open.
        """
        self.unindexed[:0] = [
            (segment, producers)
            for segment, producers in sync_round.without_index
            if segment.base_offset in self._open_closed
        ]
        unindexed = {segment.base_offset for segment, _ in self.unindexed}
        for segment, _ in sync_round.closed:
            if segment.base_offset in unindexed:
                continue  # the disk had no space for its index file: the next round tries again
            if self._open_closed.pop(segment.base_offset, None) is None:
                segment.release()  # dropped during the round; the next round removes its files
            else:
                self._cache.put(segment)

    # ---- opening and closing ---------------------------------------------------------------------------

    def open(self, producers: Producers, *, gaps_are_cuts: bool) -> None:
        """Finds the segments; the producers are then as of the end of the log.

        See ``recover`` for ``gaps_are_cuts``.
        """
        listed = manifest.open_listed(self.disk, self.folder, producers)
        if listed is not None:
            self.closed, self.active = listed
            self._listed = True
            return
        self._blank = not self.disk.names(self.folder)
        if self._blank:
            return
        manifest.withdraw(self.disk, self.folder)
        swap.finish(self.disk, self.folder)
        self.closed, self.active = recover(self.disk, self.folder, producers, gaps_are_cuts=gaps_are_cuts)

    def restart_at(self, offset: int) -> None:
        """Replaces all segments by an empty one at an offset after their end.

        No offset may be used twice.
        """
        new = Segment(self.disk, self.folder, offset)
        new.file.truncate(0)
        self.touch()
        self.active.release()
        for base_offset in (*self.closed.bases, self.active.base_offset):
            Segment(self.disk, self.folder, base_offset).remove()
        self.disk.sync_folder(self.folder)
        self.closed, self.active, self.renamed = ClosedSegments(), new, True

    def close(self, producers: Producers) -> None:
        """Syncs, and writes what lets the next start skip the scan.

        Changes nothing if nothing was written.
        """
        if self._listed or self._blank:
            return
        self.begin_sync(sync_active=True).run()
        if self._disk_space.try_write(partial(self.active.save_index, producers.snapshot())):
            listed = ClosedSegments([*self.closed, self.active.summary])
            try_write(partial(manifest.write, self.disk, self.folder, listed))

    def release(self) -> None:
        """Gives back all open files."""
        for segment in (self.active, *self._cache, *self._open_closed.values()):
            segment.release()
