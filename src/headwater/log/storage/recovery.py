"""Recovery: what a start after a crash trusts, and what it reads again."""

import logging
from collections import deque
from functools import partial
from pathlib import Path

from headwater.log.storage import manifest
from headwater.log.storage.closed_segments import ClosedSegments, Summary
from headwater.log.storage.disk import Disk
from headwater.log.storage.disk_space import try_write
from headwater.log.storage.producers import Marker, Producers
from headwater.log.storage.segment import Segment, segment_bases
from headwater.record import CONTROL, is_commit, open_batch

__all__ = ["recover"]

logger = logging.getLogger(__name__)


def recover(
    disk: Disk, folder: Path, producers: Producers, *, gaps_are_cuts: bool = True
) -> tuple[ClosedSegments, Segment]:
    """Reads every segment that has no index; returns the closed segments and the active one.

    A segment with torn bytes, or with an end before the beginning of the next one, was being written when the
    process crashed: the segments after it were never acknowledged, and are removed. But if a later segment
    has an index, it was synced long before the crash: then the records after the gap are kept.
    ``gaps_are_cuts`` is False for a folder in which compaction left no mark at the end of its segments. The
    producers are then as of the end of the log.
    """
    bases = deque(segment_bases(disk.names(folder)) or [0])
    closed = ClosedSegments(_take_trusted(bases, manifest.read_withdrawn(disk, folder)))
    if closed and Segment(disk, folder, bases[0]).load() is None:
        bases.extendleft(reversed(closed.bases))
        closed = ClosedSegments()
    while bases:
        segment = Segment(disk, folder, bases.popleft())
        snapshot = segment.load()
        if snapshot is not None:
            producers.restore(snapshot)
        else:
            torn = _replay(segment, producers)
            if bases and segment.end_offset < bases[0]:
                if (torn or gaps_are_cuts) and not _any_proved(disk, folder, bases):
                    _drop(disk, folder, bases)
                else:
                    segment.reach(bases[0])
            if bases:
                try_write(partial(segment.save_index, producers.snapshot()))
        if bases:
            segment.release()
            closed.append(segment.summary)
    disk.sync_folder(folder)
    return closed, segment


def _any_proved(disk: Disk, folder: Path, bases: deque[int]) -> bool:
    """Whether one of these segments has an index: then it, and all before it, were synced."""
    for base_offset in bases:
        segment = Segment(disk, folder, base_offset)
        snapshot = segment.load()
        segment.release()
        if snapshot is not None:
            return True
    return False


def _drop(disk: Disk, folder: Path, bases: deque[int]) -> None:
    logger.warning("%s: dropped %d segments after the cut", folder.name, len(bases))
    for lost in reversed(bases):
        Segment(disk, folder, lost).remove()
    bases.clear()


def _take_trusted(bases: deque[int], before: ClosedSegments) -> list[Summary]:
    """Removes from the front, and returns, the segments of the last clean stop that are still there.

    The last two of them are left: one was being written, the other must prove its end again and holds the
    state of the producers.
    """
    listed = {summary.base_offset: summary for summary in before}
    trusted: list[Summary] = []
    for base_offset in bases:
        if base_offset not in listed:
            break
        trusted.append(listed[base_offset])
    del trusted[-2:]
    for _ in trusted:
        bases.popleft()
    return trusted


def _replay(segment: Segment, producers: Producers) -> bool:
    """Reads a segment, cuts its torn end and replays it for the producers.

    Returns whether there was a torn end.
    """
    found_bytes = segment.file.size()
    for header, data in segment.recover():
        if header.attributes & CONTROL:
            marker = Marker(header.producer_id, header.producer_epoch, is_commit(open_batch(data)))
            producers.end(marker, header.base_offset, scanned=True)
        else:
            producers.add(header, header.base_offset)
    lost = found_bytes - segment.size_bytes
    if lost:
        where = f"{segment.path.parent.name}/{segment.path.name}"
        logger.warning("%s: cut %d bytes of a torn write at offset %d", where, lost, segment.end_offset)
    return bool(lost)
