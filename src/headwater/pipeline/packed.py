"""Packed: rows as bytes, and back, whole columns at a time. Equal rows have equal bytes.

    NULLS FIXED LENGTHS TEXTS

NULLS is a bit for each value; FIXED are the values of fixed width, one behind the other; LENGTHS are those of texts and of what else
varies in length, four bytes each; TEXTS are these. The values of a struct are values of the row.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headwater.pipeline.keyed import decoder

__all__ = ["fixed", "is_text", "packed", "unpacked", "whole"]

LENGTH = np.dtype("<u4")
Bytes = Any
"""A numpy array of bytes, a row of it for each row."""


class _Leaf(NamedTuple):
    """One value of a row: its kind, and how many bytes it has; 0 for those that differ."""

    kind: pa.DataType
    width: int


def packed(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """The rows of some columns as bytes."""
    arrays = [leaf for column in columns for leaf in _taken_apart(column)]
    leaves = [_leaf(each.type) for each in arrays]
    valid = np.ones((rows, len(arrays)), bool)
    for n, each in enumerate(arrays):
        if each.null_count:
            valid[:, n] = each.is_valid().to_numpy(zero_copy_only=False)
    parts: list[Bytes] = [np.packbits(valid, axis=1)]
    texts = []
    for n, (each, leaf) in enumerate(zip(arrays, leaves, strict=True)):
        if leaf.width:
            values = fixed(each)
            if each.null_count:
                values[~valid[:, n]] = 0
            parts.append(values)
        else:
            texts.append(_texts(each, leaf.kind))
    parts += [
        pc.binary_length(each).to_numpy().astype(LENGTH).view(np.uint8).reshape(rows, 4) for each in texts
    ]
    block = whole(np.hstack(parts))
    return pc.binary_join_element_wise(block, *texts, b"") if texts else block


def unpacked(rows: pa.Array, skip: Any, kind: pa.Schema) -> pa.Table:
    """The columns of rows that were packed; ``skip``: how many bytes stand before each of them."""
    data, offsets = _buffers(rows)
    starts = offsets[:-1] + skip
    leaves = [leaf for field in kind for leaf in _leaves(field.type)]
    widths = [(len(leaves) + 7) // 8, *(leaf.width for leaf in leaves if leaf.width)]
    varying = sum(not leaf.width for leaf in leaves)
    block = data[starts[:, None] + np.arange(sum(widths) + 4 * varying)]
    valid = np.unpackbits(block[:, : widths[0]], axis=1, count=len(leaves)).astype(bool)
    lengths = np.ascontiguousarray(block[:, sum(widths) :]).view(LENGTH).reshape(len(rows), varying)
    at, place = starts + block.shape[1], widths[0]
    texts, values = iter(range(varying)), []
    for n, leaf in enumerate(leaves):
        if leaf.width:
            found = _fixed_array(np.ascontiguousarray(block[:, place : place + leaf.width]), leaf.kind)
            place += leaf.width
        else:
            end = at + lengths[:, next(texts)]
            found, at = _text_array(rows, at, end, leaf.kind, valid[:, n]), end
        if not valid[:, n].all():
            found = pc.if_else(pa.array(valid[:, n]), found, pa.scalar(None, found.type))
        values.append(found)
    each = iter(values)
    return pa.table([_put_together(field.type, each) for field in kind], schema=kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text, or bytes of any length."""
    return any(fits(kind) for fits in (pt.is_string, pt.is_binary, pt.is_large_string, pt.is_large_binary))


def fixed(values: pa.Array) -> Bytes:
    """Values of a fixed width as their bytes, of which the caller may change a copy; what stands for a null may be anything."""
    values = values.cast(pa.uint8()) if pt.is_boolean(values.type) else values
    width = values.type.bit_width // 8
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros((len(values), width), np.uint8)
    found = np.frombuffer(buffer, np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    return found.reshape(len(values), width).copy()


# ---- values ----------------------------------------------------------------------------------------------


def _leaf(kind: pa.DataType) -> _Leaf:
    if pt.is_boolean(kind):
        return _Leaf(kind, 1)
    try:
        width = kind.bit_width
    except ValueError:
        width = 0
    return _Leaf(kind, width // 8 if pt.is_primitive(kind) or pt.is_decimal(kind) else 0)


def _leaves(kind: pa.DataType) -> list[_Leaf]:
    """The values of a column; that a struct is there is one of its own."""
    if not pt.is_struct(kind):
        return [_leaf(kind)]
    inner = [leaf for number in range(kind.num_fields) for leaf in _leaves(kind.field(number).type)]
    return [_leaf(pa.bool_()), *inner]


def _taken_apart(column: pa.Array) -> list[pa.Array]:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pt.is_struct(column.type):
        return [column]
    return [column.is_valid(), *(leaf for each in column.flatten() for leaf in _taken_apart(each))]


def _put_together(kind: pa.DataType, values: Iterator[pa.Array]) -> pa.Array:
    if not pt.is_struct(kind):
        return next(values)
    there = next(values)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    inner = [_put_together(field.type, values) for field in fields]
    return pa.StructArray.from_arrays(inner, fields=fields, mask=pc.invert(there))


def _texts(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_text(kind):
        return values.cast(pa.binary()).fill_null(b"")
    encode = msgspec.msgpack.encode
    return pa.array([b"" if each is None else encode(each) for each in values.to_pylist()], pa.binary())


def _text_array(rows: pa.Array, start: Any, end: Any, kind: pa.DataType, valid: Any) -> pa.Array:
    bounds = np.empty(2 * len(start) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2] = start, end
    bounds[-1] = end[-1] if len(end) else 0
    _, _, data = rows.buffers()
    pieces = pa.Array.from_buffers(pa.large_binary(), 2 * len(start), [None, pa.py_buffer(bounds), data])
    found = pieces.take(pa.array(np.arange(0, 2 * len(start), 2)))
    if is_text(kind):
        return (
            found.cast(pa.large_string()).cast(kind)
            if pt.is_string(kind) or pt.is_large_string(kind)
            else found.cast(kind)
        )
    decode: Callable[[bytes], Any] = decoder(pa.schema([pa.field("it", kind)]))
    one = b"\x91"  # the head of an array with one value
    plain = zip(found.to_pylist(), valid.tolist(), strict=True)
    return pa.array([decode(one + each)[0] if there else None for each, there in plain], kind)


def _fixed_array(values: Bytes, kind: pa.DataType) -> pa.Array:
    if pt.is_boolean(kind):
        return pa.array(values.reshape(-1).astype(bool))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def whole(values: Bytes) -> pa.Array:
    """Bytes of a fixed width as a column."""
    rows, width = values.shape
    bounds = (
        np.arange(0, (rows + 1) * width, width, dtype=np.int32) if width else np.zeros(rows + 1, np.int32)
    )
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(values))]
    )


def _buffers(rows: pa.Array) -> tuple[Any, Any]:
    """The bytes of a column of large binaries that begins at its first row, and where each begins and ends."""
    _, bounds, data = rows.buffers()
    offsets = (
        np.frombuffer(bounds, np.int64)[: len(rows) + 1] if bounds is not None else np.zeros(1, np.int64)
    )
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), offsets
