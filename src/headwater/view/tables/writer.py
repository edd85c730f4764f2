"""SqliteTable: the table of a view in SQLite, with rows and log position in one transaction.

Each view has one file, ``<view>.db``; ``reader.py`` reads it. Its format:

    row       key, value (JSON object, NULL for a deleted key), partition, offset, timestamp (ms), version
    position  partition, offset: the next offset that the table has not seen
    build     one line: build (ms when this table was begun), origin (id of the topic that fills it)
    floor     partition, offset: deletions before it are forgotten (``deleted_keys.py``)
    size      one line: rows (``row_count.py``)

A deleted key stays as a hidden row for an hour, so that a subscriber that resumes gets the deletion.
`user_version` is the format. A file of an older format is filled again from the log; one of a newer format
is refused.
"""

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.errors import SQLITE_FULL, StorageError
from headwater.formats import VIEW_TABLE
from headwater.position import Position
from headwater.sink.batch_rows import NewestChange, newest_changes
from headwater.sink.store import Full
from headwater.view.tables.deleted_keys import CREATE as TOMBSTONES
from headwater.view.tables.deleted_keys import prune
from headwater.view.tables.row_count import CREATE as SIZE

__all__ = ["SqliteTable"]

FORMAT = VIEW_TABLE.newest
TIDY_S = 60.0
"""The time between two searches for deleted keys that can be forgotten."""
CREATE = f"""
CREATE TABLE row (
    key TEXT PRIMARY KEY, value TEXT, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    timestamp INTEGER NOT NULL, version INTEGER
) WITHOUT ROWID;
CREATE INDEX row_by_offset ON row (partition, offset);
CREATE INDEX row_by_time ON row (timestamp) WHERE value IS NOT NULL;
CREATE TABLE position (partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
CREATE TABLE build (build INTEGER NOT NULL, origin TEXT NOT NULL);
INSERT INTO build VALUES (0, '');
PRAGMA user_version = {FORMAT};
"""  # noqa: S608  a number
UPSERT = """
INSERT INTO row (key, value, partition, offset, timestamp, version) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, partition = excluded.partition,
    offset = excluded.offset, timestamp = excluded.timestamp, version = excluded.version
WHERE ? OR excluded.version IS NULL OR row.version IS NULL OR excluded.version > row.version
    OR excluded.version = row.version AND excluded.value IS NOT row.value
"""
MOVE = "INSERT INTO position VALUES (?, ?) ON CONFLICT (partition) DO UPDATE SET offset = excluded.offset"

logger = logging.getLogger(__name__)


class SqliteTable:
    """The one writer of a view's file. It belongs to the thread that opened it.

    `apply` is atomic and durable when it returns, and repeating it with the same records changes nothing.
    It does not lock the file against a second writing process: `Delivery` locks the whole folder.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.topic = path.stem
        self._clock = clock or SystemClock()
        self._tidy_due = 0.0
        with _translated(path):
            self._connection = _open(path)
            read = self._connection.execute
            self._offsets: dict[int, int] = dict(read("SELECT partition, offset FROM position").fetchall())
            self._build, self._origin = _build(self._connection)
        if not self._build:
            self.reset("")

    def apply(self, changes: Sequence[Change], position: Position) -> list[Change]:
        """Writes rows and moves to ``position`` in one transaction. Returns the changes that took effect.

        A change before the stored position was applied earlier and is skipped, as is one with a smaller
        version than the stored row, or with the same row. Of several changes of a key only the newest is
        written.
        """
        new = newest_changes(c for c in changes if c.offset >= self._offsets.get(c.partition, 0))
        moved = {p: o for p, o in position.of(self.topic).items() if o > self._offsets.get(p, 0)}
        if not moved:
            return []
        with self._transaction():
            applied = self._upsert(new.values())
            self._connection.executemany(MOVE, moved.items())
        self._offsets.update(moved)
        return applied

    def position(self) -> Position:
        """The offsets stored with the rows: delivery continues from here."""
        return Position({self.topic: dict(self._offsets)} if self._offsets else {}, self._build)

    @property
    def origin(self) -> str:
        """The id of the topic that fills this table; empty if the log has no topic ids."""
        return self._origin

    def adopt(self, origin: str) -> None:
        """Stores the topic's id for a table that was begun without one."""
        with self._transaction():
            self._connection.execute("UPDATE build SET origin = ?", (origin,))
        self._origin = origin

    def reset(self, origin: str) -> None:
        """Removes all rows and offsets and begins a new build, to be filled from the start of the log."""
        build = max(self._clock.now_ms(), self._build + 1)
        with self._transaction():
            for name in ("row", "position", "mark", "floor"):
                self._connection.execute(f"DELETE FROM {name}")  # noqa: S608  ours
            self._connection.execute("UPDATE build SET build = ?, origin = ?", (build, origin))
        self._offsets, self._build, self._origin = {}, build, origin

    def tidy(self) -> None:
        """Forgets keys that were deleted before subscribers may resume.

        It may be called often: it acts once a minute.
        """
        now = self._clock.monotonic()
        if now < self._tidy_due:
            return
        with self._transaction():
            more = prune(self._connection, self._offsets, self._clock.now_ms())
        self._tidy_due = now if more else now + TIDY_S

    def close(self) -> None:
        self._connection.close()

    def _upsert(self, rows: Iterable[NewestChange]) -> list[Change]:
        execute = self._connection.execute
        applied = []
        for row in rows:
            c = row.change
            values = (c.key, c.value, c.partition, c.offset, c.timestamp_ms, c.version, row.was_deleted)
            if execute(UPSERT, values).rowcount:
                applied.append(c)
        return applied

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _build(connection: sqlite3.Connection) -> tuple[int, str]:
    build, origin = connection.execute("SELECT build, origin FROM build").fetchone()
    return int(build), str(origin)


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # SQLite reports faults better; its other files get the same rights
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    try:
        (stored,) = connection.execute("PRAGMA user_version").fetchone()
        empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        VIEW_TABLE.check(stored, f"view table {path}")
    except BaseException:
        connection.close()
        raise
    if stored != FORMAT and not empty:
        logger.warning("%s has format %d, not %d: filling it again from the log", path, stored, FORMAT)
        connection.close()
        _remove(path)
        return _open(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(f"BEGIN IMMEDIATE; {CREATE if empty else ''} {TOMBSTONES} {SIZE} COMMIT;")
    return connection


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) in SQLITE_FULL:
            raise Full(f"view table {path}", got=str(error), hint="free disk space") from error
        hint = "free disk space, or remove the file: the view is then rebuilt from the log"
        raise StorageError(f"view table {path}: {error}", hint=hint) from error
