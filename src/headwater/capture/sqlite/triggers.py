"""The triggers that fill a SQLite file's change table; `install` creates them, `remove` drops them.

``_headwater_changes`` has one entry for each changed row: its number, time and operation, the shape of the
row, and its values before (``o0``…) and after (``n0``…). These columns have no type, so each value keeps its
storage type; building JSON in a trigger would cost the writer half as much again. ``_headwater_shapes`` has
the columns of each shape; a trigger writes the number of its shape, so entries from before a change of the
table are still read correctly. ``_headwater_format`` has one row with the format of all these;
``user_version`` belongs to the owner of the file.
"""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.errors import CaptureError
from headwater.formats import CHANGE_TABLE

__all__ = ["CHANGES", "Shape", "install", "last_number", "name", "remove", "shape_of", "shapes"]

CHANGES: Final = "_headwater_changes"
SHAPES: Final = "_headwater_shapes"
FORMAT: Final = "_headwater_format"
NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


class Shape(NamedTuple):
    """The columns of a table at a time, as name and declared type, and the names of its key."""

    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]


def name(text: str) -> str:
    """A name in SQL."""
    return '"' + text.replace('"', '""') + '"'


def shape_of(db: sqlite3.Connection, table: str) -> Shape:
    """A table as it is now."""
    rows = db.execute(f"PRAGMA table_info({name(table)})").fetchall()
    if not rows:
        raise CaptureError(f"there is no table {table}", hint="create it, or leave it out of the capture")
    key = sorted((at, column) for _, column, _, _, _, at in rows if at)
    return Shape(table, tuple((row[1], row[2]) for row in rows), tuple(column for _, column in key))


def shapes(db: sqlite3.Connection) -> dict[int, Shape]:
    """All shapes that entries may have; none if nothing is installed.

    UsageError if the format is newer than ours.
    """
    if _exists(db, FORMAT):
        (version,) = db.execute(f"SELECT max(format) FROM {FORMAT}").fetchone()  # noqa: S608  constant
        CHANGE_TABLE.check(version or 1, f"table {CHANGES}")
    if not _exists(db, SHAPES):
        return {}
    rows = db.execute(f"SELECT id, name, columns, key FROM {SHAPES}")  # noqa: S608  constant
    return {
        number: Shape(table, tuple(map(tuple, json.loads(columns))), tuple(json.loads(key)))
        for number, table, columns, key in rows
    }


def last_number(db: sqlite3.Connection) -> int:
    """The number of the newest entry, deleted ones included."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (CHANGES,)).fetchone()
    return row[0] if row else 0


def install(db: sqlite3.Connection, tables: Sequence[str], *, rows: bool = False) -> list[str]:
    """Creates the triggers of tables that have none or those of another shape; returns these tables.

    With `rows`, the rows of such a table are entered too, as ``r``, since changes without a fitting trigger
    are unknown; before them a ``t`` if it had no triggers or another key. All in one transaction, so that no
    writer comes between.
    """
    if all(_fits(db, table, shapes(db)) for table in tables):
        return []
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(f"CREATE TABLE IF NOT EXISTS {SHAPES}(id INTEGER PRIMARY KEY, name, columns, key)")
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {CHANGES}(number INTEGER PRIMARY KEY AUTOINCREMENT, at, op, shape)"
        )
        db.execute(f"CREATE TABLE IF NOT EXISTS {FORMAT}(format INTEGER PRIMARY KEY)")
        db.execute(f"INSERT OR IGNORE INTO {FORMAT} VALUES (?)", (CHANGE_TABLE.newest,))  # noqa: S608  constant
        installed = shapes(db)
        changed = [table for table in tables if not _fits(db, table, installed)]
        for table in changed:
            shape, before = shape_of(db, table), _captured_shape(db, table, installed)
            number = _install(db, shape)
            if rows:
                _enter_rows(db, shape, number, truncate=before is None or before.key != shape.key)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return changed


def remove(db: sqlite3.Connection) -> None:
    """Drops all triggers and tables of ours, of whatever format, with entries that were not read."""
    db.execute("BEGIN IMMEDIATE")
    for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        if trigger.startswith("_headwater_"):
            db.execute(f"DROP TRIGGER {name(trigger)}")
    for table in (CHANGES, SHAPES, FORMAT):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    db.execute("COMMIT")


def _exists(db: sqlite3.Connection, table: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None


def _triggers(db: sqlite3.Connection, table: str) -> list[str]:
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", (table,))
    return [trigger for (trigger,) in names if trigger.startswith("_headwater_")]


def _captured_shape(db: sqlite3.Connection, table: str, installed: dict[int, Shape]) -> Shape | None:
    """The shape of the triggers that a table has."""
    numbers = [int(trigger.rpartition("_")[2]) for trigger in _triggers(db, table)]
    return installed.get(max(numbers)) if numbers else None


def _fits(db: sqlite3.Connection, table: str, installed: dict[int, Shape]) -> bool:
    """Whether a table's triggers are those of its shape: their names end with the shape's number."""
    triggers = _triggers(db, table)
    numbers = {int(trigger.rpartition("_")[2]) for trigger in triggers}
    return len(triggers) == 3 and len(numbers) == 1 and installed.get(numbers.pop()) == shape_of(db, table)


def _install(db: sqlite3.Connection, shape: Shape) -> int:
    for trigger in _triggers(db, shape.table):
        db.execute(f"DROP TRIGGER {name(trigger)}")
    existing = {row[1] for row in db.execute(f"PRAGMA table_info({CHANGES})")}
    for column in (f"{side}{at}" for at in range(len(shape.columns)) for side in "on"):
        if column not in existing:
            db.execute(f"ALTER TABLE {CHANGES} ADD COLUMN {column}")
    number = db.execute(
        f"INSERT INTO {SHAPES}(name, columns, key) VALUES (?, ?, ?)",  # noqa: S608  constant
        (shape.table, json.dumps(shape.columns), json.dumps(shape.key)),
    ).lastrowid
    assert number is not None  # noqa: S101  an insert has one
    for verb, op, sides in (("INSERT", "c", "n"), ("UPDATE", "u", "on"), ("DELETE", "d", "o")):
        slots = [f"{side}{at}" for at in range(len(shape.columns)) for side in sides]
        values = [
            f"{'old' if side == 'o' else 'new'}.{name(column)}"
            for column, _ in shape.columns
            for side in sides
        ]
        trigger = name(f"_headwater_{shape.table}_{verb.lower()}_{number}")
        db.execute(
            f"CREATE TRIGGER {trigger} AFTER {verb} ON {name(shape.table)}"  # noqa: S608  quoted
            f" BEGIN INSERT INTO {CHANGES}(at, op, shape, {', '.join(slots)})"
            f" VALUES ({NOW}, '{op}', {number}, {', '.join(values)}); END"
        )
    return number


def _enter_rows(db: sqlite3.Connection, shape: Shape, number: int, *, truncate: bool) -> None:
    if truncate:
        db.execute(f"INSERT INTO {CHANGES}(at, op, shape) VALUES ({NOW}, 't', {number})")  # noqa: S608  a number
    slots = ", ".join(f"n{at}" for at in range(len(shape.columns)))
    columns = ", ".join(name(column) for column, _ in shape.columns)
    db.execute(
        f"INSERT INTO {CHANGES}(at, op, shape, {slots})"  # noqa: S608  quoted
        f" SELECT {NOW}, 'r', {number}, {columns} FROM {name(shape.table)}"
    )
