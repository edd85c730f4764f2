"""SQLite as the store of a sink: rows, offsets and claims in one file and one transaction.

    <table>              the columns of the feed, and what identifies a row as UNIQUE; with history: _partition, _offset, valid_from, valid_to
    headwater_position   sink, topic, partition, next_offset, claim, at_ms
    headwater_origin     sink, topic, origin: the id of the topic that the rows come from
    headwater_format     format: of these tables; user_version belongs to the owner of the file

Timestamps, dates, decimals and nested values are text as the log has them; NaN is the text 'NaN', since SQLite has no such number.
"""

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
from headwater.errors import Away, StorageError, UsageError
from headwater.formats import SQLITE_SINK
from headwater.sink.layout import (
    LENIENT,
    OFFSET,
    PARTITION,
    STRICT,
    VERSION,
    Layout,
    check_history,
    check_rows,
    check_table,
    layout,
    quoted,
    reader,
)
from headwater.sink.origin import known_ms
from headwater.sink.rows import check_offset, newest
from headwater.sink.store import Batch, Feed, Full, Poison, Superseded

__all__ = ["Sqlite", "SqliteStore"]

BUSY_S = 5.0
"""How long a transaction waits for another process's; SQLite has one writer at a time."""
TYPES = {
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "TEXT": "TEXT",
    "BOOLEAN": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMP TEXT",
    "DATE": "DATE TEXT",
    "DECIMAL": "DECIMAL TEXT",
    "BINARY": "BLOB",
    "JSON": "JSON TEXT",
}
"""TEXT behind a word keeps SQLite from making numbers of what looks like one."""
TABLES = f"""
CREATE TABLE IF NOT EXISTS headwater_position (
    sink TEXT, topic TEXT, partition INTEGER, next_offset INTEGER, claim INTEGER NOT NULL, at_ms INTEGER,
    PRIMARY KEY (sink, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS headwater_origin (sink TEXT, topic TEXT, origin TEXT, PRIMARY KEY (sink, topic)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS headwater_format (format INTEGER PRIMARY KEY);
INSERT OR IGNORE INTO headwater_format VALUES ({SQLITE_SINK.newest});
"""  # noqa: S608  a number
CLAIM = """
INSERT INTO headwater_position (sink, topic, partition, claim) VALUES (?, ?, ?, 1)
ON CONFLICT (sink, topic, partition) DO UPDATE SET claim = claim + 1 RETURNING next_offset, claim
"""
HELD = "SELECT partition, next_offset, claim FROM headwater_position WHERE sink = ? AND topic = ?"
MOVE = (
    "UPDATE headwater_position SET next_offset = ?, at_ms = max(coalesce(at_ms, 0), ?) "
    "WHERE sink = ? AND topic = ? AND partition = ?"
)
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
"""A disk without room, for the file or for the memory that its readers share."""
WAITING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}


