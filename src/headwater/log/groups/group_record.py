"""The records of ``__consumer_offsets``, byte for byte as Kafka writes them: offsets and groups.

key    version 1: group, topic, partition        version 2: group
value  version 3: offset, leader epoch, metadata, commit time
       version 3: protocol type, generation, protocol, leader, time, members
"""

import struct

import msgspec

from headwater.log.groups.group import GroupSnapshot
from headwater.log.groups.member import Join, MemberSnapshot

__all__ = [
    "Committed",
    "group_key",
    "group_value",
    "offset_key",
    "offset_value",
    "read_group_key",
    "read_group_value",
    "read_offset_key",
    "read_offset_value",
]

OFFSET_KEY, GROUP_KEY = 1, 2
VALUE_VERSION = 3


class Committed(msgspec.Struct, frozen=True):
    """The offset that a group has committed in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = -1
    """When it was committed; -1 if it is not stored yet."""
    position: int = -1
    """The offset of its record in the log of commits.

    The latest one counts, whichever became visible first.
    """


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", OFFSET_KEY) + _text(group) + _text(topic) + struct.pack(">i", partition)


def read_offset_key(data: bytes) -> tuple[str, str, int]:
    reader = _Reader(data, 2)
    return reader.text() or "", reader.text() or "", reader.number(">i")


def offset_value(committed: Committed, now_ms: int) -> bytes:
    head = struct.pack(">hqi", VALUE_VERSION, committed.offset, committed.leader_epoch)
    return head + _text(committed.metadata) + struct.pack(">q", now_ms)


def read_offset_value(data: bytes) -> Committed:
    reader = _Reader(data, 2)
    return Committed(reader.number(">q"), reader.number(">i"), reader.text() or "", reader.number(">q"))


def group_key(group: str) -> bytes:
    return struct.pack(">h", GROUP_KEY) + _text(group)


def read_group_key(data: bytes) -> str | None:
    """The group's name, or None for the key of an offset."""
    reader = _Reader(data)
    return reader.text() if reader.number(">h") == GROUP_KEY else None


def group_value(snapshot: GroupSnapshot, now_ms: int) -> bytes:
    parts = [
        struct.pack(">h", VALUE_VERSION),
        _text(snapshot.protocol_type),
        struct.pack(">i", snapshot.generation),
        _text(snapshot.protocol),
        _text(snapshot.leader),
        struct.pack(">qi", now_ms, len(snapshot.members)),
    ]
    for member in snapshot.members:
        join = member.join
        timeouts = (round(join.rebalance_timeout * 1000), round(join.session_timeout * 1000))
        parts += [_text(member.id), _text(join.instance_id), _text(join.client_id), _text(join.client_host)]
        parts += [
            struct.pack(">ii", *timeouts),
            _sized(_subscription(join, snapshot)),
            _sized(member.assignment),
        ]
    return b"".join(parts)


def read_group_value(group: str, data: bytes) -> tuple[GroupSnapshot, int]:
    """A group as it was stored, and when."""
    reader = _Reader(data, 2)
    protocol_type, generation = reader.text() or "", reader.number(">i")
    protocol, leader = reader.text() or "", reader.text()
    since_ms = reader.number(">q")
    members = tuple(_read_member(reader, protocol_type, protocol) for _ in range(reader.number(">i")))
    return GroupSnapshot(group, generation, protocol_type, protocol, leader, members), since_ms


def _read_member(reader: "_Reader", protocol_type: str, protocol: str) -> MemberSnapshot:
    member_id, instance_id = reader.text() or "", reader.text()
    client_id, client_host = reader.text() or "", reader.text() or ""
    rebalance_ms, session_ms = reader.number(">i"), reader.number(">i")
    protocols = ((protocol, reader.sized()),)
    timeouts = (session_ms / 1000, rebalance_ms / 1000)
    join = Join(member_id, instance_id, client_id, client_host, *timeouts, protocol_type, protocols)
    return MemberSnapshot(member_id, join, reader.sized())


def _subscription(join: Join, snapshot: GroupSnapshot) -> bytes:
    return next((data for name, data in join.protocols if name == snapshot.protocol), b"")


def _text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def take(self, length: int) -> bytes:
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str | None:
        length = self.number(">h")
        return None if length < 0 else self.take(length).decode()

    def sized(self) -> bytes:
        return self.take(self.number(">i"))
