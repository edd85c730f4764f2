"""From a consumer's messages to changes; what is no row of a table is left out and named."""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from headwater.change import Change
from headwater.sink.envelope import Opened

__all__ = ["read", "sort"]

logger = logging.getLogger(__name__)


class Row(msgspec.Struct, frozen=True):
    """What the sink itself looks at in a value; decoding it also proves that the value is a JSON object."""

    version: int | None = msgspec.field(default=None, name="_version")


_decode = msgspec.json.Decoder(Row).decode


def read(messages: Iterable[Any]) -> tuple[list[Change], dict[int, int]]:
    """The changes of one topic's messages, and for each partition the offset that comes after them.

    A message without key or with a value that is no JSON object can never become a row: it is passed
    over, and one line names the first of them.
    """
    changes, offsets, refused = sort(messages)
    if refused:
        message, reason = refused[0]
        place = f"{message.topic()}-{message.partition()} offset {message.offset()}"
        logger.warning(
            "%d records are no rows and were left out; the first is %s: %s", len(refused), place, reason
        )
    return changes, offsets


def sort(
    messages: Iterable[Any], *, keyless: bool = False, opened: Opened | None = None
) -> tuple[list[Change], dict[int, int], list[tuple[Any, str]]]:
    """As `read`, but what is no row is given back with the reason; ``keyless`` where rows need no key, ``opened`` where they are in an envelope."""
    changes: list[Change] = []
    offsets: dict[int, int] = {}
    refused: list[tuple[Any, str]] = []
    for message in messages:
        partition, offset = message.partition(), message.offset()
        offsets[partition] = offset + 1
        try:
            changes.append(_change(message, partition, offset, keyless, opened))
        except (ValueError, msgspec.MsgspecError) as error:
            refused.append((message, f"no row: {error}"))
    return changes, offsets, refused


def _change(message: Any, partition: int, offset: int, keyless: bool, opened: Opened | None) -> Change:
    # For each record of each sink: arguments in their order take half the time of named ones.
    key, value = message.key(), message.value()
    if opened is not None:
        key, value = opened(key, value)
    odd: bytes | msgspec.UnsetType | None = msgspec.UNSET
    if key is None and not keyless:
        raise ValueError("a row needs a key")
    try:
        name = key.decode()
    except (AttributeError, UnicodeDecodeError):
        if not keyless:
            raise
        name, odd = (key or b"").decode(errors="replace"), key
    at_ms = message.timestamp()[1]
    at_ms = max(0, at_ms)
    if value is None:
        return Change(name, None, partition, offset, at_ms, None, odd)
    return Change(name, value.decode(), partition, offset, at_ms, _decode(value).version, odd)
