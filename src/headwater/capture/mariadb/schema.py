"""The schema of a MariaDB table, from a table map or the information schema, with equal results."""

from typing import Any, Final

from headwater.capture.mariadb.binlog import column_types as types
from headwater.capture.mariadb.binlog.events import Column, TableMap
from headwater.capture.mariadb.binlog.row_reader import Layout
from headwater.capture.reread.schema_versions import ColumnSchema

__all__ = ["SHAPES", "map_columns", "schema_column"]

NAMES: Final = {
    types.TINY: "tinyint",
    types.SHORT: "smallint",
    types.INT24: "mediumint",
    types.LONG: "int",
    types.LONGLONG: "bigint",
    types.FLOAT: "float",
    types.DOUBLE: "double",
    types.DECIMAL: "decimal",
    types.DATE: "date",
    types.TIME: "time",
    types.DATETIME: "datetime",
    types.TIMESTAMP: "timestamp",
    types.YEAR: "year",
    types.BIT: "bit",
    types.ENUM: "enum",
    types.SET: "set",
    types.JSON: "json",
    types.GEOMETRY: "geometry",
}
TEXTS: Final = {1: "tinytext", 2: "text", 3: "mediumtext", 4: "longtext"}
BLOBS: Final = {1: "tinyblob", 2: "blob", 3: "mediumblob", 4: "longblob"}
SHAPES: Final = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)


def map_columns(table: TableMap, layout: Layout) -> tuple[ColumnSchema, ...]:
    """The columns of a table map."""
    return tuple(_column(column, layout) for column in table.columns)


def _column(column: Column, layout: Layout) -> ColumnSchema:
    binary = column.collation == types.BINARY_COLLATION
    modifier: int | str | None = None
    if column.name in layout.kinds:
        return ColumnSchema(column.name, layout.kinds[column.name], None, column.nullable)
    if column.kind == types.BLOB:
        name = (BLOBS if binary else TEXTS)[column.size]
    elif column.kind in {types.VARCHAR, types.VAR_STRING}:
        name, modifier = "varbinary" if binary else "varchar", column.size
    elif column.kind == types.STRING:
        name, modifier = "binary" if binary else "char", column.size
    else:
        name = NAMES[column.kind] + (" unsigned" if column.unsigned else "")
    if column.kind == types.DECIMAL:
        modifier = f"{column.size},{column.scale}"
    elif column.kind in {types.TIME, types.DATETIME, types.TIMESTAMP, types.BIT}:
        modifier = column.size
    elif column.kind in {types.ENUM, types.SET}:
        modifier = ",".join("'" + label.replace("'", "''") + "'" for label in layout.labels(column))
    return ColumnSchema(column.name, name, modifier, column.nullable)


def schema_column(row: dict[str, Any]) -> ColumnSchema:
    """A column of the information schema."""
    kind, whole = row["data_type"].lower(), row["column_type"]
    modifier: int | str | None = None
    if kind in {"char", "varchar", "binary", "varbinary"}:
        modifier = int(row["character_octet_length"])
    elif kind == "decimal":
        modifier = f"{row['numeric_precision']},{row['numeric_scale']}"
    elif kind in {"time", "datetime", "timestamp"}:
        modifier = int(row["datetime_precision"])
    elif kind == "bit":
        modifier = int(row["numeric_precision"])
    elif kind in {"enum", "set"}:
        modifier = whole[whole.index("(") + 1 : -1]
    elif kind in SHAPES:
        kind = "geometry"
    if "unsigned" in whole and kind not in {"enum", "set"}:
        kind += " unsigned"
    return ColumnSchema(row["column_name"], kind, modifier, row["is_nullable"] == "YES")
