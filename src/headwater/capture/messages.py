"""Messages between the capture loop and a database: commands, notices, and ranges of rows."""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = ["Command", "Notice", "PastLimit", "Range"]


PastLimit = Literal["tell", "stop"]
"""Whether a capture continues when the database retains too much log for it, or stops and drops its slot."""


class Range(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of a table after one key and up to another one. Keys are the key columns as texts."""

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    ghosts: tuple[str, ...] = ()
    """Record keys that are in the topic but not in the table; the range is then these keys, without rows."""


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of ``<name>.control``."""

    do: Literal["pause", "resume", "snapshot", "remove", "add"]
    """The last two say that the state in ``<name>.capture`` was changed: the process reads it again."""
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex[:12])
    table: str = ""
    where: str = ""
    """Which rows, see `Condition`."""
    incremental: bool = True
    """Whether rows are read in chunks during the stream; otherwise the table gets a truncate and a new
    snapshot."""
    ranges: tuple[Range, ...] | None = None
    """Only the rows in these ranges."""
    format: int = 1


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of ``<name>.notifications``; its key is the name of the capture."""

    what: str
    """One or two words: ``paused``, ``snapshot finished``."""
    at_ms: int
    table: str = ""
    text: str = ""
    details: Mapping[str, Any] = {}
    format: int = 1
