"""Expiry: which segments of a partition retention gives up, by age and by size.

A segment is as old as its youngest record. Records without a timestamp are as old as the last write to their
segment, or as the first time that retention looked at the partition.
"""

from headwater.log.storage.closed_segments import Summary
from headwater.log.storage.segments import DROP_SEGMENTS_MAX, Segments
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import NO_TIMESTAMP

__all__ = ["Expiry"]


class Expiry:
    """The ages of the segments of one partition, which owns it.

    Calls carry the time and the settings of the topic.
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.untimed_ms: dict[int, int] = {}
        """When a batch without a timestamp was last written, by segment."""
        self._first_look_ms = NO_TIMESTAMP

    def first_kept(self, config: TopicConfig, needed_from: int, now_ms: int) -> int:
        """The offset from which on records are kept, by age and by size.

        It gives up whole segments before the offset from which records are needed, a bounded number in one
        call.
        """
        closed = self._segments.closed
        kept_from = 0
        excess = self._segments.size_bytes - config.retention_bytes
        for index in range(min(len(closed), DROP_SEGMENTS_MAX) if config.deletes else 0):
            summary = closed[index]
            too_old = self._is_too_old(summary, config, now_ms)
            too_much = config.retention_bytes >= 0 and excess >= summary.size_bytes
            if summary.end_offset > needed_from or not (too_old or too_much):
                break
            excess -= summary.size_bytes
            kept_from = summary.end_offset
        return kept_from

    def keeps_any(self, config: TopicConfig, now_ms: int) -> bool:
        """Whether retention keeps any record.

        If not, the active segment has to be closed so that it can be dropped too.
        """
        closed, active = self._segments.closed, self._segments.active
        if not config.deletes or not active.size_bytes:
            return True
        if config.retention_bytes == 0:
            return False
        if not self._is_too_old(active.summary, config, now_ms):
            return True
        return not all(self._is_too_old(closed[index], config, now_ms) for index in range(len(closed)))

    def active_since_ms(self, now_ms: int) -> int:
        """When the active segment got its first record.

        If the clock was set back since, its age counts from now.
        """
        active = self._segments.active
        if active.began_ms == NO_TIMESTAMP:  # written before the last start
            began_ms = active.first_timestamp()
            active.began_ms = began_ms if began_ms != NO_TIMESTAMP else now_ms
        active.began_ms = min(active.began_ms, now_ms)
        return active.began_ms

    def forget(self, base_offsets: list[int]) -> None:
        """These segments were dropped."""
        for base_offset in base_offsets:
            self.untimed_ms.pop(base_offset, None)

    def _is_too_old(self, summary: Summary, config: TopicConfig, now_ms: int) -> bool:
        if self._first_look_ms == NO_TIMESTAMP:
            self._first_look_ms = now_ms
        youngest_ms = summary.max_timestamp
        if youngest_ms == NO_TIMESTAMP:
            youngest_ms = self.untimed_ms.get(summary.base_offset, self._first_look_ms)
        return 0 <= config.retention_ms < now_ms - youngest_ms
