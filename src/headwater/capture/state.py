"""The state of a capture, as its topics ``<name>.capture`` and ``<name>.schema`` have it."""

from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headwater.access import Log
from headwater.capture.source import Record
from headwater.client.client import READING, Client, acquaint, consumer
from headwater.errors import MachineError
from headwater.formats import CAPTURE, CAPTURE_SCHEMA

__all__ = ["State", "last_state", "schemas", "state_record"]

TAIL_RECORDS = 64
READ_S = 30.0


class State(msgspec.Struct, frozen=True):
    """A record of ``<name>.capture``: the position, and counters since the first start of the capture."""

    position: str | None = None
    rows: int = 0
    """Published records, tombstones included."""
    transactions: int = 0
    """Transactions of the log."""
    at_ms: int = 0
    lag_ms: int = 0
    """The time between the commit of the last change and its publication."""
    lag_bytes: int = 0
    retained_bytes: int = 0
    """How much of its log the database retains for this capture."""
    control: int = 0
    """The offset after the last command of ``<name>.control`` that was carried out."""
    paused: bool = False
    removed: bool = False
    """Whether the capture was removed from its database: it reads nothing until it is added again."""
    format: int = 1
    """The format of the state with its position, and of the records in the change topics of the capture."""


def state_record(name: str, state: State) -> Record:
    """The record of a capture's state."""
    return Record(f"{name}.capture", name.encode(), msgspec.json.encode(state), state.at_ms)


def last_state(log: Log, name: str) -> State | None:
    """The newest committed state. The whole topic is read only if its end has no committed record."""
    reader = consumer(log, **READING)
    try:
        acquaint(reader)
        low, high = _bounds(reader, f"{name}.capture")
        for first in dict.fromkeys((max(low, high - TAIL_RECORDS), low)):
            value = _newest(reader, f"{name}.capture", first, high)
            if value is not None:
                return CAPTURE.decode(value, State, f"the state of capture {name} in {name}.capture")
        return None
    finally:
        reader.close()


def _bounds(reader: Any, topic: str) -> tuple[int, int]:
    try:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=READ_S)
    except KafkaException as error:
        raise MachineError(f"topic {topic} cannot be read", got=error.args[0].str()) from error
    return int(low), int(high)


def _newest(reader: Any, topic: str, first: int, high: int) -> bytes | None:
    newest: bytes | None = None
    reader.assign([TopicPartition(topic, 0, first)])
    while first < high:
        message = reader.poll(READ_S)
        if message is None:
            raise MachineError(f"topic {topic} sent nothing for {READ_S:.0f} s")
        if message.error() is None:
            newest, first = message.value(), message.offset() + 1
        elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
            return newest
        else:
            raise MachineError(f"topic {topic} cannot be read", got=message.error().str())
    return newest


def schemas(client: Client, name: str) -> list[bytes]:
    """The versions of all tables' schemas, oldest first."""
    topic = f"{name}.schema"
    values = [message.value() for message in client.read([topic])]
    return [CAPTURE_SCHEMA.verify(value, f"a schema in {topic}") for value in values]
