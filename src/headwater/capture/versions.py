"""Versions: the schemas that a table has had, as ``<name>.schema`` keeps them; a version is published once, not at every start."""

from collections.abc import Sequence

import msgspec

from headwater.capture.source import Record
from headwater.decoders import from_json

__all__ = ["ColumnSchema", "TableSchema", "Versions"]


class ColumnSchema(msgspec.Struct, frozen=True):
    """One column."""

    name: str
    type: str
    """The database's own word for it."""
    modifier: int | str | None = None
    """Length in bytes, precision and scale, digits, bits or labels, where the type has any."""
    nullable: bool = True


class TableSchema(msgspec.Struct, frozen=True):
    """The value of a schema record."""

    table: str
    version: int
    position: str
    """Where in the database's log it was first seen."""
    key: tuple[str, ...]
    columns: tuple[ColumnSchema, ...]
    statement: str | None = None
    """The statement that made it, where the log has it."""


class Versions:
    """The newest version of each table; `recall` what was published before, or every run begins to count anew."""

    def __init__(self) -> None:
        self._newest: dict[str, TableSchema] = {}

    def recall(self, value: bytes) -> None:
        """A record of the topic."""
        known = from_json(value, TableSchema)
        self._newest[known.table] = known

    def knows(self, table: str) -> bool:
        """Whether a version of it was published."""
        return table in self._newest

    def newest(self, table: str) -> TableSchema | None:
        """Its newest version."""
        return self._newest.get(table)

    def tables(self, databases: Sequence[str]) -> list[tuple[str, str]]:
        """Database and name of the tables in some databases."""
        split = (table.partition(".") for table in self._newest)
        return [(database, name) for database, _, name in split if database in databases]

    def record(
        self,
        name: str,
        table: str,
        key: Sequence[str],
        columns: Sequence[ColumnSchema],
        *,
        position: str,
        statement: str | None = None,
    ) -> list[Record]:
        """The record of a version that is new; none of one that is known."""
        known = self._newest.get(table)
        if known is not None and (known.key, known.columns) == (tuple(key), tuple(columns)):
            return []
        version = 1 if known is None else known.version + 1
        found = TableSchema(table, version, position, tuple(key), tuple(columns), statement)
        self._newest[table] = found
        return [Record(f"{name}.schema", table.encode(), msgspec.json.encode(found), 0)]
