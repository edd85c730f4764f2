"""Schema versions of PostgreSQL's tables: types are numbers, and positions LSNs."""

import msgspec

from headwater.capture.postgres.messages import Relation, lsn_text

__all__ = ["ColumnSchema", "TableSchema", "table_schema"]


class ColumnSchema(msgspec.Struct, frozen=True):
    """A column."""

    name: str
    type: int
    """The oid of its type."""
    modifier: int


class TableSchema(msgspec.Struct, frozen=True):
    """A version of a table's schema: the value of a record of ``<name>.schema``."""

    table: str
    version: int
    lsn: str
    """The LSN from which on it is valid."""
    key: tuple[str, ...]
    columns: tuple[ColumnSchema, ...]


def table_schema(relation: Relation, key: tuple[str, ...], lsn: int) -> TableSchema:
    """The schema of a table, without a version yet."""
    columns = tuple(ColumnSchema(column.name, column.oid, column.typmod) for column in relation.columns)
    return TableSchema(f"{relation.schema}.{relation.name}", 0, lsn_text(lsn), key, columns)
