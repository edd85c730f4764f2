"""NewestRows: the newest row of each key of some topics, in a SQLite file, which can be rebuilt from the log.

    topics   name, offsets of its partitions up to which `rows` has its records, types of its columns
    rows     topic, key → the row as JSON, compressed

A transaction of SQLite is always open. It has what was published since the last `commit`, in transactions of
the log that may still be aborted. So a process that dies leaves offsets and rows that fit each other, and
nothing that is not in the log.
"""

import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import cramjam
import msgspec

from headwater.decoders import from_json
from headwater.formats import KEPT_ROWS

__all__ = ["FILE", "NewestRows"]

FILE = "rows.db"
VERSION = KEPT_ROWS.newest
"""The tables of an older version are dropped, and rebuilt from the log; a newer version is refused."""
LOCKED_S = 5.0
"""How long a process that was just ended may hold the file."""
TABLES = """
CREATE TABLE IF NOT EXISTS topics
  (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, offsets TEXT, types TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rows
  (topic INTEGER NOT NULL, key BLOB NOT NULL, row BLOB NOT NULL, UNIQUE (topic, key));
"""

logger = logging.getLogger(__name__)


class NewestRows:
    """Rows by topic and key. One thread calls; sqlite3.Error is not translated.

    Without a folder, or if another process holds the file, the rows are in a temporary file.
    """

    def __init__(self, folder: Path | None) -> None:
        self._connection = self._open(None if folder is None else folder / FILE)
        self.dirty = False
        """Whether there are uncommitted changes."""
        self._ids: dict[str, int] = {}
        self._types: dict[str, dict[str, list[int]]] = {}
        self.roll_back()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose rows are kept."""
        return tuple(self._ids)

    def __contains__(self, topic: str) -> bool:
        return topic in self._ids

    def add(self, topic: str) -> None:
        """Keeps the rows of a topic from now on; nothing of the topic was read yet."""
        self._connection.execute("INSERT INTO topics (name, types) VALUES (?, '{}')", (topic,))
        self.commit()
        self._load()

    def offsets(self, topic: str) -> dict[int, int] | None:
        """The offsets up to which the topic was read; None if it was not read."""
        (text,) = self._connection.execute("SELECT offsets FROM topics WHERE name = ?", (topic,)).fetchone()
        return None if text is None else from_json(text, dict[int, int])

    def advance(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Stores the offsets up to which the rows have the topic's records."""
        text = msgspec.json.encode(offsets).decode()
        self._connection.execute("UPDATE topics SET offsets = ? WHERE name = ?", (text, topic))

    def fits(self, topic: str, types: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the rows have these columns with these types; the first type of a column is stored."""
        stored = self._types[topic]
        if new := {name: list(kind) for name, kind in types.items() if name not in stored}:
            stored |= new
            self._save_types(topic)
        return all(stored[name] == list(kind) for name, kind in types.items())

    def row(self, topic: str, key: bytes) -> bytes | None:
        """A row as JSON."""
        query = "SELECT row FROM rows WHERE topic = ? AND key = ?"
        compressed = self._connection.execute(query, (self._ids[topic], key)).fetchone()
        return None if compressed is None else bytes(cramjam.lz4.decompress_block(compressed[0]))

    def put(self, topic: str, key: bytes, row: bytes) -> None:
        self.dirty = True
        self._connection.execute(
            "INSERT INTO rows (topic, key, row) VALUES (?, ?, ?)"
            " ON CONFLICT (topic, key) DO UPDATE SET row = excluded.row",
            (self._ids[topic], key, bytes(cramjam.lz4.compress_block(row))),
        )

    def delete(self, topic: str, key: bytes) -> None:
        self.dirty = True
        self._connection.execute("DELETE FROM rows WHERE topic = ? AND key = ?", (self._ids[topic], key))

    def clear(self, topic: str) -> None:
        """Deletes the rows of a topic and the types of its columns."""
        self.dirty = True
        self._connection.execute("DELETE FROM rows WHERE topic = ?", (self._ids[topic],))
        self._types[topic] = {}
        self._save_types(topic)

    def commit(self) -> None:
        """Commits offsets and rows together."""
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")
        self.dirty = False

    def roll_back(self) -> None:
        """Discards uncommitted changes."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        self.dirty = False
        self._load()

    def close(self) -> None:
        self._connection.close()

    def _save_types(self, topic: str) -> None:
        text = msgspec.json.encode(self._types[topic]).decode()
        self._connection.execute("UPDATE topics SET types = ? WHERE name = ?", (text, topic))

    def _load(self) -> None:
        rows = self._connection.execute("SELECT id, name, types FROM topics").fetchall()
        self._ids = {name: number for number, name, _ in rows}
        self._types = {name: msgspec.json.decode(types) for _, name, types in rows}

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is None:
            return _connect("")
        try:
            return _connect(str(path))
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            logger.warning("%s is held by another process; rows are kept in a temporary file", path)
            return _connect("")
        except sqlite3.DatabaseError as error:
            logger.warning("%s cannot be read (%s); it is rebuilt from the log", path, error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return _connect(str(path))


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        KEPT_ROWS.check(version, f"file {path}")
        if version != VERSION:
            for table in ("topics", "rows"):
                connection.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection
