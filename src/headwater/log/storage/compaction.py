"""Compaction: a topic of changes keeps the newest record of each key and drops the older ones.

A pass takes closed segments from the start of the log, never past the last stable offset. It reads the part
that is not compacted yet to learn the newest offset of each key (a bounded map), then rewrites the segments
without the records that a newer one replaces. Records keep their offsets; a batch that loses none is copied
unopened.

    dropped at once        older records of a key, records of aborted transactions, records without a key
                           (clients cannot write these; they are older than the topic's compaction)
    dropped after a delay  tombstones, and markers whose transaction has no record left: readers that began
                           before this pass have ``delete.retention.ms`` to see them (the batch carries the
                           time, KIP-534)
    kept, even if empty    the last batch of every known producer, so that its sequence numbers continue
    copied unchanged       a batch that cannot be opened: its keys are unknown
    added                  a batch without records at the end of a segment that lost its last ones: so the
                           file itself says how far it reaches, and a scan can distinguish compacted
                           records from those that were lost in a crash

``rewrite`` runs in a thread and only makes new files; ``retention.py`` puts them in place.
"""

import errno
import logging
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from headwater.log.storage.closed_segments import Summary
from headwater.log.storage.disk import Disk, File
from headwater.log.storage.producers import Aborted
from headwater.log.storage.segment import Segment
from headwater.log.storage.swap import CLEANED
from headwater.record import (
    CONTROL,
    DELETE_HORIZON,
    BatchHeader,
    Record,
    encode_end,
    open_batch,
    read_batch,
    reencode_batch,
    whole_batches,
)

__all__ = ["CompactedSegment", "CompactionPlan", "rewrite"]

logger = logging.getLogger(__name__)

KEYS_MAX = 500_000
"""The most keys that one pass remembers; the next pass continues where the map was full."""
READ_BYTES = 1 << 20
_KEY_HASH_BYTES = 16


class CompactionPlan(NamedTuple):
    """The input of a pass, taken from the partition before it starts."""

    folder: Path
    segments: list[Summary]
    dirty_from: int
    aborted: list[Aborted]
    last_batches: frozenset[int]
    """Base offset of the last batch of each known producer."""
    segment_bytes: int
    delete_retention_ms: int
    now_ms: int


class CompactedSegment(NamedTuple):
    """A new segment, synced under its temporary name, and the segments that it replaces."""

    new: Segment
    replaced: list[Summary]
    cleaned_to: int
    dropped_markers: frozenset[int]
    """Offsets of the abort markers that the new segment no longer has."""


def rewrite(disk: Disk, plan: CompactionPlan) -> Iterator[CompactedSegment]:
    """Writes the compacted segments, each when it is asked for; by then the one before it is in place."""
    newest, cleaned_to = _newest_offsets(disk, plan)
    cleaning = _Cleaning(plan, newest)
    covered = [summary for summary in plan.segments if summary.base_offset < cleaned_to]
    for group in _groups(covered, plan.segment_bytes):
        done = _rewrite_group(disk, plan, cleaning, group)
        yield done._replace(cleaned_to=min(done.cleaned_to, cleaned_to))


def _newest_offsets(disk: Disk, plan: CompactionPlan) -> tuple[dict[bytes, int], int]:
    """The newest offset of each key in the dirty part, and the offset up to which the map had room."""
    newest: dict[bytes, int] = {}
    for summary in plan.segments:
        if summary.end_offset <= plan.dirty_from:
            continue
        for batch in _batches(disk, plan.folder, summary):
            header = BatchHeader.read(batch)
            if header.last_offset < plan.dirty_from:
                continue
            if header.attributes & CONTROL or _is_aborted(header, plan.aborted):
                continue
            for record in _open_batch(batch) or ():
                if record.key is not None:
                    newest[_hash(record.key)] = record.offset
            if len(newest) > KEYS_MAX:
                return newest, header.last_offset + 1
    return newest, plan.segments[-1].end_offset


def _rewrite_group(
    disk: Disk, plan: CompactionPlan, cleaning: "_Cleaning", group: list[Summary]
) -> CompactedSegment:
    first, last = group[0], group[-1]
    new = Segment(disk, plan.folder, first.base_offset, suffix=CLEANED)
    new.remove()  # may be left from a pass that failed
    try:
        dropped = _write_kept(disk, plan, cleaning, group, new)
    except OSError:
        new.remove()
        raise
    return CompactedSegment(new, group, last.end_offset, dropped)


