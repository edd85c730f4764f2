"""Place: where a capture of MariaDB stands."""

import msgspec

from headwater.capture.chunks import Chunked
from headwater.decoders import from_json

__all__ = ["ANEW", "Place"]

ANEW = "snapshot"
"""The position of a capture that takes its snapshot again."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: the transactions that are published, and those that each table's snapshot has seen."""

    gtid: str = ""
    tables: dict[str, str] | None = None
    """By table, the transactions that its rows stood for when they were read, none of a table that was made later; one that is missing
    has no rows in the topics yet. None: a position that is a set of transactions alone, of all tables that are there."""
    snapshots: tuple[Chunked, ...] = ()
    """Tables that are read again beside the stream, and how far that is."""
    stopped: dict[str, str] = {}
    """Tables that cannot go on, and why."""
    again: bool = False
    """Whether the topics have rows from before: a snapshot begins with a truncate then."""

    @classmethod
    def parse(cls, position: str | None) -> "Place":
        """The place that a position is the text of."""
        if position is None:
            return cls(tables={})
        if position == ANEW:
            return cls(tables={}, again=True)
        return from_json(position, cls) if position[:1] == "{" else cls(position)

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()
