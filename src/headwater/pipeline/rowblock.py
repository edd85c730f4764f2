"""Row block: rows of a table as bytes, one after the other, and back. Both ways go by columns, so that a row costs well below a microsecond.

    length              four bytes: of the whole row
    there               one byte for each column: 0 for a null
    values              those of a fixed width, nulls as zeros
    lengths             four bytes for each of the others
    bytes               of the others: text and binary as they are, anything nested as msgpack

Equal rows are equal bytes. Whoever reads must know the columns.
"""

import struct
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headwater.pipeline.keyed import python_type

__all__ = ["Packed", "pack", "starts", "unpack"]

_length = struct.Struct("<I")
_LENGTH = np.dtype("<u4")
EMPTY = pa.scalar(b"", pa.large_binary())


class Packed(NamedTuple):
    """Rows as bytes, and where each begins, with the end of the last."""

    data: bytes
    bounds: Any

    def rows(self) -> list[bytes]:
        """Each row by itself."""
        bounds = self.bounds.tolist()
        return [self.data[start:end] for start, end in pairwise(bounds)]


class _Form(NamedTuple):
    """Where the parts of a row are, for the columns of a table."""

    fixed: list[tuple[int, int, int]]
    """Column, where its value is, how wide."""
    other: list[tuple[int, int]]
    """Column, where its length is."""
    width: int


def pack(rows: pa.Table) -> Packed:
    form = _form(rows.schema)
    count = rows.num_rows
    block = np.zeros((count, form.width), np.uint8)
    arrays = [_plain(rows.column(n)) for n in range(rows.num_columns)]
    for n, array in enumerate(arrays):
        block[:, 4 + n] = 1 if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    for n, at, width in form.fixed:
        block[:, at : at + width] = _bytes_of(arrays[n], width)
    total = np.full(count, form.width, np.int64)
    others = []
    for n, at in form.other:
        filled = pc.fill_null(arrays[n], EMPTY) if arrays[n].null_count else arrays[n]
        lengths = pc.binary_length(filled).to_numpy(zero_copy_only=False)
        block[:, at : at + 4] = lengths.astype(_LENGTH).view(np.uint8).reshape(count, 4)
        total += lengths
        others.append(filled)
    block[:, :4] = total.astype(_LENGTH).view(np.uint8).reshape(count, 4)
    bounds = np.concatenate(([0], np.cumsum(total)))
    if not others:
        return Packed(block.tobytes(), bounds)
    heads = pa.Array.from_buffers(pa.binary(form.width), count, [None, pa.py_buffer(block.tobytes())])
    joined = pc.binary_join_element_wise(heads.cast(pa.large_binary()), *others, EMPTY)
    data = joined.buffers()[2]
    return Packed(data.to_pybytes()[: bounds[-1]] if data is not None else b"", bounds)


def unpack(data: bytes, begins: Any, schema: pa.Schema) -> pa.Table:
    """The rows that begin at these places."""
    form = _form(schema)
    at = np.asarray(begins, np.int64)
    raw = np.frombuffer(data, np.uint8)
    block = raw[at[:, None] + np.arange(form.width)] if len(at) else np.zeros((0, form.width), np.uint8)
    columns: list[pa.Array] = [None] * len(schema)
    for n, place, width in form.fixed:
        columns[n] = _fixed(block[:, 4 + n], block[:, place : place + width], schema.field(n).type)
    behind = at + form.width
    for n, place in form.other:
        lengths = np.ascontiguousarray(block[:, place : place + 4]).view(_LENGTH).reshape(-1).astype(np.int64)
        columns[n] = _other(raw, behind, lengths, block[:, 4 + n], schema.field(n).type)
        behind = behind + lengths
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def starts(data: bytes) -> list[int]:
    """Where rows begin that stand one after the other."""
    found, at, end = [], 0, len(data)
    read = _length.unpack_from
    while at < end:
        found.append(at)
        at += read(data, at)[0]
    return found


def _form(schema: pa.Schema) -> _Form:
    at = 4 + len(schema)
    fixed, other = [], []
    for n, field in enumerate(schema):
        width = _width(field.type)
        if width:
            fixed.append((n, at, width))
            at += width
    for n, field in enumerate(schema):
        if not _width(field.type):
            other.append((n, at))
            at += 4
    return _Form(fixed, other, at)


def _width(kind: pa.DataType) -> int:
    if pt.is_boolean(kind):
        return 1
    if pt.is_primitive(kind) or pt.is_decimal128(kind):
        return int(kind.bit_width) // 8
    return 0


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_one(kind) for is_one in (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary)
    )


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece: numbers as they are, all else as binary."""
    array = column.combine_chunks()
    if pt.is_boolean(array.type):
        return array.cast(pa.uint8())
    if _width(array.type):
        return array
    if _is_text(array.type):
        return array.cast(pa.large_binary())
    encode = msgspec.msgpack.Encoder(order="sorted").encode
    values = array.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if each is None else encode(each) for each in values], pa.large_binary())


def _bytes_of(array: pa.Array, width: int) -> Any:
    """The values of a column of fixed width as bytes, nulls as zeros."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros((len(array), width), np.uint8)
    raw = np.frombuffer(buffer, np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    found = raw.reshape(len(array), width)
    if array.null_count:
        found = np.where(array.is_valid().to_numpy(zero_copy_only=False)[:, None], found, 0)
    return found


def _bitmap(there: Any) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little").tobytes())


def _fixed(there: Any, values: Any, kind: pa.DataType) -> pa.Array:
    if pt.is_boolean(kind):
        return pa.array(values.reshape(-1).astype(bool), mask=there == 0)
    return pa.Array.from_buffers(kind, len(there), [_bitmap(there), pa.py_buffer(values.tobytes())])


def _other(raw: Any, begins: Any, lengths: Any, there: Any, kind: pa.DataType) -> pa.Array:
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    picked = raw[np.repeat(begins - bounds[:-1], lengths) + np.arange(bounds[-1])]
    buffers = [_bitmap(there), pa.py_buffer(bounds.tobytes()), pa.py_buffer(picked.tobytes())]
    found = pa.Array.from_buffers(pa.large_binary(), len(there), buffers)
    if _is_text(kind):
        return found.cast(kind)
    decode = msgspec.msgpack.Decoder(python_type(kind)).decode
    values = [None if each is None else decode(each) for each in found.to_pylist()]
    return pa.array(values, kind)