def _write_kept(
    disk: Disk, plan: CompactionPlan, cleaning: "_Cleaning", group: list[Summary], new: Segment
) -> frozenset[int]:
    """Fills the new segment; returns the offsets of the markers that it no longer has."""
    last = group[-1]
    dropped: set[int] = set()
    for summary in group:
        for batch in _batches(disk, plan.folder, summary):
            kept = cleaning.keep(batch)
            header = BatchHeader.read(batch if kept is None else kept)
            if kept is not None:
                new.append(kept, header, header.base_offset)
            elif header.attributes & CONTROL:
                dropped.add(header.base_offset)
    if new.end_offset < last.end_offset:
        end = encode_end(last.end_offset - 1)
        new.append(end, BatchHeader.read(end), last.end_offset - 1)
    new.file.sync()
    return frozenset(dropped)


class _Cleaning:
    """Decides for each batch, in the order of the log."""

    def __init__(self, plan: CompactionPlan, newest: dict[bytes, int]) -> None:
        self._plan = plan
        self._newest = newest
        self._with_data: set[int] = set()
        """Producers that have a kept record since their last marker."""

    def keep(self, batch: memoryview) -> memoryview | bytes | None:
        """The batch, or what is left of it, or None."""
        header = BatchHeader.read(batch)
        if header.attributes & CONTROL:
            return self._keep_marker(batch, header)
        records = _open_batch(batch)
        if records is None:
            logger.warning(
                "%s: a batch at offset %d cannot be opened and is copied unchanged",
                self._plan.folder.name,
                header.base_offset,
            )
            self._with_data.add(header.producer_id)
            return batch
        expired = header.attributes & DELETE_HORIZON and header.base_timestamp <= self._plan.now_ms
        aborted = _is_aborted(header, self._plan.aborted)
        kept = (
            []
            if aborted
            else [r for r in records if self._is_newest(r) and not (expired and r.value is None)]
        )
        if kept:
            self._with_data.add(header.producer_id)
        elif header.base_offset not in self._plan.last_batches:
            return None
        tombstones = any(r.value is None for r in kept) and not header.attributes & DELETE_HORIZON
        if len(kept) == len(records) and not tombstones:
            return batch
        return reencode_batch(header, kept, delete_horizon_ms=self._horizon if tombstones else None)

    @property
    def _horizon(self) -> int:
        return self._plan.now_ms + self._plan.delete_retention_ms

    def _keep_marker(self, batch: memoryview, header: BatchHeader) -> memoryview | bytes | None:
        needed = header.producer_id in self._with_data
        self._with_data.discard(header.producer_id)
        if needed:
            return batch
        if not header.attributes & DELETE_HORIZON:
            return reencode_batch(header, open_batch(batch), delete_horizon_ms=self._horizon)
        return batch if header.base_timestamp > self._plan.now_ms else None

    def _is_newest(self, record: Record) -> bool:
        if record.key is None:
            return False
        return self._newest.get(_hash(record.key), -1) <= record.offset


def _is_aborted(header: BatchHeader, aborted: Iterable[Aborted]) -> bool:
    return any(
        a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
        for a in aborted
    )


def _open_batch(batch: memoryview) -> list[Record] | None:
    """The records of a batch; None if it is damaged, or was encoded so that it cannot be opened."""
    try:
        read_batch(batch, verify=True)
        return open_batch(batch)
    except Exception:  # noqa: BLE001  foreign encoders and four decompressors raise what they like
        return None


def _groups(summaries: list[Summary], segment_bytes: int) -> Iterator[list[Summary]]:
    """Adjacent segments that fit into one segment together."""
    group: list[Summary] = []
    size = 0
    for summary in summaries:
        if group and size + summary.size_bytes > segment_bytes:
            yield group
            group, size = [], 0
        group.append(summary)
        size += summary.size_bytes
    if group:
        yield group


def _batches(disk: Disk, folder: Path, summary: Summary) -> Iterator[memoryview]:
    """The batches of a segment, with a file handle of its own: the partition may close its handle."""
    file: File = disk.open(folder / f"{summary.base_offset:020}.log")
    try:
        position, want = 0, READ_BYTES
        while position < summary.size_bytes:
            consumed = 0
            length = min(want, summary.size_bytes - position)
            data = file.read(length, position)
            if len(data) < length:
                raise OSError(errno.EIO, f"{summary.base_offset:020}.log: a read at {position} ended early")
            for batch in whole_batches(data):
                consumed += len(batch)
                yield batch
            if not consumed and length == summary.size_bytes - position:
                raise OSError(errno.EIO, f"{summary.base_offset:020}.log: no batch at {position}")
            position += consumed
            want = READ_BYTES if consumed else want * 2
    finally:
        file.close()


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=_KEY_HASH_BYTES).digest()
