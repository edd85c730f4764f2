"""The columns of a feed as fields of an OpenSearch mapping."""

from typing import Any

from headwater.sink.stores.spark_types import SparkType

__all__ = ["field"]

TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "byte",
    "SMALLINT": "short",
    "INT": "integer",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DECIMAL": "double",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "date",
    "TIMESTAMP_NTZ": "date",
}
KEYWORD_BYTES = 8_191
"""A longer text can only be found by its words, not as a whole."""


def field(column: SparkType) -> dict[str, Any]:
    """The field of a column. A list has the type of its items."""
    if column.name == "ARRAY":
        return field(column.inner[0])
    if column.name == "STRUCT":
        inner = {name: field(part) for name, part in zip(column.names, column.inner, strict=True)}
        return {"type": "object", "dynamic": False, "properties": inner}
    if column.name == "MAP":
        return {"type": "flat_object"}
    if column.name == "STRING":
        exact = {"type": "keyword", "ignore_above": KEYWORD_BYTES}
        return {"type": "text", "fields": {"keyword": exact}}
    return {"type": TYPES[column.name]}
