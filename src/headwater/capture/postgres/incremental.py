"""Chunks of PostgreSQL's tables (``capture/reread/incremental.py`` explains them).

Nothing is written to the database. Each chunk is read in a transaction of its own; the position of the
server's log after the reading is the chunk's high mark. When the stream has reached it, the rest of the chunk
is published with the position of the next chunk.

A transaction is in the server's log a moment before others can see it. A chunk that is read in this moment,
after the stream had the transaction, would publish old rows. The transaction numbers show this, and the chunk
is read again.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headwater.capture import envelope
from headwater.capture.messages import Notice, Range
from headwater.capture.postgres.catalogue import Catalogue, PublishedTable, identifier, string
from headwater.capture.postgres.changes import Changes, sequence, source_block
from headwater.capture.postgres.connection import TEMPORARY, psycopg
from headwater.capture.postgres.copy_rows import line_reader, unescape
from headwater.capture.postgres.messages import Shape, parse_lsn
from headwater.capture.reread.condition import Condition
from headwater.capture.reread.incremental import (
    CHUNK_ROWS,
    IncrementalSnapshot,
    Span,
    Window,
    snapshot_notice,
)
from headwater.capture.source import EventContext, Record
from headwater.capture.stray_keys import Ghosts, key_values
from headwater.errors import CaptureError, HeadwaterError, one_line

__all__ = ["AGAIN_S", "Chunks", "Rows", "Visibility"]

SETTLE_S = 1.0
"""How long the first chunk waits for transactions that were running when the reading began."""
AGAIN_S = 0.02
PAGE_BYTES = 8_192
PAGE_HEADERS = (24, 40)
BEGIN, COMMIT, RELATION, STREAM_COMMIT = b"BCRc"

logger = logging.getLogger(__name__)


class Rows:
    """Reads rows of one table by ranges of its key, as they would be published."""

    def __init__(self, connection: Any, catalogue: Catalogue, table: PublishedTable) -> None:
        self._connection = connection
        relation = table.relation
        description = catalogue.describe(relation)
        self.key = description.key
        self.shape = shape = Shape(relation, description.key, description.types)
        self.names = shape.names
        self._at = [shape.names.index(name) for name in description.key]
        self._read = line_reader(shape.names, shape.kinds, shape.key_columns)("", "")
        only = "" if table.partitioned else "ONLY "
        self._table = f"{only}{identifier(relation.schema)}.{identifier(relation.name)}"

    def span(self, within: Range, where: str = "", most: int | None = None) -> Span:
        """The first rows of a range."""
        keys = ", ".join(map(identifier, self.key))
        conditions = [f"({Condition(where).sql(self._column, string)})"] if where else []
        for sign, bound in ((">", within.after), ("<=", within.upto)):
            if bound is not None:
                conditions.append(f"({keys}) {sign} ({', '.join(map(string, bound))})")
        query = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query += f" ORDER BY {keys}" + ("" if most is None else f" LIMIT {most}")
        rows, line = self._copy(query)
        return Span(rows, self._texts(line) if rows else None)

    def _column(self, name: str) -> str:
        """A column that a condition names: PostgreSQL reads a name without quotes as lower case."""
        return identifier(name if name in self.names else name.lower())

    def by_key(self, keys: Iterable[Sequence[str]]) -> dict[bytes, str]:
        """The rows with these keys, given as SQL texts."""
        names = ", ".join(map(identifier, self.key))
        values = dict.fromkeys(f"({', '.join(map(string, key))})" for key in keys)
        return self._copy(f" WHERE ({names}) IN ({', '.join(values)})")[0]

    def _copy(self, selection: str) -> tuple[dict[bytes, str], str]:
        """Rows by key, and the last line of the copy."""
        query = f"SELECT {', '.join(map(identifier, self.shape.names))} FROM {self._table}{selection}"  # noqa: S608  quoted
        rows: dict[bytes, str] = {}
        data = b""
        with self._connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            for data in copy:
                key, row = self._read(data)
                rows[key or b""] = row.decode("latin-1")
        return rows, str(data, "latin-1")[:-1]

    def _texts(self, line: str) -> tuple[str, ...]:
        fields = line.split("\t")
        return tuple(unescape(fields[at]).encode("latin-1").decode() for at in self._at)

    def ghosts(self, keys: Iterable[str]) -> Ghosts:
        """Which of these record keys have no row in the table; called in a transaction."""
        gone, left = set[str](), 0
        for key in keys:
            has_row = self._has(key)
            if has_row is False:
                gone.add(key)
            left += has_row is None
        return Ghosts(gone, left)

    def _has(self, key: str) -> bool | None:
        """Whether the table has a row with this key; None if unknown, or if its key is spelled otherwise."""
        values = key_values(key, self.key)
        if values is None:
            return False
        texts = [_text(value) for value in values]
        encoders = [self.shape.kinds[at].encode for at in self._at]
        for encode, text, value in zip(encoders, texts, values, strict=True):
            if not _is_published_as(encode, text, value):
                return False if _is_exact(encode) else None
        if any("\0" in text for text in texts):
            return False
        self._connection.execute("SAVEPOINT looked")
        try:
            rows = self.by_key([texts])
        except psycopg.DataError:  # not a value of the column's type
            self._connection.execute("ROLLBACK TO SAVEPOINT looked")
            return False
        if key.encode() in rows:
            return True
        same = any(key_values(row_key.decode(), self.key) == values for row_key in rows)
        return None if same else False


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_exact(encode: Callable[[str], str] | None) -> bool:
    """Whether JSON has all values of a type in the form of SQL: another text is not a value of the type."""
    return encode is None or encode is envelope.quote


def _is_published_as(encode: Callable[[str], str] | None, text: str, value: object) -> bool:
    """Whether an SQL text would be published as this value; only then a key can be looked up by the text."""
    try:
        published = envelope.piece(text) if encode is None else encode(envelope.piece(text))
        return bool(msgspec.json.decode(published.encode("latin-1")) == value)
    except (ValueError, ArithmeticError, IndexError):
        return False


class Visibility(NamedTuple):
    """The transactions that a reader sees: pg_current_snapshot()."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Visibility":
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def sees(self, number: int) -> bool:
        """Whether the reader sees a transaction, given by the lower 32 bits of its number."""
        full = number + (self.xmax - number + (1 << 31) >> 32 << 32)
        return full < self.xmax and full not in self.running


