"""From a consumer's messages to changes; messages that are not rows of a table are left out and named."""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from headwater.change import Change
from headwater.declare.judge import Judge
from headwater.sink.debezium import EnvelopeReader

__all__ = ["judged", "parse_messages", "read_changes"]

logger = logging.getLogger(__name__)


class _RowVersion(msgspec.Struct, frozen=True):
    """The part of a value that the sink itself reads.

    Decoding it also proves that the value is a JSON object.
    """

    version: int | None = msgspec.field(default=None, name="_version")


_decode = msgspec.json.Decoder(_RowVersion).decode


def read_changes(messages: Iterable[Any]) -> tuple[list[Change], dict[int, int]]:
    """The changes of one topic's messages, and for each partition the offset after them.

    A message without key, or with a value that is not a JSON object, can never become a row: it is
    skipped, and one log line names the first of them.
    """
    changes, offsets, refused = parse_messages(messages)
    if refused:
        message, reason = refused[0]
        place = f"{message.topic()}-{message.partition()} offset {message.offset()}"
        logger.warning(
            "%d records are not rows and were skipped; the first is %s: %s", len(refused), place, reason
        )
    return changes, offsets


def parse_messages(
    messages: Iterable[Any], *, keyless: bool = False, reader: EnvelopeReader | None = None
) -> tuple[list[Change], dict[int, int], list[tuple[Any, str]]]:
    """The changes of messages, by partition the offset after them, and the messages that are not rows.

    Each of the last has its reason. ``keyless``: rows need no key. ``reader``: what reads a row.
    """
    changes: list[Change] = []
    offsets: dict[int, int] = {}
    refused: list[tuple[Any, str]] = []
    for message in messages:
        partition, offset = message.partition(), message.offset()
        offsets[partition] = offset + 1
        try:
            changes.append(_change(message, partition, offset, keyless, reader))
        except (ValueError, msgspec.MsgspecError) as error:
            refused.append((message, f"not a row: {error}"))
    return changes, offsets, refused


def judged(judge: Judge, envelope: EnvelopeReader | None) -> EnvelopeReader:
    """A reader of rows, in an envelope or not, that refuses those that views find invalid."""

    def read(key: bytes | None, value: bytes | None) -> tuple[Any, bytes | None]:
        if envelope is not None:
            key, value = envelope(key, value)
        fault = judge.fault(value) if value is not None else None
        if fault is not None:
            raise ValueError(str(fault))
        return key, value

    return read


def _change(
    message: Any, partition: int, offset: int, keyless: bool, reader: EnvelopeReader | None
) -> Change:
    # Called for each record of each sink: positional arguments take half the time of named ones.
    key, value = message.key(), message.value()
    if reader is not None:
        key, value = reader(key, value)
    odd_key: bytes | msgspec.UnsetType | None = msgspec.UNSET
    if key is None and not keyless:
        raise ValueError("a row needs a key")
    try:
        name = key.decode()
    except (AttributeError, UnicodeDecodeError):
        if not keyless:
            raise
        name, odd_key = (key or b"").decode(errors="replace"), key
    at_ms = message.timestamp()[1]
    at_ms = max(0, at_ms)
    if value is None:
        return Change(name, None, partition, offset, at_ms, None, odd_key)
    return Change(name, value.decode(), partition, offset, at_ms, _decode(value).version, odd_key)
