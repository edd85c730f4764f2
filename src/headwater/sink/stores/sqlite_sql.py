"""The SQL of a sink's table in an SQLite file: its statements, and how the tables are created and migrated.

    <table>              the columns of the feed, and what identifies a row as UNIQUE;
                         with history: _partition, _offset, valid_from, valid_to
    headwater_position   sink, topic, partition, next_offset, claim, at_ms
    headwater_origin     sink, topic, origin: the id of the topic that the rows are from
    headwater_format     format: of these tables; user_version belongs to the owner of the file

Timestamps, dates, decimals and nested values are text as in the log; NaN is the text 'NaN', since SQLite
has no such number.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headwater.errors import UsageError
from headwater.formats import SQLITE_SINK
from headwater.sink.stores.sql_table import OFFSET, PARTITION, VERSION, TableLayout, check_rows, quoted

__all__ = ["ADOPT", "AT_MS", "CLAIM", "HELD", "MOVE", "ORIGIN", "Statements", "check_format", "prepare"]

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
"""TEXT after a word keeps SQLite from turning text that looks like a number into a number."""
TABLES = f"""
CREATE TABLE IF NOT EXISTS headwater_position (
    sink TEXT, topic TEXT, partition INTEGER, next_offset INTEGER, claim INTEGER NOT NULL, at_ms INTEGER,
    PRIMARY KEY (sink, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS headwater_origin (
    sink TEXT, topic TEXT, origin TEXT, PRIMARY KEY (sink, topic)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS headwater_format (format INTEGER PRIMARY KEY);
INSERT OR IGNORE INTO headwater_format VALUES ({SQLITE_SINK.newest});
"""
CLAIM = """
INSERT INTO headwater_position (sink, topic, partition, claim) VALUES (?, ?, ?, 1)
ON CONFLICT (sink, topic, partition) DO UPDATE SET claim = claim + 1 RETURNING next_offset, claim
"""
HELD = "SELECT partition, next_offset, claim FROM headwater_position WHERE sink = ? AND topic = ?"
MOVE = (
    "UPDATE headwater_position SET next_offset = ?, at_ms = max(coalesce(at_ms, 0), ?) "
    "WHERE sink = ? AND topic = ? AND partition = ?"
)
ORIGIN = "SELECT origin FROM headwater_origin WHERE sink = ? AND topic = ?"
ADOPT = "INSERT OR REPLACE INTO headwater_origin VALUES (?, ?, ?)"
AT_MS = "SELECT partition, at_ms FROM headwater_position WHERE sink = ? AND topic = ? AND at_ms IS NOT NULL"


class Statements(msgspec.Struct, frozen=True):
    """The statements for the rows of one table."""

    upsert: str
    """Writes a row; with history, a version."""
    delete: str
    end_version: str
    """With history: ends the current version of a key."""
    reset: tuple[tuple[str, bool], ...]
    """The statements of a reset, and whether each takes sink and topic."""

    @classmethod
    def of(cls, layout: TableLayout, table: str, *, history: bool) -> "Statements":
        name = quoted(table)
        same_key = " AND ".join(f"{quoted(column)} IS ?" for column in layout.key)
        # Claims are incremented, not removed: a process that still has one must not write after this.
        forget = "UPDATE headwater_position SET next_offset = NULL, at_ms = NULL, claim = claim + 1"
        return cls(
            upsert=_insert_version(name, layout) if history else _upsert(name, layout),
            delete=f"DELETE FROM {name} WHERE {same_key}",
            end_version=f"UPDATE {name} SET valid_to = ? WHERE valid_to IS NULL AND {same_key}",
            reset=(
                (f"DELETE FROM {name}", False),
                (f"{forget} WHERE sink = ? AND topic = ?", True),
                ("DELETE FROM headwater_origin WHERE sink = ? AND topic = ?", True),
            ),
        )


def check_format(execute: Callable[..., Any], path: Path) -> None:
    """UsageError if a newer version has written the positions in this file."""
    if execute("SELECT 1 FROM sqlite_master WHERE name = 'headwater_format'").fetchone() is not None:
        (stored,) = execute("SELECT max(format) FROM headwater_format").fetchone()
        SQLITE_SINK.check(stored or 1, f"SQLite file {path}")


def prepare(
    connection: sqlite3.Connection, path: Path, table: str, layout: TableLayout, *, history: bool
) -> None:
    """Creates the tables, or adds missing columns.

    A column that the feed no longer has stays, empty in new rows.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    check_format(connection.execute, path)
    connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
    wanted = _columns(layout, history=history)
    connection.execute("BEGIN IMMEDIATE")
    info = connection.execute(f"PRAGMA table_info({quoted(table)})")
    existing = {name: kind for _, name, kind, *_ in info}
    if existing:
        _migrate(connection, table, existing, wanted)
    else:
        _create(connection, table, layout, wanted, history=history)
    connection.execute("COMMIT")


def _columns(layout: TableLayout, *, history: bool) -> dict[str, str]:
    columns = {column.name: TYPES[column.kind] for column in layout.columns}
    if layout.feed.append or history:
        columns = {PARTITION: "INTEGER", OFFSET: "INTEGER"} | columns
    if history:
        columns |= dict.fromkeys(("valid_from", "valid_to"), TYPES["TIMESTAMP"])
    if layout.feed.versioned:
        columns[VERSION] = "BIGINT"
    return columns


def _create(
    connection: sqlite3.Connection, table: str, layout: TableLayout, wanted: dict[str, str], *, history: bool
) -> None:
    columns = [f"{quoted(name)} {kind}" for name, kind in wanted.items()]
    columns += [
        f"{quoted(start)} TEXT GENERATED ALWAYS AS (json_extract({quoted(window)}, '$.start')) STORED"
        for start, window in layout.starts.items()
    ]
    key = ", ".join(map(quoted, layout.key))
    unique = f"{PARTITION}, {OFFSET}" if history else key
    connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)}, UNIQUE ({unique}))")
    if history:
        index = quoted(f"{table}_valid")
        connection.execute(f"CREATE INDEX {index} ON {quoted(table)} ({key}) WHERE valid_to IS NULL")


