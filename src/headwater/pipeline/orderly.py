"""Orderly: values as bytes that are in the order of the values, whole columns at a time; several columns one after the other.

Nulls are before all values, NaN is behind all numbers, and zeros are equal, as in Spark.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headwater.pipeline.rowbytes import concat, fixed, is_text, whole

__all__ = ["orderly"]

END = b"\x00\x00"
"""Behind a text; a zero in it has ff behind it, so that a text is before those that begin with it."""


def orderly(columns: Sequence[pa.Array], rows: int, *, descending: bool = False) -> pa.Array:
    """The rows of some columns as bytes in the order of the rows, or in the opposite one."""
    parts: list[Any] = []
    for column in columns:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        there = whole(valid.astype(np.uint8).reshape(rows, 1))
        if is_text(column.type):
            parts += [there, _texts(column), END]
        else:
            values = _ordered(column)
            values[~valid] = 0
            parts += [there, whole(values)]
    made = concat(*parts)
    return _opposite(made) if descending else made


def _texts(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.binary()).fill_null(b"")
    data = texts.buffers()[2]
    if data is None or not (np.frombuffer(data, np.uint8) == 0).any():
        return texts
    return pa.array([each.replace(b"\x00", b"\x00\xff") for each in texts.to_pylist()], pa.binary())


def _ordered(column: pa.Array) -> Any:
    """Values of a fixed width as bytes in their order."""
    kind = column.type
    if pt.is_decimal(kind):
        words = fixed(column).view("<u8")
        high = words[:, 1] ^ np.uint64(1 << 63)
        return np.stack([high, words[:, 0]], axis=1).astype(">u8").view(np.uint8)
    if pt.is_floating(kind):
        numbers = column.cast(pa.float64())
        bits = (fixed(numbers).view("<f8")[:, 0] + 0.0).view("<i8")
        nan = np.isnan(bits.view("<f8"))
        ordered = np.where(bits < 0, ~bits, bits ^ np.int64(-1 << 63)).view("<u8")
        ordered[nan] = np.uint64((1 << 64) - 1)
        return _big(ordered)
    if pt.is_boolean(kind):
        return fixed(column).copy()
    width = kind.bit_width // 8
    signed = fixed(column).view(f"<i{width}")[:, 0].astype(np.int64)
    return _big((signed ^ np.int64(-1 << 63)).view("<u8"))


def _big(numbers: Any) -> Any:
    return np.ascontiguousarray(numbers.astype(">u8")).view(np.uint8).reshape(len(numbers), 8)


def _opposite(made: pa.Array) -> pa.Array:
    """The opposite order: no such bytes begin with others of their kind, so that each byte may be turned round."""
    _, bounds, data = made.buffers()
    if data is None:
        return made
    turned = pa.py_buffer(~np.frombuffer(data, np.uint8))
    return pa.Array.from_buffers(made.type, len(made), [None, bounds, turned], offset=made.offset)
