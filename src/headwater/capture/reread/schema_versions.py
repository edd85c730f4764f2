"""Versions: the schema versions of captured tables, as ``<name>.schema`` has them; each is published once."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from headwater.capture.messages import Notice
from headwater.capture.source import Record
from headwater.decoders import from_json

__all__ = ["ColumnSchema", "TableSchema", "Versions"]


class Schema(Protocol):
    """A version of a table's schema: a frozen struct, and the value of its record."""

    @property
    def table(self) -> str:
        """The full name of the table."""

    @property
    def version(self) -> int:
        """1 for the first version; 0 before `Versions.record` has numbered it."""

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns; their ``name`` is the name."""


class ColumnSchema(msgspec.Struct, frozen=True):
    """A column of a database whose types have names."""

    name: str
    type: str
    """The database's name for the type."""
    modifier: int | str | None = None
    """Length in bytes, precision and scale, digits, bits or labels, if the type has any."""
    nullable: bool = True


class TableSchema(msgspec.Struct, frozen=True):
    """A version of a table's schema in such a database."""

    table: str
    version: int
    position: str
    """The position in the database's log from which on it is valid."""
    key: tuple[str, ...]
    columns: tuple[ColumnSchema, ...]
    statement: str | None = None
    """The statement that caused it, if the log has it."""


AnySchema = TypeVar("AnySchema", bound=Schema)


class Versions(Generic[AnySchema]):
    """The newest version of each table's schema.

    A change of a published schema is reported to ``notices``.
    """

    def __init__(self, schema: type[AnySchema], notices: list[Notice] | None = None) -> None:
        self._schema = schema
        self._notices = notices
        self._newest: dict[str, AnySchema] = {}

    def recall(self, records: Iterable[bytes]) -> None:
        """Starts from the records of the topic, oldest first, so that versions are not published again."""
        schemas = (from_json(value, self._schema) for value in records)
        self._newest = {schema.table: schema for schema in schemas}

    def knows(self, table: str) -> bool:
        """Whether a version of the table was published, so that its topic may have rows."""
        return table in self._newest

    def newest(self, table: str) -> AnySchema | None:
        """The newest version of a table."""
        return self._newest.get(table)

    def tables(self, databases: Sequence[str]) -> list[tuple[str, str]]:
        """Database and name of the tables in some databases."""
        names = (table.partition(".") for table in self._newest)
        return [(database, name) for database, _, name in names if database in databases]

    def record(self, name: str, schema: AnySchema) -> list[Record]:
        """The record of a schema of the capture ``name``, if it is a new version."""
        newest = self._newest.get(schema.table)
        if newest is not None and (newest.key, newest.columns) == (schema.key, schema.columns):
            return []
        version = 1 if newest is None else newest.version + 1
        self._newest[schema.table] = schema = msgspec.structs.replace(schema, version=version)  # type: ignore[type-var]
        if newest is not None and self._notices is not None:
            self._notices.append(_notice(schema))
        return [Record(f"{name}.schema", schema.table.encode(), msgspec.json.encode(schema), 0)]


def _notice(schema: Schema) -> Notice:
    columns = ", ".join(column.name for column in schema.columns)
    details = {"version": schema.version, "key": list(schema.key)}
    return Notice("schema changed", time.time_ns() // 1_000_000, schema.table, f"columns {columns}", details)