class Chunks:
    """The incremental snapshots of one reading.

    `take` wraps that of Changes; `step` is called between transactions.
    """

    def __init__(
        self, name: str, database: str, connection: Any, catalogue: Catalogue, changes: Changes
    ) -> None:
        self.pending: tuple[IncrementalSnapshot, ...] = ()
        self.notices: list[Notice] = []
        self._name = name
        self._database = database
        self._connection = connection
        self._catalogue = catalogue
        self._changes = changes
        self._window: Window[int] | None = None
        self._topic = ""
        self._block: Callable[..., str]
        self._streamed: set[int] = set()
        self._again = 0.0
        self._began = time.monotonic()
        self._at_start: Visibility | None = None

    @property
    def waiting(self) -> bool:
        """Whether there are chunks to read, even if the stream is silent."""
        return bool(self.pending)

    def begin(self, pending: tuple[IncrementalSnapshot, ...]) -> Callable[[bytes], Iterator[None] | None]:
        """The function that takes the messages of the stream."""
        self.pending = pending
        return self.take if pending else self._changes.take

    def take(self, data: bytes) -> Iterator[None] | None:
        """See `Changes.take`."""
        changes = self._changes
        if not self.pending:
            return changes.take(data)
        kind = data[25]
        if kind == BEGIN:
            self._streamed.add(int.from_bytes(data[42:46]))
        elif kind == STREAM_COMMIT:
            self._streamed.add(int.from_bytes(data[26:30]))
        elif kind == RELATION:
            self._window = None  # the table may have changed
        before = len(changes.records)
        steps = changes.take(data)
        if steps is not None:
            return self._steps(steps, changes)
        self._drop(changes.records[before:])
        if kind == COMMIT:
            self.step()
        return None

    def _steps(self, steps: Iterator[None], changes: Changes) -> Iterator[None]:
        for _ in steps:
            self._drop(changes.records)
            yield
        self.step()

    def _drop(self, records: list[Record]) -> None:
        """Removes the rows of these records from the waiting chunk: the stream is newer."""
        if self._window is not None:
            self._window.drop(records)

    def step(self) -> None:
        """Reads the next chunk, or publishes the one whose high mark the stream has reached."""
        changes = self._changes
        if not self.pending or changes.open:
            return
        if self._window is None and time.monotonic() >= self._again:
            try:
                self._read(self.pending[0])
            except psycopg.Error as error:
                if not error.sqlstate or error.sqlstate[:2] in TEMPORARY:
                    raise
                self._end("snapshot failed", one_line(error))
            except CaptureError as error:
                self._end("snapshot failed", str(error))
            except HeadwaterError:
                raise
            except Exception as error:
                logger.exception("capture %s: an incremental snapshot has failed", self._name)
                self._end("snapshot failed", f"{type(error).__name__}: {one_line(error)}")
        if self._window is not None and changes.lsn >= self._window.high:
            self._emit(changes, self._window)

    def _read(self, pending: IncrementalSnapshot) -> None:
        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if not self._settled(connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0]):
                self._again = time.monotonic() + AGAIN_S
                return
            schema, _, name = pending.table.rpartition(".")
            table = self._catalogue.table(schema, name)
            rows = Rows(connection, self._catalogue, table)
            if not rows.key:
                self._end("snapshot failed", "the table has no key to read it by")
                return
            self._topic = f"{self._name}.{pending.table}"
            within = pending.ranges[0]
            bounded = within.upto is not None or bool(within.ghosts)
            most = None if bounded else CHUNK_ROWS
            span = Span({}, None) if within.ghosts else rows.span(within, pending.where, most)
            ghosts = rows.ghosts(within.ghosts)
        finally:
            connection.execute("COMMIT")
        high = parse_lsn(connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])
        if high % PAGE_BYTES in PAGE_HEADERS:
            high -= high % PAGE_BYTES  # the header of a page is only written with its first record
        more = not bounded and len(span.rows) == CHUNK_ROWS
        if not pending.begun:
            self._notify("snapshot begun", pending, pending.where)
        self._block = source_block(self._name, self._database, schema, name, "incremental")
        rest = pending.after(span, more=more, left=ghosts.left)
        self._window = Window(self._topic, span.rows, ghosts.gone, rest, high)

    def _settled(self, snapshot: str) -> bool:
        """Whether a reader with this snapshot sees every transaction that was in the stream."""
        visibility = Visibility.parse(snapshot)
        if self._at_start is None:
            self._at_start = visibility
        early = visibility.xmin < self._at_start.xmax and time.monotonic() - self._began < SETTLE_S
        self._streamed = {number for number in self._streamed if not visibility.sees(number)}
        return not self._streamed and not early

    def _context(self, lsn: int) -> EventContext:
        now_us = time.time_ns() // 1_000
        source = self._block(
            ms=now_us // 1_000,
            us=now_us,
            ns=now_us * 1_000,
            sequence=sequence(None, lsn),
            xid="null",
            lsn=lsn,
        )
        return EventContext(self._topic, source, envelope.stamp(), now_us // 1_000)

    def _emit(self, changes: Changes, window: Window[int]) -> None:
        changes.records += window.records(self._context(window.high))
        changes.done = len(changes.records)
        self._window = None
        self.pending = (window.rest, *self.pending[1:])
        if not window.rest.ranges:
            self._end("snapshot finished", window.rest.summary)

    def _end(self, what: str, text: str) -> None:
        ended, *later = self.pending
        self._notify(what, ended, text)
        self.pending = tuple(later)
        self._window = None
        if not later:
            self._streamed = set()

    def _notify(self, what: str, snapshot: IncrementalSnapshot, text: str) -> None:
        self.notices.append(snapshot_notice(what, snapshot, text))
