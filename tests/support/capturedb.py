"""What the tests of the MariaDB source share: a database of one's own, and reading a source until it has nothing more."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headwater.capture.mariadb.position import Place
from headwater.capture.mariadb.source import MariaDBSource
from headwater.capture.source import Part, Record, Source


class Shop:
    """A database with a connection of its own, and the source that captures it."""

    def __init__(self, server, name: str) -> None:
        self.server, self.name = server, name
        self.connection = server.connect(autocommit=True)
        self.run(f"CREATE OR REPLACE DATABASE {name}", f"USE {name}")

    def run(self, *statements: str) -> Any:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def source(self, *tables: str, **options: Any) -> MariaDBSource:
        return MariaDBSource(
            "lab", self.server.url, [f"{self.name}.{table}" for table in tables or ("*",)], **options
        )

    def position(self) -> str:
        return str(self.run("SELECT @@gtid_binlog_pos")[0][0])

    def read(self, position: str | None, *tables: str, **options: Any) -> list[Part]:
        """All parts after a position, up to where the database is now."""
        end = self.position()
        with reading(self.source(*tables, **options), position) as parts:
            return until(parts, end)


@contextmanager
def reading(source: Source, position: str | None) -> Iterator[Iterator[Part]]:
    try:
        yield source.read(position)
    finally:
        source.close()


def until(parts: Iterator[Part], position: str, seconds: float = 240) -> list[Part]:
    """The parts that say something, up to a position."""
    found, limit = [], time.monotonic() + seconds
    for part in parts:
        if part.records or part.position:
            found.append(part)
        if part.position and gtid(part) == position:
            return found
        assert time.monotonic() < limit, (
            f"{position} was not reached; the last one was {[p.position for p in found][-3:]}"
        )
    raise AssertionError("a source never ends")


def gtid(part: Part) -> str:
    """The transactions before a part's position."""
    return Place.parse(part.position).gtid


def records(parts: list[Part], *, schema: bool = False) -> list[Record]:
    return [r for part in parts for r in part.records if schema or not r.topic.endswith(".schema")]


def changes(parts: list[Part]) -> list[tuple[str, Any, Any]]:
    """Operation, before and after; a tombstone is ``x``."""
    found = []
    for record in records(parts):
        if record.value is None:
            found.append(("x", json.loads(record.key), None))
        else:
            value = json.loads(record.value)
            found.append((value["op"], value["before"], value["after"]))
    return found


def applied(all_records: list[Record]) -> dict[str, dict[bytes, Any]]:
    """The rows that a reader of the topics ends with, by topic and key."""
    tables: dict[str, dict[bytes, Any]] = {}
    for topic, key, value, _ in all_records:
        rows = tables.setdefault(topic, {})
        event = json.loads(value) if value is not None else None
        if event is not None and event.get("op") == "t":
            rows.clear()
        elif event is None or event["after"] is None:
            rows.pop(key, None)
        else:
            rows[key] = event["after"]
    return tables
