"""Returning: what a letter is on its way back to its topic.

A message keeps its key, value, headers and timestamp. Two headers would keep it from being delivered: a time
that is over (``headwater-expires``) is left out, and after its id (``headwater-id``) comes another one, since
messages with the same id are duplicates.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headwater.errors import UsageError
from headwater.operate.queues.edit import Edit
from headwater.queue_headers import EXPIRES_HEADER, ID_HEADER
from headwater.record import Record
from headwater.worker.letter import open_letter

__all__ = ["Moved", "Return", "returned"]


class Moved(msgspec.Struct, frozen=True):
    """A letter, and the topic and partition to which its message goes."""

    letter: str
    """Its id: topic, partition and offset."""
    topic: str
    partition: int
    key: str | None
    attempts: str
    reason: str


class Return(NamedTuple):
    """A message on its way back."""

    moved: Moved
    message: Record
    partition: int | None
    """None if its key chooses."""


def returned(
    letter: str,
    record: Record,
    topics: Mapping[str, int],
    now_ms: int,
    *,
    key: str | None = None,
    edit: Edit | None = None,
) -> Return | None:
    """The message of a letter, edited; None if it stays: it has another key, or is no letter at all.

    UsageError if its topic does not exist, or if it cannot be edited.
    """
    message, facts = open_letter(record)
    if not facts or (key is not None and message.key != key.encode()):
        return None
    edited = message if edit is None else _edited(letter, message, edit)
    if edited is None:
        return None
    topic, partition = facts["topic"], int(facts["partition"])
    if topic not in topics:
        raise UsageError(
            f"letter {letter} cannot go back: there is no topic {topic!r}",
            hint="create the topic first, or choose other letters with --key",
        )
    keeps_partition = edited.key == message.key and partition < topics[topic]
    shown_key = None if edited.key is None else edited.key.decode(errors="replace")
    return Return(
        Moved(letter, topic, partition, shown_key, facts["attempts"], facts["reason"]),
        _deliverable(letter, edited, now_ms),
        partition if keeps_partition else None,
    )


def _deliverable(letter: str, message: Record, now_ms: int) -> Record:
    """The message without what would settle it before it is delivered."""
    headers: list[tuple[str, bytes | None]] = []
    own_id: bytes | None = None
    for name, value in message.headers:
        if name == ID_HEADER and own_id is not None:
            continue  # of an earlier redrive
        if name == EXPIRES_HEADER and _is_over(value, now_ms):
            continue
        own_id = value if name == ID_HEADER else own_id
        headers.append((name, value))
    if own_id is not None:
        headers.append((ID_HEADER, own_id + f"#{letter}".encode()))
    return msgspec.structs.replace(message, headers=tuple(headers))


def _is_over(text: bytes | None, now_ms: int) -> bool:
    return text is not None and text.isdigit() and int(text) <= now_ms


def _edited(letter: str, message: Record, edit: Edit) -> Record | None:
    try:
        return edit(message)
    except UsageError as error:
        what = f"letter {letter}: {error.what}"
        raise UsageError(what, got=error.got, expected=error.expected, hint=error.hint) from error
