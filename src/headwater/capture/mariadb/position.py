"""Place: the position of a capture of MariaDB."""

import msgspec

from headwater.capture.reread.incremental import IncrementalSnapshot
from headwater.decoders import from_json

__all__ = ["RESTART", "Place"]

RESTART = "snapshot"
"""The position of a capture that takes its snapshot again."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: the published transactions, and those that the snapshot of each table includes."""

    gtid: str = ""
    tables: dict[str, str] | None = None
    """By table, the transactions that its snapshot includes; empty for a table that was created later. A
    table that is missing has no rows in the topics yet. None: the position is a set of transactions only, for
    all existing tables."""
    snapshots: tuple[IncrementalSnapshot, ...] = ()
    """Incremental snapshots of tables, and how far they are."""
    stopped: dict[str, str] = {}
    """Tables that cannot be captured further, and why."""
    again: bool = False
    """Whether the topics have older rows: snapshots then begin with a truncate."""

    @classmethod
    def parse(cls, position: str | None) -> "Place":
        """The place from the text of a position."""
        if position is None:
            return cls(tables={})
        if position == RESTART:
            return cls(tables={}, again=True)
        return from_json(position, cls) if position[:1] == "{" else cls(position)

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()
