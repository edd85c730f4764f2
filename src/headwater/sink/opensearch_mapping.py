"""The columns of a feed as fields of an OpenSearch mapping."""

from typing import Any

from headwater.sink.columns import Kind

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
"""A longer text is found by its words alone."""


def field(given: Kind) -> dict[str, Any]:
    """A column's type there. A list has the type of what is in it."""
    if given.name == "ARRAY":
        return field(given.inner[0])
    if given.name == "STRUCT":
        inner = {name: field(each) for name, each in zip(given.names, given.inner, strict=True)}
        return {"type": "object", "dynamic": False, "properties": inner}
    if given.name == "MAP":
        return {"type": "flat_object"}
    if given.name == "STRING":
        exact = {"type": "keyword", "ignore_above": KEYWORD_BYTES}
        return {"type": "text", "fields": {"keyword": exact}}
    return {"type": TYPES[given.name]}
