"""The numbers of column types in the binlog of MariaDB and MySQL, and how a table map describes each type."""

from typing import Final

TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, OLD_TIMESTAMP, LONGLONG, INT24, DATE, OLD_TIME, OLD_DATETIME, YEAR = (
    range(1, 14)
)
VARCHAR, BIT, TIMESTAMP, DATETIME, TIME = range(15, 20)
JSON, DECIMAL, ENUM, SET = 245, 246, 247, 248
BLOB, VAR_STRING, STRING, GEOMETRY = 252, 253, 254, 255

NUMERIC: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, DECIMAL, FLOAT, DOUBLE})
"""Types for which a table map has a sign bit; on MariaDB also `YEAR`."""
TEXTUAL: Final = frozenset({STRING, VAR_STRING, VARCHAR, BLOB})
"""Types for which a table map lists a collation; on MariaDB also `GEOMETRY`."""
META_BYTES: Final = {
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP, DATETIME, TIME, BLOB, JSON, GEOMETRY), 1),
    **dict.fromkeys((VARCHAR, VAR_STRING, STRING, BIT, DECIMAL, ENUM, SET), 2),
}
"""How many bytes of metadata a table map has for a column of the type."""
BINARY_COLLATION: Final = 63
