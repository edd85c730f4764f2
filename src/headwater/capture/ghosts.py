"""Ghosts: keys that a topic has and its table has not. Anybody may have written them, so they may be anything.

A reader knows a row by what its key says, not by its bytes: `{"id": 5, "x": 1}` is row 5 to a sink. So a key may only be deleted if the table has no
row of what it says, or if it says nothing that a row could have.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headwater.capture.envelope import NULL, Around, deleted
from headwater.capture.source import Record

__all__ = ["Ghosts", "fields", "removed"]


class Ghosts(NamedTuple):
    """What became of keys that were looked up."""

    gone: set[str]
    """The table has no such row."""
    left: int
    """How many others could not be told, or are rows of the table in another spelling."""


def fields(key: str, names: Sequence[str]) -> list[Any] | None:
    """The values of these columns in the key of a record; None where it has not all of them, or a null: no row has such a key."""
    try:
        found = msgspec.json.decode(key)
    except (msgspec.DecodeError, UnicodeError):
        return None
    if not isinstance(found, dict) or any(found.get(name) is None for name in names):
        return None
    return [found[name] for name in names]


def removed(around: Around, key: bytes) -> tuple[Record, Record]:
    """The delete of a row of which nothing but the key is known."""
    text = key.decode("latin-1")
    try:
        is_row = isinstance(msgspec.json.decode(key), dict)
    except (msgspec.DecodeError, UnicodeError):
        is_row = False
    return deleted(around, text, text if is_row else NULL)
