"""Snapshots of share partitions as records: a large one is divided, since a record has a largest size.

Its parts come first, and the record that counts comes last. Numbers of parts are even or odd in turns, so
what is written of a snapshot that remains incomplete destroys nothing of the last one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headwater.log.shares.share_record import ShareHead, ShareKey, ShareRecord, key_of, part_key, value_of
from headwater.queue.run import Run
from headwater.record import Record

__all__ = ["PartNumbers", "SnapshotParts", "snapshot_records"]

RUNS_PER_RECORD = 6_000
"""A run takes at most 40 bytes. What is parked may take 600 KB more, and a message may be 1 MB."""


@dataclass(slots=True)
class PartNumbers:
    """Which numbers the parts of a share partition have."""

    is_odd: bool = False
    """Of the last snapshot that is complete."""
    used: list[int] = field(default_factory=lambda: [0, 0])
    """How many even ones and odd ones the log may have."""

    def note(self, number: int) -> None:
        self.used[number % 2] = max(self.used[number % 2], number // 2 + 1)

    def all(self) -> Iterator[int]:
        return (2 * n + odd for odd in range(2) for n in range(self.used[odd]))


def snapshot_records(
    key: ShareKey, head: ShareHead, runs: Sequence[Run], numbers: PartNumbers, *, started_ms: int, now_ms: int
) -> list[Record]:
    """The records of a snapshot; the last one makes it count."""
    pieces = [runs[at : at + RUNS_PER_RECORD] for at in range(0, len(runs), RUNS_PER_RECORD)] or [[]]
    is_odd = not numbers.is_odd
    records = []
    for number, piece in enumerate(pieces[:-1]):
        value = value_of(ShareHead(head.epoch, piece[0].first), piece, started_ms)
        records.append(Record(part_key(key, 2 * number + is_odd), value, (), now_ms))
    left_over = range(len(records), numbers.used[is_odd])
    numbers.used[is_odd] = max(numbers.used[is_odd], len(records))
    whole = head._replace(parts=len(records), is_odd=is_odd)
    records += [Record(part_key(key, 2 * number + is_odd), None, (), now_ms) for number in left_over]
    return [*records, Record(key_of(key), value_of(whole, pieces[-1], started_ms), (), now_ms)]


class SnapshotParts:
    """The parts that a start has read, until the snapshot comes to which they belong."""

    def __init__(self) -> None:
        self._parts: dict[tuple[ShareKey, int], ShareRecord] = {}

    def add(self, key: ShareKey, number: int, part: ShareRecord | None) -> None:
        self._parts.pop((key, number), None)
        if part is not None:
            self._parts[key, number] = part

    def runs(self, key: ShareKey, snapshot: ShareRecord, started_ms: int) -> list[Run]:
        """All runs of a snapshot; raises ValueError if a part is not there."""
        runs: list[Run] = []
        for number in range(snapshot.parts):
            part = self._parts.get((key, 2 * number + snapshot.is_odd))
            if part is None or part.epoch != snapshot.epoch:
                raise ValueError(
                    f"part {number} of {snapshot.parts} of snapshot {snapshot.epoch} is not there"
                )
            runs += part.decoded_runs(started_ms)
        return runs + snapshot.decoded_runs(started_ms)
