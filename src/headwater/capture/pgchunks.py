"""Chunks of PostgreSQL's tables (``capture/chunks.py`` has what they are).

Nothing is written to the database. Each chunk is read in a transaction of its own; the place in the server's log behind that reading is
the chunk's high mark. What is left when the stream has come to it goes out with the position of the next chunk.

A transaction is in the server's log a moment before others can see it. A chunk that was read in such a moment, while the stream had
brought the transaction already, would bring back old rows: the numbers of the transactions tell, and it is read again.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headwater.capture import envelope
from headwater.capture.chunks import CHUNK_ROWS, Chunked, Span, Window, told
from headwater.capture.condition import Condition
from headwater.capture.control import Notice, Range
from headwater.capture.envelope import Around
from headwater.capture.ghosts import Ghosts, fields
from headwater.capture.pgcatalog import Catalogue, Published, identifier, string
from headwater.capture.pgchanges import Changes, sequence, source_block
from headwater.capture.pgconnect import PASSING, psycopg
from headwater.capture.pgcopy import copied, unescaped
from headwater.capture.pgoutput import Shape, parse_lsn
from headwater.capture.source import Record
from headwater.errors import CaptureError, HeadwaterError, one_line

__all__ = ["AGAIN_S", "Chunks", "Rows", "Visible"]

SETTLE_S = 1.0
"""As long the first chunk waits for transactions that were under way when the reading began."""
AGAIN_S = 0.02
PAGE_BYTES = 8_192
PAGE_HEADERS = (24, 40)
BEGIN, COMMIT, RELATION, STREAM_COMMIT = b"BCRc"

logger = logging.getLogger(__name__)


class Rows:
    """Reads rows of one table by ranges of its key, as they would be published."""

    def __init__(self, connection: Any, catalogue: Catalogue, table: Published) -> None:
        self._connection = connection
        relation = table.relation
        there = catalogue.describe(relation)
        self.key = there.key
        self.shape = shape = Shape(relation, there.key, there.types)
        self.names = shape.names
        self._at = [shape.names.index(name) for name in there.key]
        self._read = copied(shape.names, shape.kinds, shape.key_columns)("", "")
        only = "" if table.partitioned else "ONLY "
        self._whole = f"{only}{identifier(relation.schema)}.{identifier(relation.name)}"

    def span(self, within: Range, where: str = "", most: int | None = None) -> Span:
        """The first rows of a range."""
        keys = ", ".join(map(identifier, self.key))
        conditions = [f"({Condition(where).sql(self._column, string)})"] if where else []
        for sign, bound in ((">", within.after), ("<=", within.upto)):
            if bound is not None:
                conditions.append(f"({keys}) {sign} ({', '.join(map(string, bound))})")
        query = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query += f" ORDER BY {keys}" + ("" if most is None else f" LIMIT {most}")
        rows, line = self._copied(query)
        return Span(rows, self._texts(line) if rows else None)

    def _column(self, name: str) -> str:
        """A column as a condition names it: PostgreSQL takes a name without quotes for one in small letters."""
        return identifier(name if name in self.names else name.lower())

    def by_key(self, keys: Iterable[Sequence[str]]) -> dict[bytes, str]:
        """The rows that have these keys, given as texts of SQL."""
        names = ", ".join(map(identifier, self.key))
        wanted = dict.fromkeys(f"({', '.join(map(string, key))})" for key in keys)
        return self._copied(f" WHERE ({names}) IN ({', '.join(wanted)})")[0]

    def _copied(self, which: str) -> tuple[dict[bytes, str], str]:
        """Rows by key, and the last line of the copy."""
        query = f"SELECT {', '.join(map(identifier, self.shape.names))} FROM {self._whole}{which}"  # noqa: S608  quoted
        rows: dict[bytes, str] = {}
        data = b""
        with self._connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            for data in copy:
                key, row = self._read(data)
                rows[key or b""] = row.decode("latin-1")
        return rows, str(data, "latin-1")[:-1]

    def _texts(self, line: str) -> tuple[str, ...]:
        fields = line.split("\t")
        return tuple(unescaped(fields[at]).encode("latin-1").decode() for at in self._at)

    def ghosts(self, keys: Iterable[str]) -> Ghosts:
        """Which of these keys, as records have them, the table has not. Asked in a transaction."""
        gone, left = set[str](), 0
        for key in keys:
            there = self._has(key)
            if there is False:
                gone.add(key)
            left += there is None
        return Ghosts(gone, left)

    def _has(self, key: str) -> bool | None:
        """Whether a row has what the key says; None where that cannot be told, or the row is known by another spelling."""
        values = fields(key, self.key)
        if values is None:
            return False
        texts = [_text(value) for value in values]
        encoders = [self.shape.kinds[at].encode for at in self._at]
        for encode, text, value in zip(encoders, texts, values, strict=True):
            if not _published_as(encode, text, value):
                return False if _is_exact(encode) else None
        if any("\0" in text for text in texts):
            return False
        self._connection.execute("SAVEPOINT looked")
        try:
            rows = self.by_key([texts])
        except psycopg.DataError:  # no value of the column's type
            self._connection.execute("ROLLBACK TO SAVEPOINT looked")
            return False
        if key.encode() in rows:
            return True
        same = any(fields(each.decode(), self.key) == values for each in rows)
        return None if same else False


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_exact(encode: Callable[[str], str] | None) -> bool:
    """Whether JSON shows all values of a type as SQL does: what is not written so is none of them."""
    return encode is None or encode is envelope.quoted


def _published_as(encode: Callable[[str], str] | None, text: str, value: object) -> bool:
    """Whether a text of SQL would be published as this value: keys whose JSON is another text cannot be looked up by it."""
    try:
        made = envelope.piece(text) if encode is None else encode(envelope.piece(text))
        return bool(msgspec.json.decode(made.encode("latin-1")) == value)
    except (ValueError, ArithmeticError, IndexError):
        return False


class Visible(NamedTuple):
    """Which transactions a reader sees: pg_current_snapshot()."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Visible":
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def sees(self, number: int) -> bool:
        """Whether that is so for the transaction with these 32 bits of a number."""
        whole = number + (self.xmax - number + (1 << 31) >> 32 << 32)
        return whole < self.xmax and whole not in self.running


