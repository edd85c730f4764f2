"""Deleted keys in the table of a view: kept for as long as a subscriber who was away may resume, and no longer.

    mark     at_ms, partition, offset: how far the table was at a time
    floor    partition, offset: deletions before that offset have been removed; who resumes from there needs a snapshot

The time that counts is the one at which the table took a deletion in, by the marks, not the record's own: that may be any.
"""

import sqlite3
from collections.abc import Mapping

__all__ = ["CREATE", "RESUME_MS", "TOMBSTONES_MAX", "prune"]

RESUME_MS = 3_600_000
"""How long a subscriber may be away and still be told what was deleted meanwhile."""
TOMBSTONES_MAX = 10_000
"""So many are kept for each partition at most: who would have to be told of more gets a snapshot instead (`headwater.view.stream`)."""
PRUNE_ROWS = 50_000
"""So many are removed in one transaction."""
CREATE = """
CREATE INDEX IF NOT EXISTS row_deleted ON row (partition, offset) WHERE value IS NULL;
CREATE TABLE IF NOT EXISTS mark (at_ms INTEGER, partition INTEGER, offset INTEGER NOT NULL, PRIMARY KEY (at_ms, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floor (partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
"""
MARKED = """
SELECT partition, max(offset) FROM mark WHERE at_ms = (SELECT max(at_ms) FROM mark WHERE at_ms <= ?) GROUP BY partition
"""
BEYOND = (
    "SELECT offset + 1 FROM row WHERE value IS NULL AND partition = ? ORDER BY offset DESC LIMIT 1 OFFSET ?"
)
LAST = "SELECT max(offset) + 1 FROM row WHERE value IS NULL AND partition = ? AND offset < ?"
RAISE = "INSERT INTO floor VALUES (?, ?) ON CONFLICT (partition) DO UPDATE SET offset = max(offset, excluded.offset)"
REMOVE = "DELETE FROM row WHERE key IN (SELECT key FROM row WHERE value IS NULL AND partition = ? AND offset < ? LIMIT ?)"


def prune(connection: sqlite3.Connection, offsets: Mapping[int, int], now_ms: int) -> bool:
    """Removes what is no longer needed, inside a transaction of the caller; True when there is more of it.

    Without deleted keys in the table it writes nothing.
    """
    execute = connection.execute
    if execute("SELECT 1 FROM row WHERE value IS NULL LIMIT 1").fetchone() is None:
        return False
    execute("DELETE FROM mark WHERE at_ms > ?", (now_ms,))  # of a clock that was set back
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