def _migrate(
    connection: sqlite3.Connection, table: str, existing: dict[str, str], wanted: dict[str, str]
) -> None:
    check_rows(table, existing, wanted)
    for name, kind in wanted.items():
        if name not in existing:
            connection.execute(f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {kind}")
        elif existing[name] != kind:
            raise UsageError(
                f"table {table!r}: column {name!r} has another type",
                got=existing[name],
                expected=kind,
                hint="give the sink another table,"
                " or drop this one and the sink's lines in headwater_position",
            )


def _upsert(table: str, layout: TableLayout) -> str:
    names = [column.name for column in layout.columns]
    if layout.feed.append:
        names = [PARTITION, OFFSET, *names]
    elif layout.feed.versioned:
        names = [*names, VERSION]
    marks = ", ".join("?" * len(names))
    listed = ", ".join(map(quoted, names))
    target = ", ".join(map(quoted, layout.key))
    changed = [quoted(name) for name in names if name not in layout.key]
    insert = f"INSERT INTO {table} ({listed}) VALUES ({marks}) ON CONFLICT ({target})"
    if layout.feed.append or not changed:
        return f"{insert} DO NOTHING"
    update = f"{insert} DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in changed)}"
    if layout.feed.versioned:
        mine = f"{table}.{VERSION}"
        update += f" WHERE excluded.{VERSION} IS NULL OR {mine} IS NULL OR excluded.{VERSION} >= {mine}"
    return update


def _insert_version(table: str, layout: TableLayout) -> str:
    names = [PARTITION, OFFSET, *(column.name for column in layout.columns), "valid_from"]
    listed, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({listed}) VALUES ({marks})"
