"""PollingSource: a table of a database without a log, queried at intervals for rows with a greater version.

It does not see deletes, values between two queries, or a row whose version is not greater than one that was
read before, as when a transaction takes its number or time early and commits late. Triggers (``source.py``)
see all of these.
"""

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headwater.address import options
from headwater.capture.envelope import Hole, block, create_event, stamp
from headwater.capture.source import EventContext, Part
from headwater.capture.sqlite.triggers import name as quoted_name
from headwater.capture.sqlite.triggers import shape_of
from headwater.capture.sqlite.values import pieces, row_image
from headwater.errors import CaptureError, UnavailableError, UsageError

__all__ = ["PollingSource"]

RESTART: Final = "snapshot"
"""The position of a capture that takes its snapshot again."""
ROWS_MAX: Final = 2_000
LIFE_S: Final = 0.5
BUSY_S: Final = 10


class PollingSource:
    """The source of one SQLite table with a key and a `version` column that grows with every change.

    Every event has the op ``r`` and the row as it was when it was read, since new and changed rows look the
    same. A position is the version and key of the last row. Rows whose version is null are never seen.
    """

    def __init__(self, name: str, url: str, table: str, version: str, *, every_s: float = 1) -> None:
        if not url.startswith("sqlite:"):
            raise UsageError(
                "polling supports one kind of database", got=url.partition(":")[0], expected="sqlite:PATH"
            )
        options("polling", re.sub(r"^sqlite:(//)?", "sqlite:///", url))
        self._path = Path(url.removeprefix("sqlite:").removeprefix("//"))
        self._table = table
        self._version = version
        self._every_s = every_s
        self.name = name
        self._db: sqlite3.Connection | None = None

    def read(self, position: str | None) -> Iterator[Part]:
        """See `Source.read`; the first rows are a snapshot only if the table does not change then."""
        self.close()
        try:
            yield from self._rows(position)
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"{self._path.name} does not answer", got=str(error)) from error

    def prepare(self) -> list[str]:
        """Checks that the table can be polled; nothing is put into the database."""
        try:
            self._columns(self._open())
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"{self._path.name} does not answer", got=str(error)) from error
        finally:
            self.close()
        return [f"table {self._table} can be polled by {self._version}: nothing is put into the database"]

    def confirm(self, position: str) -> None:
        """The database keeps nothing for the capture."""

    def close(self) -> None:
        """See `Source.close`."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise CaptureError(
                f"there is no database {self._path.name}", hint="create it, or see the capture's path"
            )
        self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        return self._db

    def _rows(self, position: str | None) -> Iterator[Part]:
        db = self._open()
        columns, key = self._columns(db)
        image = row_image(columns, key)
        source = self._block()
        places = [columns.index(self._version), *map(columns.index, key)]
        since = [] if position in {None, RESTART} else json.loads(position or "[]")
        alive = queried = 0.0
        db.text_factory = pieces
        while True:
            rows: list[tuple[Any, ...]] = []
            if time.monotonic() - queried >= self._every_s:
                rows = db.execute(self._query(columns, key, first=not since), since).fetchall()
                queried = 0.0 if len(rows) == ROWS_MAX else time.monotonic()
            if rows:
                now = time.time_ns() // 1_000_000
                context = EventContext(
                    f"{self.name}.{self._table}",
                    source(ms=now, us=now * 1000, ns=now * 1_000_000),
                    stamp(),
                    now,
                )
                since = [_shown(rows[-1][at]) for at in places]
                yield Part([create_event(context, *image(row), "r") for row in rows], json.dumps(since))
                alive = time.monotonic()
            elif time.monotonic() - alive > LIFE_S:
                alive = time.monotonic()
                yield Part([], None)
            else:
                time.sleep(min(self._every_s, LIFE_S) / 10)

    def _columns(self, db: sqlite3.Connection) -> tuple[list[str], list[str]]:
        shape = shape_of(db, self._table)
        columns = [column for column, _ in shape.columns]
        if self._version not in columns:
            raise CaptureError(f"table {self._table} has no column {self._version}", got=", ".join(columns))
        if not shape.key:
            raise CaptureError(
                f"table {self._table} has no primary key", hint="it orders rows of the same version"
            )
        return columns, list(shape.key)

    def _query(self, columns: list[str], key: list[str], *, first: bool) -> str:
        order = ", ".join(quoted_name(column) for column in (self._version, *key))
        condition = f"{quoted_name(self._version)} IS NOT NULL"
        if not first:
            condition = f"({order}) > ({', '.join('?' * (1 + len(key)))})"
        selected = ", ".join(map(quoted_name, columns))
        return (
            f"SELECT {selected} FROM {quoted_name(self._table)} WHERE {condition}"  # noqa: S608  quoted
            f" ORDER BY {order} LIMIT {ROWS_MAX}"
        )

    def _block(self) -> Any:
        return block(
            {
                "version": "headwater",
                "connector": "polling",
                "name": self.name,
                "ts_ms": Hole("ms"),
                "snapshot": "true",
                "db": "main",
                "sequence": None,
                "ts_us": Hole("us"),
                "ts_ns": Hole("ns"),
                "table": self._table,
            }
        )


def _shown(value: Any) -> Any:
    """A value in a position: a text is converted back from a piece."""
    if isinstance(value, bytes):
        raise CaptureError("a version or key of bytes cannot be polled", hint="use a number or a text")
    return value.encode("latin-1").decode() if isinstance(value, str) else value
