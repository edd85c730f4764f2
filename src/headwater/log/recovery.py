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


def recover(disk: Disk, folder: Path, producers: Producers) -> tuple[History, Segment]:
    """Reads every segment that has no proof of its end; where one was cut, what lies behind the cut is no log any more.

    Gives back the closed segments and the active one; the producers are as they were at its end.
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
            _replay(segment, producers)
            if bases and segment.end_offset < bases[0]:
                logger.warning("%s: dropped %d segments behind the cut", folder.name, len(bases))
                for lost in bases:
                    Segment(disk, folder, lost).remove()
                bases.clear()
            if bases:
                has_room(partial(segment.save_index, producers.snapshot()))
        if bases:
            segment.release()
            closed.append(segment.summary)
    disk.sync_folder(folder)
    return closed, segment


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


def _replay(segment: Segment, producers: Producers) -> None:
    """Reads a segment, cuts its torn end, and has the producers relive it."""
    found_bytes = segment.file.size()
    for header, data in segment.recover():
        if header.attributes & CONTROL:
            marker = Marker(header.producer_id, header.producer_epoch, is_commit(open_batch(data)))
            producers.end(marker, header.base_offset)
        else:
            producers.add(header, header.base_offset)
    lost = found_bytes - segment.size_bytes
    if lost:
        where = f"{segment.path.parent.name}/{segment.path.name}"
        logger.warning("%s: cut %d bytes of a torn write behind offset %d", where, lost, segment.end_offset)
