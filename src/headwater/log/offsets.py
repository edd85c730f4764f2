"""Committed offsets of consumer groups, kept as records of an internal topic in Kafka's own format.

The topic shares the guarantees of every other one: a commit is answered when its record is synced, and a start
reads them back in order, the last one of a key being the one that counts.
"""

import struct
from collections.abc import Mapping

import msgspec

from headwater.clock import Clock
from headwater.log.partition import Partition
from headwater.record import Record, encode_batch, open_batch, whole_batches

__all__ = ["OFFSETS_TOPIC", "Committed", "Offsets"]

OFFSETS_TOPIC = "__consumer_offsets"
METADATA_BYTES_MAX = 4096
KEY_VERSION = 1
VALUE_VERSION = 3
READ_BYTES = 1 << 20


class Committed(msgspec.Struct, frozen=True):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Offsets:
    """All groups' offsets. The event loop owns it; ``partition`` holds the records."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._groups: dict[str, dict[tuple[str, int], Committed]] = {}
        self._load()

    def of(self, group: str) -> Mapping[tuple[str, int], Committed]:
        return self._groups.get(group, {})

    def groups(self) -> list[str]:
        return list(self._groups)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], Committed]) -> None:
        """Appends the commits; they are visible at once and durable with the next sync of the partition."""
        now = self._clock.now_ms()
        records = [Record(_key(group, *key), _value(value, now), (), now) for key, value in offsets.items()]
        self._partition.append(memoryview(bytearray(encode_batch(records))))
        self._groups.setdefault(group, {}).update(offsets)

    def _load(self) -> None:
        offset = self._partition.log_start_offset
        while offset < self._partition.high_watermark:
            for batch in whole_batches(self._partition.read(offset, READ_BYTES)):
                records = open_batch(batch)
                for record in records:
                    self._apply(record)
                offset = records[-1].offset + 1

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
