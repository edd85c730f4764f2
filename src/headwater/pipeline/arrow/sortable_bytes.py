"""Sortable bytes: values as bytes whose order is that of the values, whole columns at a time.

Several columns are concatenated. Nulls sort before all values, NaN after all numbers, and zeros are equal, as
in Spark.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headwater.pipeline.arrow.row_bytes import concat, fixed, is_text, whole

__all__ = ["orderly"]

END = b"\x00\x00"
"""The end of a text.

A zero inside is followed by ff, so that a text sorts before those that begin with it.
"""


def orderly(columns: Sequence[pa.Array], rows: int, *, descending: bool = False) -> pa.Array:
    """The rows of some columns as bytes that sort like the rows, or in the opposite order."""
    parts: list[Any] = []
    for column in columns:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        flags = whole(valid.astype(np.uint8).reshape(rows, 1))
        if is_text(column.type):
            parts += [flags, _texts(column), END]
        else:
            values = _ordered(column)
            values[~valid] = 0
            parts += [flags, whole(values)]
    sortable = concat(*parts)
    return _opposite(sortable) if descending else sortable


def _texts(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.binary()).fill_null(b"")
    data = texts.buffers()[2]
    if data is None or not (np.frombuffer(data, np.uint8) == 0).any():
        return texts
    return pa.array([text.replace(b"\x00", b"\x00\xff") for text in texts.to_pylist()], pa.binary())


def _ordered(column: pa.Array) -> Any:
    """Values of a fixed width as sortable bytes."""
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


def _opposite(sortable: pa.Array) -> pa.Array:
    """The opposite order: no value is a prefix of another, so that each byte can be inverted."""
    _, bounds, data = sortable.buffers()
    if data is None:
        return sortable
    inverted = pa.py_buffer(~np.frombuffer(data, np.uint8))
    return pa.Array.from_buffers(
        sortable.type, len(sortable), [None, bounds, inverted], offset=sortable.offset
    )
