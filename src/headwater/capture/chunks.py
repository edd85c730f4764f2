"""Chunks: rows of a table that is captured already, read again in pieces by key beside the stream; what all databases share.

A chunk waits until the stream has come to the place in the database's log behind which it was read. Every key that the stream brings
meanwhile is taken out of it, since the stream is newer or says the same; what is left goes out between two transactions.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from headwater.capture.condition import Condition
from headwater.capture.control import Command, Notice, Range
from headwater.capture.envelope import Around, created
from headwater.capture.ghosts import removed
from headwater.capture.source import Record

__all__ = ["CHUNK_ROWS", "Chunked", "Span", "Window", "chunked", "told"]

CHUNK_ROWS = 10_000

Place = TypeVar("Place")


class Chunked(msgspec.Struct, frozen=True, omit_defaults=True):
    """An incremental snapshot that is not at its end: a part of the capture's position."""

    id: str
    table: str
    where: str = ""
    ranges: tuple[Range, ...] = (Range(),)
    """What is still to be read."""
    rows: int = 0
    begun: bool = False
    left: int = 0
    """Keys that were to be looked for and could not be (`Ghosts.left`)."""

    @property
    def summary(self) -> str:
        """What it has done, for people."""
        left = f"; {self.left} keys that the table seems not to have could not be looked up, and stay"
        return f"{self.rows} rows{left if self.left else ''}"

    def behind(self, span: "Span", *, more: bool, left: int = 0) -> "Chunked":
        """The snapshot with this span of its first range done."""
        _, *later = self.ranges
        ranges = (Range(after=span.last), *later) if more else tuple(later)
        rows, left = self.rows + len(span.rows), self.left + left
        return msgspec.structs.replace(self, ranges=ranges, rows=rows, begun=True, left=left)


def chunked(command: Command) -> Chunked:
    """What a command asks for, before its first chunk; CaptureError where its condition is none."""
    if command.where:
        Condition(command.where)
    ranges = (Range(),) if command.ranges is None else command.ranges
    return Chunked(command.id, command.table, command.where, ranges)


def told(what: str, about: Chunked, text: str) -> Notice:
    """What is to be told of an incremental snapshot."""
    details = {"id": about.id, "rows": about.rows, "incremental": True}
    return Notice(what, time.time_ns() // 1_000_000, about.table, text, details)


class Span(NamedTuple):
    """Rows of a table in the order of their key, as texts of JSON in pieces."""

    rows: dict[bytes, str]
    last: tuple[str, ...] | None
    """The key of the last one, as texts of SQL; None when there is none."""


class Window(Generic[Place]):
    """A chunk that waits for the stream to come to a place."""

    def __init__(
        self, topic: str, rows: dict[bytes, str], ghosts: Iterable[str], behind: Chunked, high: Place
    ) -> None:
        self.high = high
        self.behind = behind
        """The snapshot with this chunk done."""
        self._topic = topic
        self._rows = rows
        self._ghosts = {each.encode() for each in ghosts}

    def drop(self, records: Sequence[Record]) -> None:
        """The stream wins."""
        for topic, key, _, _ in records:
            if topic != self._topic:
                continue
            if key is None:
                self._rows.clear()
                self._ghosts.clear()
            else:
                self._rows.pop(key, None)
                self._ghosts.discard(key)

    def records(self, around: Around) -> Iterator[Record]:
        """What is left."""
        for key, row in self._rows.items():
            yield created(around, key.decode("latin-1"), row, "r")
        for key in self._ghosts:
            yield from removed(around, key)
