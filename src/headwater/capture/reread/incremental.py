"""Incremental snapshots: rows of a captured table read again in chunks by key during the stream.

A chunk waits until the stream has reached the position in the database's log after the chunk's reading. The
rows of every key that the stream changes until then are removed from it, since the stream is newer or equal.
The rest of the chunk is published between two transactions.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from headwater.capture.envelope import create_event
from headwater.capture.messages import Command, Notice, Range
from headwater.capture.reread.condition import Condition
from headwater.capture.source import EventContext, Record
from headwater.capture.stray_keys import delete_key

__all__ = [
    "CHUNK_ROWS",
    "IncrementalSnapshot",
    "Span",
    "Window",
    "incremental_snapshot",
    "snapshot_notice",
]

CHUNK_ROWS = 10_000

Place = TypeVar("Place")


class IncrementalSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """An unfinished incremental snapshot: a part of the capture's position."""

    id: str
    table: str
    where: str = ""
    ranges: tuple[Range, ...] = (Range(),)
    """The ranges that are not read yet."""
    rows: int = 0
    begun: bool = False
    left: int = 0
    """How many ghosts could not be looked up (`Ghosts.left`)."""

    @property
    def summary(self) -> str:
        """The result, for people."""
        left = f"; {self.left} keys that are perhaps not in the table could not be looked up, and remain"
        return f"{self.rows} rows{left if self.left else ''}"

    def after(self, span: "Span", *, more: bool, left: int = 0) -> "IncrementalSnapshot":
        """The snapshot after this span of its first range was read."""
        _, *later = self.ranges
        ranges = (Range(after=span.last), *later) if more else tuple(later)
        rows, left = self.rows + len(span.rows), self.left + left
        return msgspec.structs.replace(self, ranges=ranges, rows=rows, begun=True, left=left)


def incremental_snapshot(command: Command) -> IncrementalSnapshot:
    """The snapshot of a command, before its first chunk; CaptureError if the condition is not valid."""
    if command.where:
        Condition(command.where)
    ranges = (Range(),) if command.ranges is None else command.ranges
    return IncrementalSnapshot(command.id, command.table, command.where, ranges)


def snapshot_notice(what: str, snapshot: IncrementalSnapshot, text: str) -> Notice:
    """A notice about an incremental snapshot."""
    details = {"id": snapshot.id, "rows": snapshot.rows, "incremental": True}
    return Notice(what, time.time_ns() // 1_000_000, snapshot.table, text, details)


class Span(NamedTuple):
    """Rows of a table in key order, as pieces of JSON."""

    rows: dict[bytes, str]
    last: tuple[str, ...] | None
    """The key of the last one, as SQL texts; None without rows."""


class Window(Generic[Place]):
    """A chunk that waits for the stream to reach the position ``high``."""

    def __init__(
        self,
        topic: str,
        rows: dict[bytes, str],
        ghosts: Iterable[str],
        rest: IncrementalSnapshot,
        high: Place,
    ) -> None:
        self.high = high
        self.rest = rest
        """The snapshot after this chunk."""
        self._topic = topic
        self._rows = rows
        self._ghosts = {key.encode() for key in ghosts}

    def drop(self, records: Sequence[Record]) -> None:
        """Removes the rows of these records, which are newer."""
        for topic, key, _, _ in records:
            if topic != self._topic:
                continue
            if key is None:
                self._rows.clear()
                self._ghosts.clear()
            else:
                self._rows.pop(key, None)
                self._ghosts.discard(key)

    def records(self, context: EventContext) -> Iterator[Record]:
        """The remaining rows, and deletes of the remaining ghosts."""
        for key, row in self._rows.items():
            yield create_event(context, key.decode("latin-1"), row, "r")
        for key in self._ghosts:
            yield from delete_key(context, key)
