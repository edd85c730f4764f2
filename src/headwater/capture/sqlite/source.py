"""SqliteSource: the tables of a SQLite file as change topics, by triggers that fill a change table.

SQLite has no log that other processes can read. Triggers see the writes of every connection and run in the
writer's transaction. Entries are numbered in commit order, since one transaction writes at a time, and a
rollback removes them.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headwater.capture.envelope import (
    Hole,
    block,
    create_event,
    delete_events,
    stamp,
    truncate_event,
    update_events,
)
from headwater.capture.reread.schema_versions import ColumnSchema, TableSchema, Versions
from headwater.capture.source import EventContext, Part, Record
from headwater.capture.sqlite.triggers import (
    CHANGES,
    Shape,
    install,
    last_number,
    name,
    remove,
    shape_of,
    shapes,
)
from headwater.capture.sqlite.values import pieces, row_image
from headwater.errors import CaptureError, UnavailableError, UsageError

__all__ = ["RESTART", "SqliteSource"]

RESTART: Final = "snapshot"
"""The position of a capture that takes its snapshot again."""
ROWS_MAX: Final = 2_000
POLL_S: Final = 0.02
LIFE_S: Final = 0.5
BUSY_S: Final = 10


class SqliteSource:
    """The source of one SQLite file; creating one opens nothing.

    The first `read` installs the triggers. `confirm` deletes entries of the change table, so a file can have
    only one capture. A position is the number of the last entry. One thread calls; any process may write at
    the same time.
    """

    def __init__(self, name: str, path: str | Path, tables: Sequence[str]) -> None:
        if isinstance(tables, str) or not tables:
            raise UsageError("a SQLite source needs the tables to capture", expected="tables=['orders']")
        self._path = Path(path)
        self._tables = tuple(tables)
        self.name = name
        self._versions = Versions(TableSchema)
        self._opened: list[sqlite3.Connection] = []

    def recall(self, records: list[bytes]) -> None:
        """The values of ``<name>.schema``: versions that are published already."""
        self._versions.recall(records)

    def read(self, position: str | None) -> Iterator[Part]:
        """See `Source.read`."""
        with self._border():
            self.close()
            db = self._open()
            if position in {None, RESTART}:
                install(db, self._tables)
                for part in self._snapshot(db, again=position == RESTART):
                    position = part.position
                    yield part
            yield from self._stream(db, int(position or 0))

    def confirm(self, position: str) -> None:
        """Deletes the entries up to there. If writers keep the file locked, a later call deletes them."""
        with self._border(), suppress(sqlite3.OperationalError):
            query = f"DELETE FROM {CHANGES} WHERE number <= ?"  # noqa: S608  constant
            self._opened[0].execute(query, (int(position),))

    def prepare(self, *, begun: bool) -> list[str]:
        """Creates missing triggers, and returns lines for people.

        A capture that has `begun` must have its triggers.
        """
        with self._border():
            db = self._open()
            try:
                if begun and not shapes(db):
                    raise self._untriggered()
                created = [] if begun else install(db, self._tables)
            finally:
                self.close()
        kept = [table for table in self._tables if table not in created]
        lines = {"triggers are created": created, "triggers are there": kept}
        return [f"{what}: {', '.join(tables)}" for what, tables in lines.items() if tables]

    def remove(self) -> None:
        """Removes the triggers and the tables that they write to."""
        with self._border():
            remove(self._open())
            self.close()

    def close(self) -> None:
        """See `Source.close`."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise CaptureError(
                f"there is no database {self._path.name}", hint="create it, or see the capture's path"
            )
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._opened.append(connection)
        return connection

    def _values(self) -> sqlite3.Connection:
        """A connection whose texts are pieces: for rows, not for names."""
        connection = self._open()
        connection.text_factory = pieces
        return connection

    def _snapshot(self, db: sqlite3.Connection, *, again: bool) -> Iterator[Part]:
        """All rows, as of one read transaction and the number of its last change; `again` after truncates."""
        values = self._values()
        values.execute("BEGIN")
        position = last_number(values)
        for table in self._tables:
            shape = shape_of(db, table)
            writer = _Writer(self.name, shape, "true")
            described = writer.version(self._versions, position)
            emptied = (writer.context(position, time.time_ns() // 1_000_000, stamp()),) if again else ()
            yield Part([*described, *map(truncate_event, emptied)], None, emptied)
            columns = ", ".join(name(column) for column, _ in shape.columns)
            cursor = values.execute(f"SELECT {columns} FROM {name(table)}")  # noqa: S608  quoted
            while rows := cursor.fetchmany(ROWS_MAX):
                context = writer.context(position, time.time_ns() // 1_000_000, stamp())
                yield Part([create_event(context, *writer.image(row), "r") for row in rows], None)
        values.execute("COMMIT")
        yield Part([], str(position))

    def _stream(self, db: sqlite3.Connection, position: int) -> Iterator[Part]:
        self._check(db, position)
        values, writers, schema_version, alive = self._values(), dict[int, _Writer](), None, 0.0
        query = f"SELECT * FROM {CHANGES} WHERE number > ? AND number <= ? ORDER BY number LIMIT ?"  # noqa: S608  constant
        while True:
            if db.execute("PRAGMA schema_version").fetchone() != schema_version:
                if not shapes(db):
                    raise self._untriggered()
                install(db, self._tables, rows=True)
                writers = {number: _Writer(self.name, shape, "false") for number, shape in shapes(db).items()}
                schema_version = db.execute("PRAGMA schema_version").fetchone()
            # All visible entries are of committed transactions; a part with a position ends at the newest
            # one.
            end = last_number(db)
            while position < end:
                rows = values.execute(query, (position, end, ROWS_MAX)).fetchall()
                position = rows[-1][0]
                alive = time.monotonic()
                truncated = any(op == "t" for _, _, op, *_ in rows)
                complete = str(position) if position == end else None
                yield Part(self._records(rows, writers), complete, truncated=truncated)
            if time.monotonic() - alive > LIFE_S:
                alive = time.monotonic()
                yield Part([], None)
            time.sleep(POLL_S)

    def _records(self, rows: list[tuple[Any, ...]], writers: dict[int, "_Writer"]) -> list[Record]:
        records: list[Record] = []
        created = stamp()
        for number, at_ms, op, shape, *slots in rows:
            writer = writers[shape]
            if not writer.has_version:
                records += writer.version(self._versions, number)
            context = writer.context(number, at_ms, created)
            count = 2 * len(writer.shape.columns)
            match op:
                case "u":
                    old, before = writer.image(slots[0:count:2])
                    key, after = writer.image(slots[1:count:2])
                    records += update_events(context, key, before, after, old)
                case "d":
                    records += delete_events(context, *writer.image(slots[0:count:2]))
                case "t":
                    records.append(truncate_event(context))
                case _:
                    records.append(create_event(context, *writer.image(slots[1:count:2]), op))
        return records

    def _check(self, db: sqlite3.Connection, position: int) -> None:
        """CaptureError if changes after the position are missing."""
        if not shapes(db):
            raise self._untriggered()
        end = last_number(db)
        query = f"SELECT coalesce(min(number), ?) FROM {CHANGES}"  # noqa: S608  constant
        (first,) = db.execute(query, (end + 1,)).fetchone()
        if position > end:
            raise CaptureError(
                f"{self._path.name} is older than its capture",
                got=f"change {end}",
                expected=f"at least {position}",
                hint="it was restored from a copy: take a new snapshot",
            )
        if first > position + 1:
            raise CaptureError(
                f"changes of {self._path.name} are gone",
                got=f"change {first} as the first",
                expected=str(position + 1),
                hint="another capture has read them: use one capture for each file, and take a new snapshot",
            )

    def _untriggered(self) -> CaptureError:
        return CaptureError(
            f"the triggers of {self._path.name} were removed",
            hint="take a new snapshot: changes since then are unknown",
        )

    @contextmanager
    def _border(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "locked" in text or "busy" in text or "unable to open" in text or "disk I/O" in text:
                raise UnavailableError(f"{self._path.name} does not answer", got=text) from error
            raise CaptureError(f"{self._path.name} cannot be captured", got=text) from error


class _Writer:
    """Converts rows of one shape to the parts of their records."""

    def __init__(self, capture: str, shape: Shape, snapshot: str) -> None:
        self.shape = shape
        self.image = row_image([column for column, _ in shape.columns], shape.key)
        self.has_version = False
        """Whether `version` was called."""
        self._capture = capture
        self._topic = f"{capture}.{shape.table}"
        self._block = block(
            {
                "version": "headwater",
                "connector": "sqlite",
                "name": capture,
                "ts_ms": Hole("ms"),
                "snapshot": snapshot,
                "db": "main",
                "sequence": None,
                "ts_us": Hole("us"),
                "ts_ns": Hole("ns"),
                "table": shape.table,
                "change": Hole("change"),
            }
        )

    def context(self, number: int, at_ms: int, created: str) -> EventContext:
        """The context of a change with this number."""
        source = self._block(ms=at_ms, us=at_ms * 1000, ns=at_ms * 1_000_000, change=number)
        return EventContext(self._topic, source, created, at_ms)

    def version(self, versions: Versions[TableSchema], position: int) -> list[Record]:
        """The record of the shape as a schema version, if it is new."""
        self.has_version = True
        columns = tuple(ColumnSchema(column, kind) for column, kind in self.shape.columns)
        schema = TableSchema(self.shape.table, 0, str(position), self.shape.key, columns)
        return versions.record(self._capture, schema)
