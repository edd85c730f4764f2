"""Ghosts: keys that are in a topic but not in its table. Any process may have written them, with any content.

A reader identifies a row by the values in its key, not by the bytes: `{"id": 5, "x": 1}` is row 5 to a sink.
So a key may only be deleted if the table has no row with these values, or if no row could have such a key.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headwater.capture.envelope import NULL, delete_events
from headwater.capture.source import EventContext, Record

__all__ = ["Ghosts", "delete_key", "key_values"]


class Ghosts(NamedTuple):
    """The result of looking keys up in a table."""

    gone: set[str]
    """Keys without a row in the table."""
    left: int
    """How many other keys could not be looked up, or are rows of the table in another spelling."""


def key_values(key: str, names: Sequence[str]) -> list[Any] | None:
    """The values of these columns in a record key; None if one is missing or null, which no row's key has."""
    try:
        columns = msgspec.json.decode(key)
    except (msgspec.DecodeError, UnicodeError):
        return None
    if not isinstance(columns, dict) or any(columns.get(name) is None for name in names):
        return None
    return [columns[name] for name in names]


def delete_key(context: EventContext, key: bytes) -> tuple[Record, Record]:
    """The delete of a row of which only the key is known, and its tombstone."""
    text = key.decode("latin-1")
    try:
        is_row = isinstance(msgspec.json.decode(key), dict)
    except (msgspec.DecodeError, UnicodeError):
        is_row = False
    return delete_events(context, text, text if is_row else NULL)
