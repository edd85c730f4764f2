"""Committed offsets and members of consumer groups, as records of an internal topic in Kafka's own format.

The topic has the guarantees of every other one: a commit is answered when its record is synced. A start reads
the records in order; the last one of a key counts.
"""

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from headwater.clock import Clock
from headwater.log.groups.group import GroupSnapshot
from headwater.log.groups.group_record import (
    Committed,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group_key,
    read_group_value,
    read_offset_key,
    read_offset_value,
)
from headwater.log.storage.partition import Partition, read_all
from headwater.record import CONTROL, TRANSACTIONAL, Record, encode_batch, is_commit

__all__ = ["OFFSETS_TOPIC", "Offsets"]

OFFSETS_TOPIC = "__consumer_offsets"
METADATA_CHARACTERS_MAX = 4096
RETENTION_MS = 604_800_000
"""How long offsets are kept after a group's last member has left, or its last commit, as in Kafka."""

TOMBSTONES_MAX = 1000
"""In one batch, so that it is smaller than a message may be."""

logger = logging.getLogger(__name__)


class Offsets:
    """All groups' offsets.

    The event loop owns it; ``partition`` holds the records. Offsets of an open transaction are pending: they
    are in the log under its producer id, and count once its marker commits.
    """

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._groups: dict[str, dict[tuple[str, int], Committed]] = {}
        self._pending: dict[int, list[Record]] = {}
        self.snapshots: dict[str, GroupSnapshot] = {}
        """The groups that had members when they were last stored."""
        self._emptied_ms: dict[str, int] = {}
        """When the last member of a group left."""
        self._load()

    def of(self, group: str) -> Mapping[tuple[str, int], Committed]:
        return self._groups.get(group, {})

    def pending(self, group: str) -> set[tuple[str, int]]:
        """The partitions for which an open transaction has an offset of this group."""
        keys = (
            read_offset_key(record.key or b"") for records in self._pending.values() for record in records
        )
        return {(topic, partition) for owner, topic, partition in keys if owner == group}

    def groups(self) -> list[str]:
        return list(self._groups)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> None:
        """Appends the commits; they are visible at once and durable with the next sync of the partition."""
        for record in self._append(self._records(group, offsets)):
            self._apply(record)

    def commit_pending(
        self, group: str, offsets: Mapping[tuple[str, int], Committed], producer_id: int, epoch: int
    ) -> None:
        """Appends the commits as part of a transaction."""
        records = self._records(group, offsets)
        records = self._append(
            records, producer_id=producer_id, producer_epoch=epoch, attributes=TRANSACTIONAL
        )
        self._pending.setdefault(producer_id, []).extend(records)

    def end(self, producer_id: int, commit: bool) -> None:
        """Ends a producer's transaction: its offsets count if it commits, and are dropped if not."""
        records = self._pending.pop(producer_id, [])
        for record in records if commit else ():
            self._apply(record)

    def delete(self, group: str, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Forgets a group, or its offsets of some partitions, including those of open transactions."""
        stored = set(self._groups.get(group, {})) | self.pending(group)
        deleted = [key for key in (stored if partitions is None else partitions) if key in stored]
        keys = [offset_key(group, *key) for key in deleted]
        if partitions is None and group in self._emptied_ms:
            keys.append(group_key(group))
        self._forget(keys)

    def delete_topic(self, topic: str) -> bool:
        """Forgets what all groups have committed for a topic; returns whether there was anything."""
        return self.delete_topics(lambda name: name == topic)

    def delete_topics(self, matches: Callable[[str], bool]) -> bool:
        """The same for all topics whose names match."""
        keys = [
            offset_key(group, topic, partition)
            for group in sorted({*self._groups, *self._pending_groups()})
            for topic, partition in sorted({*self._groups.get(group, {}), *self.pending(group)})
            if matches(topic)
        ]
        self._forget(keys)
        return bool(keys)

    def topics(self) -> set[str]:
        """The topics for which any group has committed an offset."""
        return {topic for offsets in self._groups.values() for topic, _ in offsets}

    def expire(self, has_members: Callable[[str], bool]) -> None:
        """Forgets offsets of groups that had no member, and no commit, for RETENTION_MS."""
        limit = self._clock.now_ms() - RETENTION_MS
        pending = self._pending_groups()
        for group in [group for group in self._groups if group not in pending and not has_members(group)]:
            emptied_ms = self._emptied_ms.get(group, -1)
            old = [
                key for key, value in self._groups[group].items() if max(value.time_ms, emptied_ms) <= limit
            ]
            keys = [offset_key(group, *key) for key in old]
            if len(old) == len(self._groups[group]) and group in self._emptied_ms:
                keys.append(group_key(group))
            self._forget(keys)

    def store_group(self, snapshot: GroupSnapshot) -> None:
        """Stores the members of a group, so that they continue after a restart.

        Of an empty group it stores since when it is empty.
        """
        now = self._clock.now_ms()
        matters = snapshot.members or snapshot.group in self._groups
        record = Record(group_key(snapshot.group), group_value(snapshot, now) if matters else None, (), now)
        for stored in self._append([record]):
            self._apply(stored)

    def _forget(self, keys: Collection[bytes]) -> None:
        now = self._clock.now_ms()
        records = [Record(key, None, (), now) for key in keys]
        for first in range(0, len(records), TOMBSTONES_MAX):
            for record in self._append(records[first : first + TOMBSTONES_MAX]):
                self._apply(record)

    def _pending_groups(self) -> set[str]:
        return {
            read_offset_key(record.key or b"")[0] for records in self._pending.values() for record in records
        }

    def _records(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> list[Record]:
        now = self._clock.now_ms()
        return [
            Record(offset_key(group, *key), offset_value(value, now), (), now)
            for key, value in offsets.items()
        ]

    def _append(self, records: list[Record], **transaction: int) -> list[Record]:
        """Appends records; returns them with their offsets."""
        data = memoryview(bytearray(encode_batch(records, **transaction)))
        first = self.partition.append(data, now_ms=self._clock.now_ms(), sequenced=False).base_offset
        return [msgspec.structs.replace(record, offset=first + i) for i, record in enumerate(records)]

    def _load(self) -> None:
        for header, records in read_all(self.partition):
            if header.attributes & CONTROL:
                self.end(header.producer_id, is_commit(records))
                continue
            readable = [record for record in records if self._is_readable(record)]
            if header.attributes & TRANSACTIONAL:
                self._pending.setdefault(header.producer_id, []).extend(readable)
            else:
                for record in readable:
                    self._apply(record)

    def _is_readable(self, record: Record) -> bool:
        """False for a record of a client, from the time when clients could write here."""
        try:
            name = read_group_key(record.key or b"")
            if name is None:
                read_offset_key(record.key or b"")
            if record.value is not None:
                read_offset_value(record.value) if name is None else read_group_value(name, record.value)
        except (struct.error, UnicodeDecodeError):
            logger.warning("%s: the record at offset %d cannot be read", OFFSETS_TOPIC, record.offset)
            return False
        return True

    def _apply(self, record: Record) -> None:
        name = read_group_key(record.key or b"")
        if name is not None:
            self._apply_group(name, record)
            return
        group, topic, partition = read_offset_key(record.key or b"")
        offsets = self._groups.get(group, {})
        if record.value is not None:
            former = offsets.get((topic, partition))
            if former is None or former.position < record.offset:
                committed = msgspec.structs.replace(read_offset_value(record.value), position=record.offset)
                self._groups.setdefault(group, {})[topic, partition] = committed
            return
        offsets.pop((topic, partition), None)
        if not offsets:
            self._groups.pop(group, None)
        # As in Kafka, deleting an offset also deletes the one that an open transaction is about to commit.
        for pending in self._pending.values():
            pending[:] = [other for other in pending if other.key != record.key]

    def _apply_group(self, name: str, record: Record) -> None:
        self.snapshots.pop(name, None)
        self._emptied_ms.pop(name, None)
        if record.value is not None:
            snapshot, since_ms = read_group_value(name, record.value)
            if snapshot.members:
                self.snapshots[name] = snapshot
            else:
                self._emptied_ms[name] = since_ms
