"""Recovery: what a start after a crash may trust, and what it learns by reading."""

import logging
from collections import deque

from headwater.log.history import History, Summary
from headwater.log.producer import Marker, Producers
from headwater.log.segment import Segment
from headwater.record import CONTROL, is_commit, open_batch

__all__ = ["replay", "take_trusted"]

logger = logging.getLogger(__name__)


def take_trusted(bases: deque[int], before: History) -> list[Summary]:
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


def replay(segment: Segment, producers: Producers) -> None:
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
