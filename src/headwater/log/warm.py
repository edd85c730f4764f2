"""Warm: the closed segments that were used last, with their file and index at hand."""

from collections import OrderedDict
from collections.abc import Iterator

from headwater.log.segment import Segment

__all__ = ["Warm"]

SEGMENTS_MAX = 4


class Warm:
    """Owns what it keeps: whatever goes from here is released. Belongs to one partition."""

    def __init__(self) -> None:
        self._segments: OrderedDict[int, Segment] = OrderedDict()

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments.values())

    def get(self, base_offset: int) -> Segment | None:
        return self._segments.get(base_offset)

    def keep(self, segment: Segment) -> None:
        """As the one that was used last; the one that was not used for longest may go."""
        self._segments[segment.base_offset] = segment
        self._segments.move_to_end(segment.base_offset)
        if len(self._segments) > SEGMENTS_MAX:
            self._segments.popitem(last=False)[1].release()

    def drop(self, base_offset: int) -> None:
        """Lets go of one that is no part of the log any more, if it is here."""
        segment = self._segments.pop(base_offset, None)
        if segment is not None:
            segment.release()
