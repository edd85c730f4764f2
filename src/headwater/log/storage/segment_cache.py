"""SegmentCache: the closed segments that were used last, with their file and index open."""

from collections import OrderedDict
from collections.abc import Iterator

from headwater.log.storage.segment import Segment

__all__ = ["SegmentCache"]

SEGMENTS_MAX = 4


class SegmentCache:
    """Owns its segments: one that leaves the cache is released. Belongs to one partition."""

    def __init__(self) -> None:
        self._segments: OrderedDict[int, Segment] = OrderedDict()

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments.values())

    def get(self, base_offset: int) -> Segment | None:
        return self._segments.get(base_offset)

    def put(self, segment: Segment) -> None:
        """Adds a segment, or makes it the most recently used; the least recently used may leave."""
        self._segments[segment.base_offset] = segment
        self._segments.move_to_end(segment.base_offset)
        if len(self._segments) > SEGMENTS_MAX:
            self._segments.popitem(last=False)[1].release()

    def drop(self, base_offset: int) -> None:
        """Releases a segment that is no longer part of the log, if it is cached."""
        segment = self._segments.pop(base_offset, None)
        if segment is not None:
            segment.release()
