"""Audit: the comparison of a table with the rows of its topic, by ranges of the key; for all databases.

Rows are compared as they would be published, with the columns that the table has now; a column that is
missing in the topic's row counts as null.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from headwater.access import Log
from headwater.capture.messages import Range
from headwater.capture.reread.incremental import Span
from headwater.capture.state import last_state
from headwater.client.client import Client
from headwater.errors import CaptureError

__all__ = ["Difference", "Report", "Rows", "compare", "fold", "wait"]

RANGE_ROWS = 1_000
WAIT_S = 60.0
POLL_S = 0.2
GHOSTS_MAX = 500
"""How many keys are in one range of a repair."""


class Difference(NamedTuple):
    """A range in which table and topic differ."""

    within: Range
    table_rows: int
    topic_rows: int
    table_sum: str
    topic_sum: str


class Report(NamedTuple):
    """The result of the audit of a table."""

    table: str
    at: str
    """The position in the database's log."""
    rows: int
    ranges: int
    differences: list[Difference]


class Rows(Protocol):
    """The rows of a table as of one position in the database's log."""

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
    """Count and checksum of rows, independent of their order."""

    def __init__(self) -> None:
        self.rows = 0
        self._bits = 0

    def add(self, digest: bytes) -> None:
        self.rows += 1
        self._bits ^= int.from_bytes(digest)

    def __str__(self) -> str:
        return f"{self._bits:032x}"


def wait(name: str, log: Log, point: str, reached: Callable[[str], bool]) -> None:
    """Waits until the capture's position has reached a point, so that the topic has all rows of the table."""
    limit = time.monotonic() + WAIT_S
    while True:
        state = last_state(log, name)
        position = None if state is None else state.position
        if position is not None and reached(position):
            return
        if time.monotonic() > limit:
            raise CaptureError(
                f"capture {name} does not catch up with the database",
                got=position or "nothing committed",
                expected=point,
                hint="does it run, and is it not paused?",
            )
        time.sleep(POLL_S)


def fold(
    log: Log, topic: str, names: Sequence[str], is_after: Callable[[msgspec.Raw], bool]
) -> dict[bytes, bytes]:
    """The rows of the topic as digests by key; each partition is read up to an event that ``is_after``."""
    decoder, digests, complete = _event, dict[bytes, bytes](), set[int]()
    client = Client(log)
    try:
        for message in client.read([topic]):
            key, value = message.key(), message.value()
            if message.partition() in complete:
                continue
            if (
                value is None
            ):  # after a delete it changes nothing; alone it deletes the row for readers by key
                digests.pop(key, None)
                continue
            try:
                event = decoder.decode(value)
                after = is_after(event.source)
            except msgspec.MsgspecError:
                # A record of another writer: readers have it under its key, and it is equal to no row.
                if key is not None:
                    digests[key] = hashlib.blake2b(value, digest_size=16).digest()
                continue
            if after:
                complete.add(message.partition())
            elif key is None:
                pass  # a truncate: its place in one partition says nothing about others; its deletes count
            elif event.after is None:
                digests.pop(key, None)
            else:
                digests[key] = _digest(key, event.after, names)
    finally:
        client.close()
    return digests


def _digest(key: bytes, row: dict[str, Any], names: Sequence[str]) -> bytes:
    values = msgspec.json.encode([row.get(name) for name in names])
    return hashlib.blake2b(key + b"\0" + values, digest_size=16).digest()


def compare(table: str, at: str, rows: Rows, digests: dict[bytes, bytes]) -> Report:
    """Compares the table with the digests of its topic, which it consumes."""
    differences, total, ranges = [], 0, 0
    for within, images in _ranges(rows):
        ranges += 1
        in_table, in_topic = _Sum(), _Sum()
        for key, row in images.items():
            in_table.add(_digest(key, msgspec.json.decode(row.encode("latin-1")), rows.names))
            if (digest := digests.pop(key, None)) is not None:
                in_topic.add(digest)
        total += in_table.rows
        if (in_table.rows, str(in_table)) != (in_topic.rows, str(in_topic)):
            difference = Difference(within, in_table.rows, in_topic.rows, str(in_table), str(in_topic))
            differences.append(difference)
    ghosts = {key.decode(errors="replace"): key for key in digests}
    for start in range(0, len(ghosts), GHOSTS_MAX):
        keys, in_topic = list(ghosts)[start : start + GHOSTS_MAX], _Sum()
        for key_text in keys:
            in_topic.add(digests[ghosts[key_text]])
        within = Range(ghosts=tuple(keys))
        differences.append(Difference(within, 0, len(keys), str(_Sum()), str(in_topic)))
    return Report(table, at, total, ranges, differences)


def _ranges(rows: Rows) -> Iterator[tuple[Range, dict[bytes, str]]]:
    after = None
    while True:
        span = rows.span(Range(after=after), most=RANGE_ROWS)
        if span.last is None:
            return
        yield Range(after=after, upto=span.last), span.rows
        after = span.last
