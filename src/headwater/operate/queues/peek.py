"""Peek: messages of a queue as people read them, without locking them."""

from datetime import UTC, datetime
from itertools import islice

import msgspec

from headwater.access import Log
from headwater.clock import Clock, SystemClock
from headwater.errors import UsageError
from headwater.operate.queues.contents import Content, contents
from headwater.operate.queues.spans import STATES

__all__ = ["Peeked", "peek"]

VALUE_CHARACTERS_MAX = 200
HEADER_CHARACTERS_MAX = 200


class Peeked(msgspec.Struct, frozen=True):
    """A message that is not settled. Bytes that are not UTF-8 become replacement characters."""

    id: str
    topic: str
    partition: int
    offset: int
    state: str
    attempts: int
    """How often it was delivered, the present delivery included."""
    due: datetime | None
    """When its delay or its lock ends."""
    time: datetime
    age_s: float
    key: str | None
    headers: tuple[tuple[str, str | None], ...]
    value: str | None
    """Its first characters."""


def peek(
    log: Log, name: str, state: str | None = None, limit: int = 20, clock: Clock | None = None
) -> list[Peeked]:
    """The first messages of a queue, in one state or in any.

    UsageError if there is no such queue or state, or if its log does not know single records.
    """
    if state is not None and state not in STATES:
        raise UsageError("there is no such state", got=repr(state), expected=", ".join(STATES))
    now_ms = (clock or SystemClock()).now_ms()
    found = contents(log, name, STATES if state is None else (state,))
    return [_peeked(content, now_ms) for content in islice(found, limit)]


def _peeked(content: Content, now_ms: int) -> Peeked:
    record, span = content.record, content.span
    return Peeked(
        content.id,
        *content.place,
        record.offset,
        span.state,
        span.deliveries,
        None if span.due_ms is None else _moment(span.due_ms),
        _moment(record.timestamp),
        max(now_ms - record.timestamp, 0) / 1000,
        _text(record.key),
        tuple((header, _text(value, HEADER_CHARACTERS_MAX)) for header, value in record.headers),
        _text(record.value, VALUE_CHARACTERS_MAX),
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _text(content: bytes | None, characters: int | None = None) -> str | None:
    if content is None:
        return None
    text = content.decode(errors="replace")
    return text if characters is None or len(text) <= characters else f"{text[:characters]}…"
