"""Recovery: what a start after a crash may trust, and what it learns by reading."""

import logging
from collections import deque
from functools import partial
from pathlib import Path

from headwater.log.disk import Disk
from headwater.log.history import History, Summary
from headwater.log.producer import Marker, Producers
from headwater.log.room import has_room
from headwater.log.segment import Segment, segment_bases
from headwater.record import CONTROL, is_commit, open_batch

__all__ = ["recover"]

logger = logging.getLogger(__name__)


def recover(
    disk: Disk, folder: Path, producers: Producers, *, gaps_are_cuts: bool = True
) -> tuple[History, Segment]:
    """Reads every segment that has no index, and gives back the closed segments and the active one.

    A segment whose end a crash has cost (torn bytes, or an end before the beginning of the next one) was being written: what
    comes after it was never acknowledged, and goes too. One that is followed by a segment with an index was synced long before the
    crash, and whatever it lacks, the records after it stay. ``gaps_are_cuts`` is False for a folder in which compaction has left
    no mark at the end of the segments that it wrote. The producers are as they were at the end of the log.
    """
    bases = deque(segment_bases(disk.names(folder)) or [0])
    before = History.decode(disk.read(folder / "closed")) or History()
    closed = History(_take_trusted(bases, before))
    if closed and Segment(disk, folder, bases[0]).load() is None:
        bases.extendleft(reversed(closed.bases))
        closed = History()
    while bases:
        segment = Segment(disk, folder, bases.popleft())
        known = segment.load()
        if known is not None:
            producers.restore(known)
        else:
            torn = _replay(segment, producers)
            if bases and segment.end_offset < bases[0]:
                if (torn or gaps_are_cuts) and not _any_proved(disk, folder, bases):
                    _drop(disk, folder, bases)
                else:
                    segment.reach(bases[0])
            if bases:
                has_room(partial(segment.save_index, producers.snapshot()))
        if bases:
            segment.release()
            closed.append(segment.summary)
    disk.sync_folder(folder)
    return closed, segment


def _any_proved(disk: Disk, folder: Path, bases: deque[int]) -> bool:
    """Whether one of these segments has an index, which is written after it and all before it were synced."""
    for base_offset in bases:
        segment = Segment(disk, folder, base_offset)
        found = segment.load()
        segment.release()
        if found is not None:
            return True
    return False


def _drop(disk: Disk, folder: Path, bases: deque[int]) -> None:
    logger.warning("%s: dropped %d segments after the cut", folder.name, len(bases))
    for lost in reversed(bases):
        Segment(disk, folder, lost).remove()
    bases.clear()


def _take_trusted(bases: deque[int], before: History) -> list[Summary]:
    """Takes the segments from the front that were closed when a list was made, but for its last two.

    The last one was being written; the one before it must prove its end once more, and holds what was known of producers.
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
    """Reads a segment, cuts its torn end, and has the producers relive it; returns whether there was one."""
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
