"""Committed offsets and members of consumer groups, kept as records of an internal topic in Kafka's own format.

The topic shares the guarantees of every other one: a commit is answered when its record is synced, and a start
reads them back in order, the last one of a key being the one that counts.
"""

from collections.abc import Iterable, Mapping

from headwater.clock import Clock
from headwater.log.group import GroupSnapshot
from headwater.log.group_record import (
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
from headwater.log.partition import Partition, read_all
from headwater.record import CONTROL, TRANSACTIONAL, Record, encode_batch, is_commit

__all__ = ["OFFSETS_TOPIC", "Offsets"]

OFFSETS_TOPIC = "__consumer_offsets"
METADATA_BYTES_MAX = 4096


class Offsets:
    """All groups' offsets. The event loop owns it; ``partition`` holds the records.

    Offsets of an open transaction are pending: they stand in the log under its producer id and count once its marker commits.
    """

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._groups: dict[str, dict[tuple[str, int], Committed]] = {}
        self._pending: dict[int, list[Record]] = {}
        self.snapshots: dict[str, GroupSnapshot] = {}
        """The groups that had members when they were stored last."""
        self._load()

    def of(self, group: str) -> Mapping[tuple[str, int], Committed]:
        return self._groups.get(group, {})

    def pending(self, group: str) -> set[tuple[str, int]]:
        """The partitions for which an open transaction holds an offset of this group."""
        keys = (
            read_offset_key(record.key or b"") for records in self._pending.values() for record in records
        )
        return {(topic, partition) for owner, topic, partition in keys if owner == group}

    def groups(self) -> list[str]:
        return list(self._groups)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> None:
        """Appends the commits; they are visible at once and durable with the next sync of the partition."""
        self._append(self._records(group, offsets))
        self._groups.setdefault(group, {}).update(offsets)

    def commit_pending(
        self, group: str, offsets: Mapping[tuple[str, int], Committed], producer_id: int, epoch: int
    ) -> None:
        """Appends the commits as part of a transaction."""
        records = self._records(group, offsets)
        self._append(records, producer_id=producer_id, producer_epoch=epoch, attributes=TRANSACTIONAL)
        self._pending.setdefault(producer_id, []).extend(records)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """A transaction's marker stands in the partition: its offsets count, or never did."""
        records = self._pending.pop(producer_id, [])
        for record in records if commit else ():
            self._apply(record)

    def delete(self, group: str, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Forgets a group, or its offsets of some partitions."""
        known = self._groups.get(group, {})
        keys = [key for key in (known if partitions is None else partitions) if key in known]
        now = self._clock.now_ms()
        if keys:
            self._append([Record(offset_key(group, *key), None, (), now) for key in keys])
        for key in keys:
            del known[key]
        if not known:
            self._groups.pop(group, None)

    def store_group(self, snapshot: GroupSnapshot) -> None:
        """Remembers who is in a group, so that its members go on after a restart; an empty group is forgotten."""
        now = self._clock.now_ms()
        value = group_value(snapshot, now) if snapshot.members else None
        self._append([Record(group_key(snapshot.group), value, (), now)])
        self._keep_group(snapshot)

    def _keep_group(self, snapshot: GroupSnapshot) -> None:
        if snapshot.members:
            self.snapshots[snapshot.group] = snapshot
        else:
            self.snapshots.pop(snapshot.group, None)

    def _records(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> list[Record]:
        now = self._clock.now_ms()
        return [
            Record(offset_key(group, *key), offset_value(value, now), (), now)
            for key, value in offsets.items()
        ]

    def _append(self, records: list[Record], **transaction: int) -> None:
        self.partition.append(memoryview(bytearray(encode_batch(records, **transaction))), sequenced=False)

    def _load(self) -> None:
        for header, records in read_all(self.partition):
            if header.attributes & CONTROL:
                self.end(header.producer_id, commit=is_commit(records))
            elif header.attributes & TRANSACTIONAL:
                self._pending.setdefault(header.producer_id, []).extend(records)
            else:
                for record in records:
                    self._apply(record)

    def _apply(self, record: Record) -> None:
        name = read_group_key(record.key or b"")
        if name is not None:
            self._keep_group(read_group_value(name, record.value) if record.value else GroupSnapshot(name))
            return
        group, topic, partition = read_offset_key(record.key or b"")
        if record.value is None:
            self._groups.get(group, {}).pop((topic, partition), None)
        else:
            self._groups.setdefault(group, {})[topic, partition] = read_offset_value(record.value)
