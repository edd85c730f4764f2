"""The schema of a MariaDB table as two witnesses tell it: the map in the binlog and the information schema. Both must say the same."""

from typing import Any, Final

from headwater.capture import binlog
from headwater.capture.binlog import Column, TableMap
from headwater.capture.rowimage import Layout
from headwater.capture.versions import ColumnSchema

__all__ = ["SHAPES", "map_columns", "schema_column"]

NAMES: Final = {
    binlog.TINY: "tinyint",
    binlog.SHORT: "smallint",
    binlog.INT24: "mediumint",
    binlog.LONG: "int",
    binlog.LONGLONG: "bigint",
    binlog.FLOAT: "float",
    binlog.DOUBLE: "double",
    binlog.DECIMAL: "decimal",
    binlog.DATE: "date",
    binlog.TIME: "time",
    binlog.DATETIME: "datetime",
    binlog.TIMESTAMP: "timestamp",
    binlog.YEAR: "year",
    binlog.BIT: "bit",
    binlog.ENUM: "enum",
    binlog.SET: "set",
    binlog.JSON: "json",
    binlog.GEOMETRY: "geometry",
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
    binary = column.collation == 63
    modifier: int | str | None = None
    if column.name in layout.kinds:
        return ColumnSchema(column.name, layout.kinds[column.name], None, column.nullable)
    if column.kind == binlog.BLOB:
        name = (BLOBS if binary else TEXTS)[column.size]
    elif column.kind in {binlog.VARCHAR, binlog.VAR_STRING}:
        name, modifier = "varbinary" if binary else "varchar", column.size
    elif column.kind == binlog.STRING:
        name, modifier = "binary" if binary else "char", column.size
    else:
        name = NAMES[column.kind] + (" unsigned" if column.unsigned else "")
    if column.kind == binlog.DECIMAL:
        modifier = f"{column.size},{column.scale}"
    elif column.kind in {binlog.TIME, binlog.DATETIME, binlog.TIMESTAMP, binlog.BIT}:
        modifier = column.size
    elif column.kind in {binlog.ENUM, binlog.SET}:
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
