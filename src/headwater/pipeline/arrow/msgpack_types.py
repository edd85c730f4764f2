"""Msgpack types: how values in msgpack are read back as values of an Arrow column."""

import datetime as dt
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.types as pt

__all__ = ["decoder", "python_type"]


def decoder(schema: pa.Schema) -> Any:
    """A function that reads a row back with the types of its columns."""
    types = tuple(python_type(field.type) | None for field in schema)
    return msgspec.msgpack.Decoder(tuple[types]).decode  # type: ignore[valid-type]


_PYTHON = (
    (pt.is_integer, int),
    (pt.is_floating, float),
    (pt.is_boolean, bool),
    (pt.is_decimal, Decimal),
    (pt.is_timestamp, dt.datetime),
    (pt.is_date, dt.date),
    (pt.is_binary, bytes),
    (pt.is_large_binary, bytes),
)


def python_type(kind: pa.DataType) -> Any:
    """The Python type of Arrow's values for a column of this type."""
    if pt.is_list(kind):
        return list[python_type(kind.value_type) | None]  # type: ignore[misc]
    if pt.is_map(kind):
        key, item = python_type(kind.key_type), python_type(kind.item_type) | None
        return list[tuple[key, item]]  # type: ignore[valid-type]
    if pt.is_struct(kind):
        fields = {field.name: python_type(field.type) | None for field in kind}
        return TypedDict("Inner", fields)  # type: ignore[operator]
    return next((python for fits, python in _PYTHON if fits(kind)), str)
