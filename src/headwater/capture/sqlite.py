"""SqliteSource: the tables of a SQLite file as change topics, from a change table that triggers fill (``capture/sqlitetriggers.py``).

SQLite has no log that others may read. Triggers see every connection's writes and stand in the writer's own transaction: entries are
numbered in the order of commits, since one transaction writes at a time, and what is rolled back takes its entries along.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headwater.capture.envelope import Around, Hole, block, created, deleted, stamp, truncated, updated
from headwater.capture.source import Part, Record
from headwater.capture.sqlitetriggers import (
    CHANGES,
    Shape,
    install,
    last_number,
    name,
    remove,
    shape_of,
    shapes,
)
from headwater.capture.sqlitevalue import pieces, row_image
from headwater.capture.versions import ColumnSchema, Versions
from headwater.errors import Away, CaptureError, UsageError

__all__ = ["ANEW", "SqliteSource"]

ANEW: Final = "snapshot"
"""The position of a capture that takes its snapshot again."""
ROWS_MAX: Final = 2_000
POLL_S: Final = 0.02
LIFE_S: Final = 0.5
BUSY_S: Final = 10


class SqliteSource:
    """The source of one SQLite file; making one opens nothing.

    The first `read` installs the triggers; entries of the change table are deleted after `confirm`, so a file has one capture. A
    position is the number of the last entry. One thread calls; any process may write meanwhile.
    """

    def __init__(self, name: str, path: str | Path, tables: Sequence[str]) -> None:
        if isinstance(tables, str) or not tables:
            raise UsageError("a SQLite source needs the tables to capture", expected="tables=['orders']")
        self._path = Path(path)
        self._tables = tuple(tables)
        self.name = name
        self._versions = Versions()
        self._opened: list[sqlite3.Connection] = []

    def recall(self, records: list[bytes]) -> None:
        """The values of ``<name>.schema``: versions that are published already."""
        self._versions = Versions()
        for value in records:
            self._versions.recall(value)

    def read(self, position: str | None) -> Iterator[Part]:
        """See `Source.read`."""
        with self._border():
            self.close()
            db = self._open()
            if position in {None, ANEW}:
                install(db, self._tables)
                for part in self._snapshot(db, again=position == ANEW):
                    position = part.position
                    yield part
            yield from self._stream(db, int(position or 0))

    def confirm(self, position: str) -> None:
        """Entries up to there have done their work. Where writers leave no room for it, they go with the next ones."""
        with self._border(), suppress(sqlite3.OperationalError):
            self._opened[0].execute(f"DELETE FROM {CHANGES} WHERE number <= ?", (int(position),))  # noqa: S608  constant

    def prepare(self, *, begun: bool) -> list[str]:
        """Puts the triggers on the tables, unless they are there; says which. Those of a capture that has `begun` must be there."""
        with self._border():
            db = self._open()
            try:
                if begun and not shapes(db):
                    raise self._untriggered()
                made = [] if begun else install(db, self._tables)
            finally:
                self.close()
        kept = [table for table in self._tables if table not in made]
        lines = {"triggers are made": made, "triggers are there": kept}
        return [f"{what}: {', '.join(tables)}" for what, tables in lines.items() if tables]

    def remove(self) -> None:
        """Takes the triggers and what they have written away."""
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
        """All rows, in one read transaction with the number of the last change that they hold; `again` behind a truncate."""
        values = self._values()
        values.execute("BEGIN")
        position = last_number(values)
        for table in self._tables:
            shape = shape_of(db, table)
            writer = _Writer(self.name, shape, "true")
            described = writer.version(self._versions, position)
            emptied = (writer.around(position, time.time_ns() // 1_000_000, stamp()),) if again else ()
            yield Part([*described, *map(truncated, emptied)], None, emptied)
            columns = ", ".join(name(column) for column, _ in shape.columns)
            cursor = values.execute(f"SELECT {columns} FROM {name(table)}")  # noqa: S608  quoted
            while rows := cursor.fetchmany(ROWS_MAX):
                around = writer.around(position, time.time_ns() // 1_000_000, stamp())
                yield Part([created(around, *writer.image(row), "r") for row in rows], None)
        values.execute("COMMIT")
        yield Part([], str(position))

    def _stream(self, db: sqlite3.Connection, position: int) -> Iterator[Part]:
        self._check(db, position)
        values, writers, known, alive = self._values(), dict[int, _Writer](), None, 0.0
        while True:
            found = db.execute("PRAGMA schema_version").fetchone()
            if found != known:
                if not shapes(db):
                    raise self._untriggered()
                install(db, self._tables, rows=True)
                writers = {number: _Writer(self.name, shape, "false") for number, shape in shapes(db).items()}
                known = db.execute("PRAGMA schema_version").fetchone()
            # All entries up to the newest one that is visible are committed, and will not change: transactions are cut nowhere else.
            end = last_number(db)
            while position < end:
                rows = values.execute(
                    f"SELECT * FROM {CHANGES} WHERE number > ? AND number <= ? ORDER BY number LIMIT ?",  # noqa: S608  constant
                    (position, end, ROWS_MAX),
                ).fetchall()
                position = rows[-1][0]
                alive = time.monotonic()
                emptied = any(op == "t" for _, _, op, *_ in rows)
                whole = str(position) if position == end else None
                yield Part(self._records(rows, writers), whole, truncated=emptied)
            if time.monotonic() - alive > LIFE_S:
                alive = time.monotonic()
                yield Part([], None)
            time.sleep(POLL_S)

    def _records(self, rows: list[tuple[Any, ...]], writers: dict[int, "_Writer"]) -> list[Record]:
        found: list[Record] = []
        made = stamp()
        for number, at_ms, op, shape, *slots in rows:
            writer = writers[shape]
            if not writer.told:
                found += writer.version(self._versions, number)
            around = writer.around(number, at_ms, made)
            count = 2 * len(writer.shape.columns)
            match op:
                case "u":
                    old, before = writer.image(slots[0:count:2])
                    key, after = writer.image(slots[1:count:2])
                    found += updated(around, key, before, after, old)
                case "d":
                    found += deleted(around, *writer.image(slots[0:count:2]))
                case "t":
                    found.append(truncated(around))
                case _:
                    found.append(created(around, *writer.image(slots[1:count:2]), op))
        return found

    def _check(self, db: sqlite3.Connection, position: int) -> None:
        """Whether what comes behind a position is all there."""
        if not shapes(db):
            raise self._untriggered()
        end = last_number(db)
        (first,) = db.execute(f"SELECT coalesce(min(number), ?) FROM {CHANGES}", (end + 1,)).fetchone()  # noqa: S608  constant
        if position > end:
            raise CaptureError(
                f"{self._path.name} is older than its capture",
                got=f"change {end}",
                expected=f"at least {position}",
                hint="it was put back from a copy: take a new snapshot",
            )
        if first > position + 1:
            raise CaptureError(
                f"changes of {self._path.name} are gone",
                got=f"change {first} as the first",
                expected=str(position + 1),
                hint="another capture has read them: give each file one capture, and take a new snapshot",
            )

    def _untriggered(self) -> CaptureError:
        return CaptureError(
            f"the triggers of {self._path.name} were removed",
            hint="take a new snapshot: what was written since is not known",
        )

    @contextmanager
    def _border(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "locked" in text or "busy" in text or "unable to open" in text or "disk I/O" in text:
                raise Away(f"{self._path.name} does not answer", got=text) from error
            raise CaptureError(f"{self._path.name} cannot be captured", got=text) from error


class _Writer:
    """Rows of one shape as records."""

    def __init__(self, capture: str, shape: Shape, snapshot: str) -> None:
        self.shape = shape
        self.image = row_image([column for column, _ in shape.columns], shape.key)
        self.told = False
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

    def around(self, number: int, at_ms: int, made: str) -> Around:
        """What stands around a row."""
        source = self._block(ms=at_ms, us=at_ms * 1000, ns=at_ms * 1_000_000, change=number)
        return Around(self._topic, source, made, at_ms)

    def version(self, versions: Versions, position: int) -> list[Record]:
        """The record of its schema, if that is new."""
        self.told = True
        columns = [ColumnSchema(column, kind) for column, kind in self.shape.columns]
        return versions.record(
            self._capture, self.shape.table, self.shape.key, columns, position=str(position)
        )
