"""Deleted keys in the table of a view: kept for as long as a subscriber may resume, and no longer.

    mark     at_ms, partition, offset: the position of the table at a time
    floor    partition, offset: deletions before that offset have been removed; a subscriber from before it
             needs a snapshot

Marks give the time at which the table got a deletion. The record's own time may be any.
"""

import sqlite3
from collections.abc import Mapping

__all__ = ["CREATE", "RESUME_MS", "TOMBSTONES_MAX", "prune"]

RESUME_MS = 3_600_000
"""How long a subscriber may be away and still get the deletions since then."""
TOMBSTONES_MAX = 10_000
"""The deleted keys that are kept for each partition; a subscriber that needs more gets a snapshot instead."""
PRUNE_ROWS = 50_000
"""The deleted keys that one transaction removes."""
CREATE = """
CREATE INDEX IF NOT EXISTS row_deleted ON row (partition, offset) WHERE value IS NULL;
CREATE TABLE IF NOT EXISTS mark (
    at_ms INTEGER, partition INTEGER, offset INTEGER NOT NULL, PRIMARY KEY (at_ms, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floor (partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
"""
MARKED = """
SELECT partition, max(offset) FROM mark
WHERE at_ms = (SELECT max(at_ms) FROM mark WHERE at_ms <= ?) GROUP BY partition
"""
BEYOND = (
    "SELECT offset + 1 FROM row WHERE value IS NULL AND partition = ? ORDER BY offset DESC LIMIT 1 OFFSET ?"
)
LAST = "SELECT max(offset) + 1 FROM row WHERE value IS NULL AND partition = ? AND offset < ?"
RAISE = (
    "INSERT INTO floor VALUES (?, ?) "
    "ON CONFLICT (partition) DO UPDATE SET offset = max(offset, excluded.offset)"
)
REMOVE = (
    "DELETE FROM row WHERE key IN "
    "(SELECT key FROM row WHERE value IS NULL AND partition = ? AND offset < ? LIMIT ?)"
)


def prune(connection: sqlite3.Connection, offsets: Mapping[int, int], now_ms: int) -> bool:
    """Removes deleted keys that are no longer needed, in a transaction of the caller. True if there are more.

    It writes nothing if the table has no deleted keys.
    """
    execute = connection.execute
    if execute("SELECT 1 FROM row WHERE value IS NULL LIMIT 1").fetchone() is None:
        return False
    execute("DELETE FROM mark WHERE at_ms > ?", (now_ms,))  # from a clock that was set back
    cut_ms = now_ms - RESUME_MS
    marked = dict(execute(MARKED, (cut_ms,)).fetchall())
    removed = 0
    for partition in offsets:
        (beyond,) = execute(BEYOND, (partition, TOMBSTONES_MAX)).fetchone() or (0,)
        wanted = max(marked.get(partition, 0), beyond)
        (last,) = execute(LAST, (partition, wanted)).fetchone()
        if last is not None and removed < PRUNE_ROWS:
            execute(RAISE, (partition, last))
            removed += execute(REMOVE, (partition, last, PRUNE_ROWS - removed)).rowcount
    if removed < PRUNE_ROWS:
        execute("DELETE FROM mark WHERE at_ms <= ?", (cut_ms,))
    newest = dict(execute(MARKED, (now_ms,)).fetchall())
    if newest != dict(offsets):
        execute("DELETE FROM mark WHERE at_ms = ?", (now_ms,))
        connection.executemany(
            "INSERT INTO mark VALUES (?, ?, ?)", [(now_ms, p, o) for p, o in offsets.items()]
        )
    return removed >= PRUNE_ROWS
