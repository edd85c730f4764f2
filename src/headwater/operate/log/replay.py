"""Replay and reset: records of a topic are copied into a new topic, or read again by a group."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client, consumer, producer
from headwater.client.topic_defaults import FULL
from headwater.errors import MachineError, UsageError
from headwater.operate.log.topic import partition_count

__all__ = ["Move", "offset_of", "parse_point", "replay", "reset"]

READ_TIMEOUT_S = 30.0
FLUSH_S = 120.0


class Move(msgspec.Struct, frozen=True):
    """The committed offset of a group in one partition, and the one that it is moved to; -1 for none."""

    topic: str
    partition: int
    committed: int
    target: int


def parse_point(text: str) -> str | int | datetime:
    """``earliest``, ``latest``, an offset, or a time in ISO 8601 (UTC unless it says otherwise)."""
    if text in {"earliest", "latest"}:
        return text
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        expected = "earliest, latest, an offset, or a time like 2026-01-05T09:00:00Z"
        raise UsageError("this is not a position in a topic", got=repr(text), expected=expected) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def reset(log: Log, group: str, topic: str, to: str | int | datetime, *, dry_run: bool) -> list[Move]:
    """Moves a group without members to a position in every partition of a topic."""
    count = partition_count(log, topic)
    reader = consumer(log, group=group)
    try:
        moves = []
        for partition in range(count):
            place = TopicPartition(topic, partition)
            (current,) = reader.committed([place], TIMEOUT_S)
            moves.append(Move(topic, partition, max(current.offset, -1), offset_of(reader, place, to)))
        if not dry_run:
            reader.commit(
                offsets=[TopicPartition(topic, m.partition, m.target) for m in moves], asynchronous=False
            )
    except KafkaException as error:
        hint = "stop the members of the group first: while they run, they commit their own offsets"
        raise MachineError(f"group {group!r} cannot be moved", got=error.args[0].str(), hint=hint) from error
    finally:
        reader.close()
    return moves


def replay(log: Log, topic: str, into: str, first: str | int | datetime, last: str | int | datetime) -> int:
    """Copies records between two positions into a new topic, with their partitions, headers and times."""
    client = Client(log)
    count = partition_count(log, topic)
    if into in client.partitions():
        raise UsageError(
            f"topic {into!r} already exists", hint="a replay needs a new topic; choose another name"
        )
    client.ensure_topics([into], count, FULL)  # without retention: the records keep their old times
    reader, writer = consumer(log), producer(log)
    copied, failures = 0, []
    try:
        for partition in range(count):
            place = TopicPartition(topic, partition)
            bounds = offset_of(reader, place, first), offset_of(reader, place, last)
            for message in _between(reader, topic, partition, *bounds):
                while len(writer) > 50_000:
                    writer.poll(0.1)
                writer.produce(
                    into,
                    message.value(),
                    message.key(),
                    partition,
                    timestamp=message.timestamp()[1],
                    headers=message.headers() or [],
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                copied += 1
        if writer.flush(FLUSH_S) or failures:
            raise MachineError(
                f"topic {into!r} could not be written", got=str(failures[0]) if failures else "no answer"
            )
    finally:
        reader.close()
    return copied


def offset_of(reader: Consumer, place: TopicPartition, point: str | int | datetime) -> int:
    """The offset of a position in one partition."""
    start, end = reader.get_watermark_offsets(place, TIMEOUT_S)
    if point == "earliest":
        return int(start)
    if point == "latest":
        return int(end)
    if isinstance(point, int):
        return int(min(max(point, start), end))
    if isinstance(point, str):
        raise UsageError("this is not a position in a topic", got=repr(point), expected="earliest or latest")
    wanted = TopicPartition(place.topic, place.partition, round(point.timestamp() * 1000))
    (answer,) = reader.offsets_for_times([wanted], TIMEOUT_S)
    return int(answer.offset) if answer.offset >= 0 else int(end)


def _between(reader: Consumer, topic: str, partition: int, first: int, last: int) -> Iterator[Message]:
    """The records of one partition from an offset up to, not including, another one."""
    if first >= last:
        return
    reader.assign([TopicPartition(topic, partition, first)])
    while True:
        message = reader.poll(READ_TIMEOUT_S)
        if message is None:
            raise MachineError(f"{topic}-{partition} sent nothing for {READ_TIMEOUT_S:.0f} s")
        if message.partition() != partition:
            continue  # still from the partition that was read before
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  a public constant
                return  # the offsets after the last record are markers or compacted
            raise MachineError(f"{topic}-{partition} cannot be read", got=message.error().str())
        if message.offset() < last:
            yield message
        if message.offset() + 1 >= last:
            return
