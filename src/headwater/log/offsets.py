"""Committed offsets of consumer groups, kept as records of an internal topic in Kafka's own format.

The topic shares the guarantees of every other one: a commit is answered when its record is synced, and a start
reads them back in order, the last one of a key being the one that counts.
"""

import struct
from collections.abc import Iterable, Mapping

import msgspec

from headwater.clock import Clock
from headwater.log.partition import Partition, read_all
from headwater.record import CONTROL, TRANSACTIONAL, Record, encode_batch, is_commit

__all__ = ["OFFSETS_TOPIC", "Committed", "Offsets"]

OFFSETS_TOPIC = "__consumer_offsets"
METADATA_BYTES_MAX = 4096
KEY_VERSION = 1
VALUE_VERSION = 3


class Committed(msgspec.Struct, frozen=True):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Offsets:
    """All groups' offsets. The event loop owns it; ``partition`` holds the records.

    Offsets of an open transaction are pending: they stand in the log under its producer id and count once its marker commits.
    """

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._groups: dict[str, dict[tuple[str, int], Committed]] = {}
        self._pending: dict[int, list[Record]] = {}
        self._load()

    def of(self, group: str) -> Mapping[tuple[str, int], Committed]:
        return self._groups.get(group, {})

    def pending(self, group: str) -> set[tuple[str, int]]:
        """The partitions for which an open transaction holds an offset of this group."""
        keys = (_read_key(record.key or b"") for records in self._pending.values() for record in records)
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
            self._append([Record(_key(group, *key), None, (), now) for key in keys])
        for key in keys:
            del known[key]
        if not known:
            self._groups.pop(group, None)

    def _records(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> list[Record]:
        now = self._clock.now_ms()
        return [Record(_key(group, *key), _value(value, now), (), now) for key, value in offsets.items()]

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
        group, topic, partition = _read_key(record.key or b"")
        if record.value is None:
            self._groups.get(group, {}).pop((topic, partition), None)
        else:
            self._groups.setdefault(group, {})[topic, partition] = _read_value(record.value)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def _key(group: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", KEY_VERSION) + _text(group) + _text(topic) + struct.pack(">i", partition)


def _read_key(data: bytes) -> tuple[str, str, int]:
    group, at = _read_text(data, 2)
    topic, at = _read_text(data, at)
    return group, topic, struct.unpack_from(">i", data, at)[0]


def _value(committed: Committed, now_ms: int) -> bytes:
    head = struct.pack(">hqi", VALUE_VERSION, committed.offset, committed.leader_epoch)
    return head + _text(committed.metadata) + struct.pack(">q", now_ms)


def _read_value(data: bytes) -> Committed:
    _, offset, leader_epoch = struct.unpack_from(">hqi", data)
    metadata, _ = _read_text(data, 14)
    return Committed(offset, leader_epoch, metadata)
