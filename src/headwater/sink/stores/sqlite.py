"""SQLite as the store of a sink: rows, offsets and claims in one file and one transaction."""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from headwater.address import check_local
from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.errors import SQLITE_FULL, StorageError, UnavailableError, UsageError
from headwater.sink.batch_rows import newest_changes
from headwater.sink.claims import NOTHING, Claims, PartitionState, complete_ms
from headwater.sink.store import Batch, Full, Poison, SinkFeed
from headwater.sink.stores.sql_table import (
    LENIENT,
    STRICT,
    TableLayout,
    check_history,
    check_table,
    row_reader,
    table_layout,
)
from headwater.sink.stores.sqlite_sql import (
    ADOPT,
    AT_MS,
    CLAIM,
    HELD,
    MOVE,
    ORIGIN,
    Statements,
    check_format,
    prepare,
)

__all__ = ["Sqlite", "SqliteStore"]

BUSY_S = 5.0
"""How long a transaction waits for that of another process; SQLite has one writer at a time."""
WAITING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}
RECORD_FAULTS = (sqlite3.DataError, sqlite3.IntegrityError, OverflowError)


class Sqlite:
    """A table in an SQLite file: ``hw.sink.Sqlite("shop.db")``; its name is the source's unless given.

    With ``history`` every version of a row stays, with the time from which and the time until which it was
    valid. ``columns`` are those of a real-time view, which has no result that names them: ``{"country":
    "STRING", "total": "DOUBLE"}``.
    """

    kind = "sqlite"

    def __init__(
        self,
        path: str | Path,
        table: str = "",
        *,
        history: bool = False,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.table = table
        self.history = history
        self.columns = columns

    def place(self, topic: str) -> str:
        return f"{self.path.resolve()}, table {(self.table or topic).lower()}"

    def check(self, feed: SinkFeed) -> None:
        check_local(f"sink {feed.sink}", self.path)
        table_layout(feed)
        check_table(feed, self.table or feed.topic)
        if self.history:
            check_history(feed)

    def open(self, feed: SinkFeed) -> "SqliteStore":
        self.check(feed)
        return SqliteStore(self.path, self.table or feed.topic, table_layout(feed), history=self.history)


class SqliteStore:
    """One sink's rows in a file. It belongs to the thread that opened it.

    A process that is suspended inside a transaction holds the file's only lock: its successor waits, and
    logs that.
    """

    def __init__(
        self,
        path: Path,
        table: str,
        layout: TableLayout,
        clock: Clock | None = None,
        *,
        history: bool = False,
    ) -> None:
        self._path = path
        self._history = history
        self._table = table
        self._layout = layout
        self._name = (layout.feed.sink, layout.feed.topic)
        self._clock = clock or SystemClock()
        self._claims = Claims(layout.feed.sink)
        self._begun_ms: dict[int, int] = {}
        self._sql = Statements.of(layout, table, history=history)
        self._decode = _decoder(layout)
        self._connection: sqlite3.Connection | None = None
        self._connect()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        now_ms = self._clock.now_ms()
        with self._transaction() as execute:
            # Here too: another process may have migrated the file since it was opened.
            check_format(execute, self._path)
            rows = {p: execute(CLAIM, (*self._name, p)).fetchone() for p in sorted(partitions)}
        self._begun_ms |= {p: now_ms if offset is None else 0 for p, (offset, _) in rows.items()}
        return self._claims.take({p: _state(offset, claim) for p, (offset, claim) in rows.items()})

    def apply(self, batch: Batch) -> None:
        with self._transaction() as execute:
            stored = {p: _state(offset, claim) for p, offset, claim in execute(HELD, self._name)}
            for partition in batch.upto:
                self._claims.check(partition, stored.get(partition, PartitionState()))
            changes = self._claims.new_changes(batch)
            (self._write_versions if self._history else self._write)(execute, changes)
            times = complete_ms(batch, changes, self._begun_ms, self._clock.now_ms())
            offsets = {p: max(upto, stored[p].offset) for p, upto in batch.upto.items()}
            for partition, offset in offsets.items():
                execute(MOVE, (offset, times[partition], *self._name, partition))
        self._claims.advance(offsets)

    def reset(self) -> None:
        with self._transaction() as execute:
            for statement, is_named in self._sql.reset:
                execute(statement, self._name if is_named else ())

    def origin(self) -> str:
        with self._transaction() as execute:
            row = execute(ORIGIN, self._name).fetchone()
        return str(row[0]) if row else ""

    def adopt(self, origin: str) -> None:
        with self._transaction() as execute:
            execute(ADOPT, (*self._name, origin))

    def at_ms(self) -> Mapping[int, int]:
        with self._transaction() as execute:
            return dict(execute(AT_MS, self._name).fetchall())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self, execute: Callable[..., Any], changes: Sequence[Change]) -> None:
        layout = self._layout
        if layout.feed.append:
            written = [change for change in changes if change.value is not None]
            rows = [(change.partition, change.offset, *self._decode(change)) for change in written]
        else:
            newest_rows = newest_changes(changes).values()
            for row in newest_rows:
                change = row.change
                replaces = row.was_deleted and layout.feed.versioned
                if change.value is None or replaces or layout.has_null_key(change):
                    execute(self._sql.delete, layout.key_values(change))
            written = [row.change for row in newest_rows if row.change.value is not None]
            rows = [self._decode(change) for change in written]
            if layout.feed.versioned:
                rows = [(*row, change.version) for row, change in zip(rows, written, strict=True)]
        try:
            self._connect().executemany(self._sql.upsert, rows)
        except RECORD_FAULTS as error:
            self._blame(execute, written, rows, error)

    def _write_versions(self, execute: Callable[..., Any], changes: Sequence[Change]) -> None:
        """Each change ends the current version of its key and, unless it is a deletion, begins another."""
        for change in changes:
            at = _timestamp(change.timestamp_ms)
            execute(self._sql.end_version, (at, *self._layout.key_values(change)))
            if change.value is not None:
                row = (change.partition, change.offset, *self._decode(change), at)
                try:
                    execute(self._sql.upsert, row)
                except RECORD_FAULTS as error:
                    self._blame(execute, [change], [row], error)

    def _blame(
        self, execute: Callable[..., Any], changes: Sequence[Change], rows: Sequence[Any], error: Exception
    ) -> None:
        """Poison for the first row that SQLite refuses; the transaction is rolled back anyway."""
        for change, row in zip(changes, rows, strict=True):
            try:
                execute(self._sql.upsert, row)
            except RECORD_FAULTS as refusal:
                raise Poison(change.partition, change.offset, f"SQLite: {refusal}") from refusal
        raise error

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., Any]]:
        with self._translated():
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection.execute
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            with self._translated():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                connection = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)
                try:
                    prepare(connection, self._path, self._table, self._layout, history=self._history)
                except BaseException:
                    connection.close()
                    raise
                self._connection = connection
        return self._connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"SQLite file {self._path}", got=str(error)) from error
        except sqlite3.Error as error:
            extended = getattr(error, "sqlite_errorcode", 0)
            code = extended & 0xFF
            if extended in SQLITE_FULL:
                raise Full(f"SQLite file {self._path}", got=str(error)) from error
            if code in WAITING:
                raise UnavailableError(f"SQLite file {self._path}", got=str(error)) from error
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise StorageError(f"SQLite file {self._path}: {error}") from error
            raise UsageError(f"SQLite file {self._path}, table {self._table!r}: {error}") from error


def _state(offset: int | None, claim: int) -> PartitionState:
    return PartitionState(claim, NOTHING if offset is None else offset)


def _timestamp(at_ms: int) -> str:
    """A time in the form that rows have."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _decoder(layout: TableLayout) -> Callable[[Change], tuple[Any, ...]]:
    """A function from a change to the values of its columns. Poison if a value does not fit."""
    strict, lenient = (row_reader(layout.columns, kinds) for kinds in (STRICT, LENIENT))

    def decode(change: Change) -> tuple[Any, ...]:
        text = change.value or "{}"
        try:
            return strict(text)
        except msgspec.MsgspecError:
            try:
                return tuple(map(_plain, lenient(text)))
            except msgspec.MsgspecError as error:
                raise Poison(change.partition, change.offset, _reason(error, layout)) from None

    return decode


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    return float(value) if value in ("Infinity", "-Infinity") else value


def _reason(error: Exception, layout: TableLayout) -> str:
    kinds = ", ".join(f"{column.name} {column.kind}" for column in layout.columns)
    return f"the record does not fit {kinds}: {error}"
