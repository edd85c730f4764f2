"""Values: rows of a view from their wire form back to Python values, by the schema that Spark gives them."""

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

from headwater.compare import Row

__all__ = ["python", "sort_key"]

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
    """A value as a test writes it: moments with their zone, decimals, bytes; a struct is a dict."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: python(field.dataType, value.get(field.name)) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [python(kind.elementType, item) for item in value]
    if isinstance(kind, MapType):
        return {python(kind.keyType, key): python(kind.valueType, item) for key, item in value.items()}
    made = next((make for scalar, make in SCALARS if isinstance(kind, scalar)), None)
    return value if made is None else made(value)


def sort_key(row: Row, key: tuple[str, ...]) -> list[tuple[bool, Any]]:
    """By what rows are ordered: the values of their key, a window by its start, null last."""
    values = [row[name]["start"] if isinstance(row[name], dict) else row[name] for name in key]
    return [(value is None, value) for value in values]
