"""RecentIds: the ids of records that came within a time, so that a repeated one is seen."""

import hashlib

__all__ = ["RecentIds"]

IDS_MAX = 200_000
"""With more ids within the time, the oldest are forgotten. One takes about 150 bytes."""


class RecentIds:
    """The ids of one partition; records are shown to it once each, in the order of their offsets.

    What it says depends on the records of the last ``window_ms`` alone, so it may be made again from these.
    """

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._times_ms: dict[bytes, int] = {}
        """By the hash of an id, its latest timestamp; the id that came last is the last one."""
        self._latest_ms = 0

    def is_repeated(self, record_id: bytes, timestamp_ms: int) -> bool:
        """Whether a record with this id came before, within the time by the timestamps of both."""
        self._latest_ms = max(self._latest_ms, timestamp_ms)
        oldest_ms = self._latest_ms - self.window_ms
        key = hashlib.blake2b(record_id, digest_size=16).digest()
        before_ms = self._times_ms.pop(key, None)
        self._times_ms[key] = timestamp_ms if before_ms is None else max(timestamp_ms, before_ms)
        self._forget(oldest_ms)
        return (
            before_ms is not None
            and before_ms >= oldest_ms
            and abs(timestamp_ms - before_ms) <= self.window_ms
        )

    def _forget(self, oldest_ms: int) -> None:
        """Drops ids from the oldest on; one whose time is over may be kept a while after newer ones."""
        while self._times_ms:
            first = next(iter(self._times_ms))
            if len(self._times_ms) <= IDS_MAX and self._times_ms[first] >= oldest_ms:
                break
            del self._times_ms[first]
