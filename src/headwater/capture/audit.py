"""Audit: whether a table and what its topic has made of it are the same, range by range of the key; what all databases share.

Rows are compared as they would be published, column by column of the table as it is now: a column that the topic's row lacks is null.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from headwater.access import Log
from headwater.capture.chunks import Span
from headwater.capture.control import Range
from headwater.capture.ledger import last_state
from headwater.client import Client
from headwater.errors import CaptureError

__all__ = ["Difference", "Report", "Rows", "compared", "folded", "wait"]

RANGE_ROWS = 1_000
WAIT_S = 60.0
ASK_S = 0.2
GHOSTS_MAX = 500
"""So many keys go into one range of a repair."""


class Difference(NamedTuple):
    """A range in which table and topic are not the same."""

    within: Range
    table_rows: int
    topic_rows: int
    table_sum: str
    topic_sum: str


class Report(NamedTuple):
    """What an audit of a table has found."""

    table: str
    at: str
    """The place in the database's log."""
    rows: int
    ranges: int
    differences: list[Difference]


class Rows(Protocol):
    """The rows of a table as of one place in the database's log."""

    @property
    def names(self) -> Sequence[str]:
        """Its columns."""

    def span(self, within: Range, *, most: int) -> Span:
        """The first rows of a range."""


class _Event(msgspec.Struct):
    op: str
    source: msgspec.Raw
    after: dict[str, Any] | None = None


_event = msgspec.json.Decoder(_Event)


class _Sum:
    """Count and checksum of rows, in whatever order they come."""

    def __init__(self) -> None:
        self.rows = 0
        self._bits = 0

    def add(self, digest: bytes) -> None:
        self.rows += 1
        self._bits ^= int.from_bytes(digest)

    def __str__(self) -> str:
        return f"{self._bits:032x}"


def wait(name: str, log: Log, point: str, come: Callable[[str], bool]) -> None:
    """Until the capture's position has come to a point: the topic has all that the table has."""
    limit = time.monotonic() + WAIT_S
    while True:
        state = last_state(log, name)
        position = None if state is None else state.position
        if position is not None and come(position):
            return
        if time.monotonic() > limit:
            raise CaptureError(
                f"capture {name} does not come as far as the database",
                got=position or "nothing committed",
                expected=point,
                hint="does it run, and is it not paused?",
            )
        time.sleep(ASK_S)


def folded(
    log: Log, topic: str, names: Sequence[str], passed: Callable[[msgspec.Raw], bool]
) -> dict[bytes, bytes]:
    """The rows that the topic leaves, as digests by key; each partition is read up to the first record whose source has passed the place."""
    decoder, kept, over = _event, dict[bytes, bytes](), set[int]()
    client = Client(log)
    try:
        for message in client.read([topic]):
            key, value = message.key(), message.value()
            if message.partition() in over:
                continue
            if (
                value is None
            ):  # behind a delete it changes nothing; alone it takes the row from who knows rows by their key
                kept.pop(key, None)
                continue
            try:
                event = decoder.decode(value)
                beyond = passed(event.source)
            except (
                msgspec.MsgspecError
            ):  # somebody else's: a reader has it under the key, and no row is like it
                if key is not None:
                    kept[key] = hashlib.blake2b(value, digest_size=16).digest()
                continue
            if beyond:
                over.add(message.partition())
            elif (
                key is not None
            ):  # a truncate is one of many deletes here: its place says nothing of other partitions
                if event.after is None:
                    kept.pop(key, None)
                else:
                    kept[key] = _digest(key, event.after, names)
    finally:
        client.close()
    return kept


def _digest(key: bytes, row: dict[str, Any], names: Sequence[str]) -> bytes:
    shown = msgspec.json.encode([row.get(name) for name in names])
    return hashlib.blake2b(key + b"\0" + shown, digest_size=16).digest()


def compared(table: str, at: str, rows: Rows, kept: dict[bytes, bytes]) -> Report:
    """The table against what its topic leaves."""
    differences, total, ranges = [], 0, 0
    for within, found in _ranges(rows):
        ranges += 1
        ours, theirs = _Sum(), _Sum()
        for key, row in found.items():
            ours.add(_digest(key, msgspec.json.decode(row.encode("latin-1")), rows.names))
            if (digest := kept.pop(key, None)) is not None:
                theirs.add(digest)
        total += ours.rows
        if (ours.rows, str(ours)) != (theirs.rows, str(theirs)):
            differences.append(Difference(within, ours.rows, theirs.rows, str(ours), str(theirs)))
    ghosts = {key.decode(errors="replace"): key for key in kept}
    for start in range(0, len(ghosts), GHOSTS_MAX):
        some, total_sum = list(ghosts)[start : start + GHOSTS_MAX], _Sum()
        for ghost in some:
            total_sum.add(kept[ghosts[ghost]])
        within = Range(ghosts=tuple(some))
        differences.append(Difference(within, 0, len(some), str(_Sum()), str(total_sum)))
    return Report(table, at, total, ranges, differences)


def _ranges(rows: Rows) -> Iterator[tuple[Range, dict[bytes, str]]]:
    after = None
    while True:
        span = rows.span(Range(after=after), most=RANGE_ROWS)
        if span.last is None:
            return
        yield Range(after=after, upto=span.last), span.rows
        after = span.last