class Chunks:
    """The incremental snapshots of one reading of a source. `take` stands before that of Changes; `step` is called between transactions."""

    def __init__(
        self, name: str, database: str, connection: Any, catalogue: Catalogue, changes: Changes
    ) -> None:
        self.pending: tuple[Chunked, ...] = ()
        self.notices: list[Notice] = []
        self._name = name
        self._database = database
        self._connection = connection
        self._catalogue = catalogue
        self._changes = changes
        self._window: Window[int] | None = None
        self._topic = ""
        self._block: Callable[..., str]
        self._seen: set[int] = set()
        self._again = 0.0
        self._began = time.monotonic()
        self._at_start: Visible | None = None

    @property
    def waiting(self) -> bool:
        """Whether there is more to do than the stream alone makes happen."""
        return bool(self.pending)

    def begin(self, pending: tuple[Chunked, ...]) -> Callable[[bytes], Iterator[None] | None]:
        """What takes the stream's messages from here on."""
        self.pending = pending
        return self.take if pending else self._changes.take

    def take(self, data: bytes) -> Iterator[None] | None:
        """See `Changes.take`."""
        changes = self._changes
        if not self.pending:
            return changes.take(data)
        kind = data[25]
        if kind == BEGIN:
            self._seen.add(int.from_bytes(data[42:46]))
        elif kind == STREAM_COMMIT:
            self._seen.add(int.from_bytes(data[26:30]))
        elif kind == RELATION:
            self._window = None  # the table may be another one now
        before = len(changes.records)
        steps = changes.take(data)
        if steps is not None:
            return self._stepped(steps, changes)
        self._drop(changes.records[before:])
        if kind == COMMIT:
            self.step()
        return None

    def _stepped(self, steps: Iterator[None], changes: Changes) -> Iterator[None]:
        for _ in steps:
            self._drop(changes.records)
            yield
        self.step()

    def _drop(self, records: list[Record]) -> None:
        """The stream wins."""
        if self._window is not None:
            self._window.drop(records)

    def step(self) -> None:
        """Reads the next chunk, or hands over the one that the stream has caught up with."""
        changes = self._changes
        if not self.pending or changes.open:
            return
        if self._window is None and time.monotonic() >= self._again:
            try:
                self._read(self.pending[0])
            except psycopg.Error as error:
                if not error.sqlstate or error.sqlstate[:2] in PASSING:
                    raise
                self._end("snapshot failed", one_line(error))
            except CaptureError as error:
                self._end("snapshot failed", str(error))
            except HeadwaterError:
                raise
            except Exception as error:
                logger.exception("capture %s: a snapshot that was asked for has failed", self._name)
                self._end("snapshot failed", f"{type(error).__name__}: {one_line(error)}")
        if self._window is not None and changes.lsn >= self._window.high:
            self._emit(changes, self._window)

    def _read(self, wanted: Chunked) -> None:
        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if not self._settled(connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0]):
                self._again = time.monotonic() + AGAIN_S
                return
            schema, _, name = wanted.table.rpartition(".")
            table = self._catalogue.table(schema, name)
            rows = Rows(connection, self._catalogue, table)
            if not rows.key:
                self._end("snapshot failed", "the table has no key to read it by")
                return
            self._topic = f"{self._name}.{wanted.table}"
            now = wanted.ranges[0]
            bounded = now.upto is not None or bool(now.ghosts)
            most = None if bounded else CHUNK_ROWS
            span = Span({}, None) if now.ghosts else rows.span(now, wanted.where, most)
            ghosts = rows.ghosts(now.ghosts)
        finally:
            connection.execute("COMMIT")
        high = parse_lsn(connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])
        if high % PAGE_BYTES in PAGE_HEADERS:
            high -= high % PAGE_BYTES  # the header of a page is only written with its first record
        more = not bounded and len(span.rows) == CHUNK_ROWS
        if not wanted.begun:
            self._tell("snapshot begun", wanted, wanted.where)
        self._block = source_block(self._name, self._database, schema, name, "incremental")
        behind = wanted.behind(span, more=more, left=ghosts.left)
        self._window = Window(self._topic, span.rows, ghosts.gone, behind, high)

    def _settled(self, snapshot: str) -> bool:
        """Whether a reader who sees this sees every transaction that the stream has brought."""
        visible = Visible.parse(snapshot)
        if self._at_start is None:
            self._at_start = visible
        early = visible.xmin < self._at_start.xmax and time.monotonic() - self._began < SETTLE_S
        self._seen = {number for number in self._seen if not visible.sees(number)}
        return not self._seen and not early

    def _around(self, lsn: int) -> Around:
        now_us = time.time_ns() // 1_000
        source = self._block(
            ms=now_us // 1_000,
            us=now_us,
            ns=now_us * 1_000,
            sequence=sequence(None, lsn),
            xid="null",
            lsn=lsn,
        )
        return Around(self._topic, source, envelope.stamp(), now_us // 1_000)

    def _emit(self, changes: Changes, window: Window[int]) -> None:
        changes.records += window.records(self._around(window.high))
        changes.done = len(changes.records)
        self._window = None
        self.pending = (window.behind, *self.pending[1:])
        if not window.behind.ranges:
            self._end("snapshot finished", window.behind.summary)

    def _end(self, what: str, text: str) -> None:
        ended, *later = self.pending
        self._tell(what, ended, text)
        self.pending = tuple(later)
        self._window = None
        if not later:
            self._seen = set()

    def _tell(self, what: str, about: Chunked, text: str) -> None:
        self.notices.append(told(what, about, text))
