"""Lines into a topic, and records of a topic as lines, for the command line."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec
from confluent_kafka import KafkaError, Message, TopicPartition

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, consumer
from headwater.client.partitioner import Partitioner
from headwater.errors import MachineError, UsageError
from headwater.operate.log.replay import offset_of, parse_point
from headwater.operate.log.topic import partition_count
from headwater.position import Position
from headwater.write.writer import Writer

__all__ = ["Printed", "Written", "read", "write"]


class Printed(msgspec.Struct, frozen=True):
    """A record as it is printed; bytes that are not UTF-8 become replacement characters."""

    topic: str
    partition: int
    offset: int
    time: datetime
    key: str | None
    value: str | None

    def json(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    def line(self) -> bytes:
        return f"{'' if self.key is None else self.key + ' '}{self.value or ''}\n".encode()


class Written(msgspec.Struct, frozen=True):
    """The number of acknowledged records, and the position after them."""

    records: int
    position: Position

    def json(self) -> bytes:
        fields = {"records": self.records, "position": str(self.position), "offsets": self.position.offsets}
        return msgspec.json.encode(fields) + b"\n"


def write(
    log: Log,
    topic: str,
    lines: BinaryIO,
    key_separator: str | None,
    partitioner: Partitioner = "key",
    *,
    limit: str | None = None,
) -> Written:
    """Sends each line as a record, no faster than the limit.

    MachineError unless all of them are acknowledged.
    """
    count = 0

    def records() -> Iterator[tuple[bytes | None, bytes]]:
        nonlocal count
        for count, raw in enumerate(lines, 1):
            yield _keyed(raw, key_separator, count)

    with Writer(log, partitioner=partitioner, limit=limit) as writer:
        position = writer.put(topic, records())
    return Written(count, position)


def _keyed(raw: bytes, separator: str | None, number: int) -> tuple[bytes | None, bytes]:
    value = raw.rstrip(b"\n")
    if separator is None:
        return None, value
    key, separator_found, value = value.partition(separator.encode())
    if not separator_found:
        what = f"line {number} has no {separator!r} between key and value"
        raise UsageError(what, got=raw[:60].decode(errors="replace").rstrip())
    return key, value


def read(log: Log, topic: str, first: str, *, count: int | None, end: bool) -> Iterator[Printed]:
    """The records from a position on: ``count`` of them, or up to the end; without both it never ends."""
    partitions = partition_count(log, topic)
    point = parse_point(first)
    reader = consumer(log)
    try:
        places = [TopicPartition(topic, p) for p in range(partitions)]
        reader.assign([TopicPartition(topic, p.partition, offset_of(reader, p, point)) for p in places])
        ended: set[int] = set()
        left = count
        while (left is None or left > 0) and not (end and len(ended) == len(places)):
            message = reader.poll(TIMEOUT_S)
            if message is None:
                continue
            if message.error():
                _check(message)
                ended.add(message.partition())
                continue
            left = None if left is None else left - 1
            yield _printed(message)
    finally:
        reader.close()


def _check(message: Message) -> None:
    if message.error().code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
        raise MachineError(f"the log cannot be read: {message.error().str()}")


def _printed(message: Message) -> Printed:
    key, value = message.key(), message.value()
    return Printed(
        message.topic(),
        message.partition(),
        message.offset(),
        datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC),
        None if key is None else key.decode(errors="replace"),
        None if value is None else value.decode(errors="replace"),
    )
