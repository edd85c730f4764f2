"""Pipe: lines into a topic, and records out of one, for the command line."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec
from confluent_kafka import KafkaError, Message, TopicPartition

from headwater.access import Log
from headwater.client import TIMEOUT_S, Client, consumer, producer
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.operate.replay import offset_of, parse_point
from headwater.partition import Partitioner

__all__ = ["Printed", "read", "write"]

IN_FLIGHT_MAX = 50_000
FLUSH_S = 300.0


class Printed(msgspec.Struct, frozen=True):
    """A record as it is shown; bytes that are no text are shown with replacement characters."""

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


def write(
    log: Log, topic: str, lines: BinaryIO, key_separator: str | None, partitioner: Partitioner = "key"
) -> int:
    """Sends each line as a record; returns how many were acknowledged, all of them or MachineError."""
    writer = producer(log, partitioner=partitioner, **{"message.timeout.ms": 60_000})
    Client(
        log
    ).partitions()  # a log that is away or refuses us is known at once, not when the first record times out
    failures: list[KafkaError] = []
    count = 0
    for raw in lines:
        key, value = None, raw.rstrip(b"\n")
        if key_separator is not None:
            key, found, value = value.partition(key_separator.encode())
            if not found:
                what = f"line {count + 1} has no {key_separator!r} between key and value"
                raise UsageError(what, got=raw[:60].decode(errors="replace").rstrip())
        while len(writer) >= IN_FLIGHT_MAX:
            writer.poll(0.1)
        try:
            writer.produce(
                topic, value, key, on_delivery=lambda error, _: failures.append(error) if error else None
            )
        except HeadwaterError:
            raise
        except Exception as error:
            raise UsageError(f"line {count + 1} cannot be sent", got=str(error)) from error
        count += 1
    if writer.flush(FLUSH_S) or failures:
        reason = failures[0].str() if failures else "no answer"
        raise MachineError(
            f"{max(len(failures), len(writer))} of {count} records were not acknowledged", got=reason
        )
    return count


def read(log: Log, topic: str, first: str, *, count: int | None, end: bool) -> Iterator[Printed]:
    """Records from a place on; without ``count`` and ``end`` for ever."""
    partitions = Client(log).partitions()
    if topic not in partitions:
        raise UsageError(f"there is no topic {topic!r}", hint="headwater topic list shows what there is")
    point = parse_point(first)
    reader = consumer(log)
    try:
        places = [TopicPartition(topic, p) for p in range(partitions[topic])]
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
