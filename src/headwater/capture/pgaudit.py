"""Audit: whether a table and what its topic has made of it are the same, range by range of the key, as of one place in the server's log.

A temporary slot gives that place and the rows as of it; the topic is read as far as the transactions that those rows show. Rows are
compared as they would be published, column by column of the table as it is now: a column that the topic's row lacks is null.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headwater.access import Log
from headwater.capture.control import Range
from headwater.capture.ledger import last_state
from headwater.capture.pgcatalog import Catalogue
from headwater.capture.pgchunks import Rows, Visible
from headwater.capture.pgconnect import Wire, connect, failures
from headwater.capture.pgoutput import lsn_text, parse_lsn
from headwater.client import Client
from headwater.errors import CaptureError

__all__ = ["Difference", "Report", "audit"]

RANGE_ROWS = 1_000
WAIT_S = 60.0
ASK_S = 0.2
CLOCK_MS = 60_000
"""A commit's time may be that much before the moment when others see it."""
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
    lsn: str
    rows: int
    ranges: int
    differences: list[Difference]


class _Source(msgspec.Struct):
    lsn: int
    ts_ms: int
    txId: int | None = None  # noqa: N815  Debezium's name


class _Event(msgspec.Struct):
    op: str
    source: _Source
    after: dict[str, Any] | None = None


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


def audit(name: str, url: str, table: str, log: Log, *, slot: str, decimals: Any = "precise") -> Report:
    """Compares one table, ``schema.table``. The capture must run: the topic must come as far as the database is."""
    schema, _, short = table.rpartition(".")
    with failures(f"capture {name}"), contextlib.ExitStack() as stack:
        wire = stack.enter_context(contextlib.closing(Wire(url)))
        reader = stack.enter_context(contextlib.closing(connect(url)))
        _, point, exported, *_ = wire.command(
            f"CREATE_REPLICATION_SLOT {slot}_audit TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        )[0]
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
        visible = Visible.parse(reader.execute("SELECT pg_current_snapshot()::text").fetchone()[0])
        begun_ms = int(reader.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()[0])
        catalogue = Catalogue(reader, decimals)
        rows = Rows(catalogue, catalogue.table(schema, short))
        if not rows.key:
            raise CaptureError(
                f"table {table} has no key to compare it by", hint="name another one by --table"
            )
        _wait(name, log, parse_lsn(point))
        names = rows.shape.names
        kept = _folded(log, f"{name}.{table}", names, _Until(parse_lsn(point), visible, begun_ms))
        return _compared(table, point, rows, reader, kept)


class _Until(NamedTuple):
    """Where the topic is read to."""

    lsn: int
    visible: Visible
    at_ms: int

    def passed(self, source: _Source) -> bool:
        if source.lsn >= self.lsn:
            return True
        recent = source.ts_ms >= self.at_ms - CLOCK_MS
        return source.txId is not None and recent and not self.visible.sees(source.txId)


def _wait(name: str, log: Log, point: int) -> None:
    limit = time.monotonic() + WAIT_S
    while True:
        state = last_state(log, name)
        at = (
            0
            if state is None or state.position is None
            else parse_lsn(msgspec.json.decode(state.position)["lsn"])
        )
        if at >= point:
            return
        if time.monotonic() > limit:
            raise CaptureError(
                f"capture {name} does not come as far as the database",
                got=lsn_text(at),
                expected=lsn_text(point),
                hint="does it run, and is it not paused?",
            )
        time.sleep(ASK_S)


def _digest(key: bytes, row: dict[str, Any], names: Sequence[str]) -> bytes:
    shown = msgspec.json.encode([row.get(name) for name in names])
    return hashlib.blake2b(key + b"\0" + shown, digest_size=16).digest()


def _folded(log: Log, topic: str, names: Sequence[str], until: _Until) -> dict[bytes, bytes]:
    """The rows that the topic leaves, as digests by key."""
    decoder, kept, over = msgspec.json.Decoder(_Event), dict[bytes, bytes](), set[int]()
    client = Client(log)
    try:
        for message in client.read([topic]):
            key, value = message.key(), message.value()
            if message.partition() in over or value is None:
                continue
            event = decoder.decode(value)
            if until.passed(event.source):
                over.add(message.partition())
            elif event.op == "t":
                kept.clear()
            elif key is not None:
                if event.after is None:
                    kept.pop(key, None)
                else:
                    kept[key] = _digest(key, event.after, names)
    finally:
        client.close()
    return kept


def _compared(table: str, point: str, rows: Rows, reader: Any, kept: dict[bytes, bytes]) -> Report:
    differences, total, ranges = [], 0, 0
    for within, found in _ranges(rows, reader):
        ranges += 1
        ours, theirs = _Sum(), _Sum()
        for key, row in found.items():
            ours.add(_digest(key, msgspec.json.decode(row.encode("latin-1")), rows.shape.names))
            if (digest := kept.pop(key, None)) is not None:
                theirs.add(digest)
        total += ours.rows
        if (ours.rows, str(ours)) != (theirs.rows, str(theirs)):
            differences.append(Difference(within, ours.rows, theirs.rows, str(ours), str(theirs)))
    ghosts = [key.decode() for key in kept]
    for at in range(0, len(ghosts), GHOSTS_MAX):
        some, total_sum = ghosts[at : at + GHOSTS_MAX], _Sum()
        for ghost in some:
            total_sum.add(kept[ghost.encode()])
        within = Range(ghosts=tuple(some))
        differences.append(Difference(within, 0, len(some), str(_Sum()), str(total_sum)))
    return Report(table, point, total, ranges, differences)


def _ranges(rows: Rows, reader: Any) -> Iterator[tuple[Range, dict[bytes, str]]]:
    after = None
    while True:
        span = rows.span(reader, Range(after=after), most=RANGE_ROWS)
        if span.last is None:
            return
        yield Range(after=after, upto=span.last), span.rows
        after = span.last