class Sqlite:
    """A table in an SQLite file: ``hw.sink.Sqlite("shop.db")``; its name is the source's unless given.

    With ``history`` every version of a row stays, with the time from which and up to which it held. ``columns`` are those of a real-time view,
    which does not say them: ``{"country": "STRING", "total": "DOUBLE"}``.
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

    def check(self, feed: Feed) -> None:
        check_local(f"sink {feed.sink}", self.path)
        layout(feed)
        check_table(feed, self.table or feed.topic)
        if self.history:
            check_history(feed)

    def open(self, feed: Feed) -> "SqliteStore":
        self.check(feed)
        return SqliteStore(self.path, self.table or feed.topic, layout(feed), history=self.history)


class SqliteStore:
    """One sink's rows in a file. It belongs to the thread that opened it.

    A process that is suspended inside a transaction holds the file's only lock: its successor waits, and says so.
    """

    def __init__(
        self, path: Path, table: str, shape: Layout, clock: Clock | None = None, *, history: bool = False
    ) -> None:
        self._path = path
        self._history = history
        self._table = table
        self._layout = shape
        self._name = (shape.feed.sink, shape.feed.topic)
        self._clock = clock or SystemClock()
        self._claims: dict[int, int] = {}
        self._offsets: dict[int, int | None] = {}
        self._begun: dict[int, int] = {}
        self._upsert = _insert_version(table, shape) if history else _upsert(table, shape)
        conditions = " AND ".join(f"{quoted(name)} IS ?" for name in shape.key)
        self._delete = f"DELETE FROM {quoted(table)} WHERE {conditions}"  # noqa: S608  quoted
        self._close = f"UPDATE {quoted(table)} SET valid_to = ? WHERE valid_to IS NULL AND {conditions}"  # noqa: S608  quoted
        self._decode = _decoder(shape)
        self._connection: sqlite3.Connection | None = None
        self._connect()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        now_ms = self._clock.now_ms()
        with self._transaction() as execute:
            _check_format(
                execute, self._path
            )  # here too: another process may have migrated the file since it was opened
            found = {p: execute(CLAIM, (*self._name, p)).fetchone() for p in sorted(partitions)}
        self._claims |= {p: claim for p, (_, claim) in found.items()}
        self._offsets |= {p: offset for p, (offset, _) in found.items()}
        self._begun |= {p: now_ms if offset is None else 0 for p, (offset, _) in found.items()}
        return {p: offset for p, (offset, _) in found.items() if offset is not None}

    def apply(self, batch: Batch) -> None:
        with self._transaction() as execute:
            held = {p: (offset, claim) for p, offset, claim in execute(HELD, self._name)}
            for partition in batch.upto:
                if partition not in held or held[partition][1] != self._claims.get(partition):
                    raise Superseded(f"{self._path}: partition {partition} of {self._name[1]} was taken over")
                check_offset(self._name[0], partition, held[partition][0], self._offsets[partition])
            fresh = [c for c in batch.changes if c.offset >= (held[c.partition][0] or 0)]
            (self._write_versions if self._history else self._write)(execute, fresh)
            times = known_ms(batch, fresh, self._begun, self._clock.now_ms())
            reached = {p: max(upto, held[p][0] or 0) for p, upto in batch.upto.items()}
            for partition, at in reached.items():
                execute(MOVE, (at, times[partition], *self._name, partition))
        self._offsets |= reached

    def reset(self) -> None:
        with self._transaction() as execute:
            execute(f"DELETE FROM {quoted(self._table)}")  # noqa: S608  quoted
            # Counted on, not removed: whoever still holds a claim must not write behind this.
            forget = "UPDATE headwater_position SET next_offset = NULL, at_ms = NULL, claim = claim + 1"
            execute(f"{forget} WHERE sink = ? AND topic = ?", self._name)
            execute("DELETE FROM headwater_origin WHERE sink = ? AND topic = ?", self._name)

    def origin(self) -> str:
        with self._transaction() as execute:
            query = "SELECT origin FROM headwater_origin WHERE sink = ? AND topic = ?"
            found = execute(query, self._name).fetchone()
        return str(found[0]) if found else ""

    def adopt(self, origin: str) -> None:
        with self._transaction() as execute:
            execute("INSERT OR REPLACE INTO headwater_origin VALUES (?, ?, ?)", (*self._name, origin))

    def at_ms(self) -> Mapping[int, int]:
        with self._transaction() as execute:
            query = "SELECT partition, at_ms FROM headwater_position WHERE sink = ? AND topic = ? AND at_ms IS NOT NULL"
            return dict(execute(query, self._name).fetchall())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self, execute: Callable[..., Any], changes: Sequence[Change]) -> None:
        shape = self._layout
        if shape.feed.append:
            places = [c for c in changes if c.value is not None]
            rows = [(c.partition, c.offset, *self._decode(c)) for c in places]
        else:
            wanted = newest(changes).values()
            for row in wanted:
                change = row.change
                if change.value is None or (row.anew and shape.feed.versioned) or shape.has_null_key(change):
                    execute(self._delete, shape.key_values(change))
            places = [row.change for row in wanted if row.change.value is not None]
            rows = [self._decode(c) for c in places]
            if shape.feed.versioned:
                rows = [(*row, c.version) for row, c in zip(rows, places, strict=True)]
        try:
            self._connect().executemany(self._upsert, rows)
        except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError) as error:
            self._blame(execute, places, rows, error)

    def _write_versions(self, execute: Callable[..., Any], changes: Sequence[Change]) -> None:
        """Each change ends the version that holds, and but for a deletion begins another."""
        for change in changes:
            at = _timestamp(change.timestamp_ms)
            execute(self._close, (at, *self._layout.key_values(change)))
            if change.value is not None:
                row = (change.partition, change.offset, *self._decode(change), at)
                try:
                    execute(self._upsert, row)
                except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError) as error:
                    self._blame(execute, [change], [row], error)

    def _blame(
        self, execute: Callable[..., Any], places: Sequence[Change], rows: Sequence[Any], error: Exception
    ) -> None:
        """Poison for the row that is refused; the transaction is given up anyway."""
        for change, row in zip(places, rows, strict=True):
            try:
                execute(self._upsert, row)
            except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError) as found:
                raise Poison(change.partition, change.offset, f"SQLite: {found}") from found
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
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = FULL")
                    _check_format(connection.execute, self._path)
                    connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
                    _migrate(connection, self._table, self._layout, history=self._history)
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
            raise Away(f"SQLite file {self._path}", got=str(error)) from error
        except sqlite3.Error as error:
            extended = getattr(error, "sqlite_errorcode", 0)
            code = extended & 0xFF
            if extended in FULL:
                raise Full(f"SQLite file {self._path}", got=str(error)) from error
            if code in WAITING:
                raise Away(f"SQLite file {self._path}", got=str(error)) from error
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise StorageError(f"SQLite file {self._path}: {error}") from error
            raise UsageError(f"SQLite file {self._path}, table {self._table!r}: {error}") from error


def _check_format(execute: Callable[..., Any], path: Path) -> None:
    """UsageError when a newer version keeps the positions in this file."""
    if execute("SELECT 1 FROM sqlite_master WHERE name = 'headwater_format'").fetchone() is not None:
        (found,) = execute("SELECT max(format) FROM headwater_format").fetchone()
        SQLITE_SINK.check(found or 1, f"SQLite file {path}")


def _upsert(table: str, shape: Layout) -> str:
    names = [column.name for column in shape.columns]
    if shape.feed.append:
        names = [PARTITION, OFFSET, *names]
    elif shape.feed.versioned:
        names = [*names, VERSION]
    marks = ", ".join("?" * len(names))
    listed = ", ".join(map(quoted, names))
    target = ", ".join(map(quoted, shape.key))
    changed = [quoted(name) for name in names if name not in shape.key]
    insert = f"INSERT INTO {quoted(table)} ({listed}) VALUES ({marks}) ON CONFLICT ({target})"  # noqa: S608  quoted
    if shape.feed.append or not changed:
        return f"{insert} DO NOTHING"
    update = f"{insert} DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in changed)}"
    if shape.feed.versioned:
        mine = f"{quoted(table)}.{VERSION}"
        update += f" WHERE excluded.{VERSION} IS NULL OR {mine} IS NULL OR excluded.{VERSION} >= {mine}"
    return update


def _insert_version(table: str, shape: Layout) -> str:
    names = [PARTITION, OFFSET, *(column.name for column in shape.columns), "valid_from"]
    listed, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
    return f"INSERT INTO {quoted(table)} ({listed}) VALUES ({marks})"  # noqa: S608  quoted


def _timestamp(at_ms: int) -> str:
    """A time as rows have theirs."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _migrate(connection: sqlite3.Connection, table: str, shape: Layout, *, history: bool) -> None:
    """Makes the table, or adds the columns that it lacks; a column that is no longer in the feed stays, and is empty in new rows."""
    wanted = {column.name: TYPES[column.kind] for column in shape.columns}
    if shape.feed.append or history:
        wanted = {PARTITION: "INTEGER", OFFSET: "INTEGER"} | wanted
    if history:
        wanted |= dict.fromkeys(("valid_from", "valid_to"), TYPES["TIMESTAMP"])
    if shape.feed.versioned:
        wanted[VERSION] = "BIGINT"
    connection.execute("BEGIN IMMEDIATE")
    there = {name: kind for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({quoted(table)})")}
    if not there:
        columns = [f"{quoted(name)} {kind}" for name, kind in wanted.items()]
        columns += [
            f"{quoted(start)} TEXT GENERATED ALWAYS AS (json_extract({quoted(window)}, '$.start')) STORED"
            for start, window in shape.starts.items()
        ]
        key = ", ".join(map(quoted, shape.key))
        unique = f"{PARTITION}, {OFFSET}" if history else key
        connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)}, UNIQUE ({unique}))")
        if history:
            index = quoted(f"{table}_valid")
            connection.execute(f"CREATE INDEX {index} ON {quoted(table)} ({key}) WHERE valid_to IS NULL")
    else:
        check_rows(table, there, wanted)
        for name, kind in wanted.items():
            if name not in there:
                connection.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {kind}")
            elif there[name] != kind:
                raise UsageError(
                    f"table {table!r}: column {name!r} has another type",
                    got=there[name],
                    expected=kind,
                    hint="give the sink another table, or drop this one and the sink's lines in headwater_position",
                )
    connection.execute("COMMIT")


def _decoder(shape: Layout) -> Callable[[Change], tuple[Any, ...]]:
    """From a change to the values of its columns. Poison says what does not fit."""
    strict, lenient = (reader(shape.columns, kinds) for kinds in (STRICT, LENIENT))

    def decode(change: Change) -> tuple[Any, ...]:
        text = change.value or "{}"
        try:
            return strict(text)
        except msgspec.MsgspecError:
            try:
                return tuple(map(_plain, lenient(text)))
            except msgspec.MsgspecError as error:
                raise Poison(change.partition, change.offset, _reason(error, shape)) from None

    return decode


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    return float(value) if value in ("Infinity", "-Infinity") else value


def _reason(error: Exception, shape: Layout) -> str:
    kinds = ", ".join(f"{column.name} {column.kind}" for column in shape.columns)
    return f"the record does not fit {kinds}: {error}"
