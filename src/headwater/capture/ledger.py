"""Where a capture stands, as its topics ``<name>.capture`` and ``<name>.schema`` say."""

from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headwater.access import Log
from headwater.client import READING, Client, acquaint, consumer
from headwater.errors import MachineError
from headwater.formats import CAPTURE, CAPTURE_SCHEMA

__all__ = ["State", "last_state", "schemas"]

TAIL_RECORDS = 64
READ_S = 30.0


class State(msgspec.Struct, frozen=True):
    """A record of ``<name>.capture``: the position, and counters since the capture began."""

    position: str | None = None
    rows: int = 0
    """Records that were published, tombstones among them."""
    transactions: int = 0
    """Transactions of the log."""
    at_ms: int = 0
    lag_ms: int = 0
    """How long before its publication the last change was committed."""
    lag_bytes: int = 0
    retained_bytes: int = 0
    """How much of its log the database keeps for this capture."""
    control: int = 0
    """Behind the last command of ``<name>.control`` that was taken up."""
    paused: bool = False
    removed: bool = False
    """Whether it has left its database: it reads nothing until it is added again."""
    format: int = 1
    """Of the state with its position, and of the records in the topics of the capture's tables."""


def last_state(log: Log, name: str) -> State | None:
    """The newest committed state. Only the end of the topic is read; all of it if that holds nothing but what was given up."""
    reader = consumer(log, **READING)
    try:
        acquaint(reader)
        low, high = _bounds(reader, f"{name}.capture")
        for first in dict.fromkeys((max(low, high - TAIL_RECORDS), low)):
            found = _newest(reader, f"{name}.capture", first, high)
            if found is not None:
                return CAPTURE.decode(found, State, f"the state of capture {name} in {name}.capture")
        return None
    finally:
        reader.close()


def _bounds(reader: Any, topic: str) -> tuple[int, int]:
    try:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=READ_S)
    except KafkaException as error:
        raise MachineError(f"topic {topic} cannot be read", got=error.args[0].str()) from error
    return int(low), int(high)


def _newest(reader: object, topic: str, first: int, high: int) -> bytes | None:
    found = None
    reader.assign([TopicPartition(topic, 0, first)])  # type: ignore[attr-defined]
    while first < high:
        message = reader.poll(READ_S)  # type: ignore[attr-defined]
        if message is None:
            raise MachineError(f"topic {topic} sent nothing for {READ_S:.0f} s")
        if message.error() is None:
            found, first = message.value(), message.offset() + 1
        elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
            return found
        else:
            raise MachineError(f"topic {topic} cannot be read", got=message.error().str())
    return found


def schemas(client: Client, name: str) -> list[bytes]:
    """The versions of all tables' schemas, oldest first."""
    topic = f"{name}.schema"
    found = [message.value() for message in client.read([topic])]
    return [CAPTURE_SCHEMA.verify(value, f"a schema in {topic}") for value in found]
