"""Rows of a view from JSON to Python values, by the schema of the view in Spark."""

import base64
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = ["python", "sort_key"]

Row = dict[str, Any]

SCALARS: list[tuple[type[DataType] | tuple[type[DataType], ...], Callable[[Any], Any]]] = [
    (TimestampType, datetime.fromisoformat),
    (TimestampNTZType, lambda text: datetime.fromisoformat(text).replace(tzinfo=None)),
    (DateType, date.fromisoformat),
    (DecimalType, lambda value: Decimal(str(value))),
    (BinaryType, base64.b64decode),
    ((DoubleType, FloatType), float),
    (IntegralType, int),
]


def python(kind: DataType, value: Any) -> Any:
    """A value as tests write it: datetimes with a time zone, decimals, bytes; a struct is a dict."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: python(field.dataType, value.get(field.name)) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [python(kind.elementType, item) for item in value]
    if isinstance(kind, MapType):
        return {python(kind.keyType, key): python(kind.valueType, item) for key, item in value.items()}
    convert = next((convert for scalar, convert in SCALARS if isinstance(kind, scalar)), None)
    return value if convert is None else convert(value)


def sort_key(row: Row, key: tuple[str, ...]) -> list[tuple[bool, Any]]:
    """The values by which rows are sorted: those of their key, a window by its start, nulls last."""
    values = [row[name]["start"] if isinstance(row[name], dict) else row[name] for name in key]
    return [(value is None, value) for value in values]
