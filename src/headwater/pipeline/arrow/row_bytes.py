"""Row bytes: rows as bytes and back, whole columns at a time: the form of rows in the state of operators.

    NULLS FIXED LENGTHS TEXTS

NULLS has a bit for each value, 1 for a null, and at least one byte. FIXED are the values of a fixed width,
with zeros for nulls. LENGTHS are those of texts and other values of variable length, four bytes each. TEXTS
are these values. The values of a struct are values of the row. Lists and maps are texts, in msgpack.

Equal rows are equal bytes, so that rows are compared in this form. A reader must know the columns.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headwater.pipeline.arrow.msgpack_types import python_type

__all__ = ["concat", "fixed", "is_text", "listed", "pack", "placed", "stacked", "unpack", "whole"]

COUNT = np.dtype("<u4")
LENGTH = "<u4"
WIDTHS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
"""The types as which values of a width are copied; others are copied as bytes."""
_encode = msgspec.msgpack.Encoder().encode


def pack(rows: pa.Table) -> pa.Array:
    """The bytes of each row, as large binaries; the first one begins at the start of their buffer."""
    values = [value for column in rows.columns for value in _apart(column.combine_chunks())]
    heads = np.zeros(rows.num_rows, _head([value.type for value in values]))
    texts = []
    for n, value in enumerate(values):
        null = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
        if null is not None:
            heads["nulls"][:, n >> 3] |= null.view(np.uint8) << (n & 7)
        if _width(value.type):
            cells = heads[str(n)]
            cells[:] = fixed(value).view(cells.dtype)[:, 0]
            if null is not None:
                cells[null] = np.zeros((), cells.dtype)  # Arrow may have any bytes for a null
        elif not pt.is_struct(value.type):
            texts.append(_texts(value))
            heads[str(n)] = pc.binary_length(texts[-1]).to_numpy()
    block = whole(heads.view(np.uint8).reshape(rows.num_rows, heads.dtype.itemsize))
    return concat(block, *texts)


def unpack(data: bytes | pa.Buffer, begins: Any, schema: pa.Schema) -> pa.Table:
    """The rows that begin at these places, which must be in order."""
    kinds = [kind for field in schema for kind in _kinds(field.type)]
    heads = _picked(data, begins, _head(kinds))
    nulls = heads["nulls"]
    some = nulls.any(axis=0).tolist()
    at = begins + heads.dtype.itemsize
    values: list[pa.Array] = []
    for n, kind in enumerate(kinds):
        null = (nulls[:, n >> 3] >> (n & 7) & 1).view(bool) if some[n >> 3] else None
        if pt.is_struct(kind):
            values.append(null)
        elif _width(kind):
            values.append(_fixed_column(heads[str(n)], null, kind))
        else:
            end = at + heads[str(n)]
            values.append(_text_column(data, at, end, null, kind))
            at = end
    rest = iter(values)
    return pa.table([_together(field.type, rest) for field in schema], schema=schema)


def stacked(rows: Sequence[bytes]) -> tuple[bytes, Any]:
    """Rows, or other bytes, concatenated, and where each begins."""
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return b"".join(rows), np.cumsum(sizes) - sizes


def placed(rows: pa.Array) -> tuple[pa.Buffer, Any]:
    """The same for a column of large binaries without nulls, which is concatenated already."""
    _, bounds, data = rows.buffers()
    begins = (
        np.frombuffer(bounds, np.int64, len(rows), 8 * rows.offset) if len(rows) else np.zeros(0, np.int64)
    )
    return data if data is not None else pa.py_buffer(b""), begins


def listed(data: bytes, places: Any, kind: np.dtype[Any]) -> tuple[Any, Any, Any]:
    """Lists at some places: a count, as many items, and the bytes of each, whose ``length`` is in the item.

    Returns the counts, all items of all lists, and where the bytes of each begin.
    """
    counts = _picked(data, places, COUNT).astype(np.int64)
    firsts = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(firsts, counts)
    places = places + COUNT.itemsize
    items = _picked(data, np.repeat(places, counts) + within * kind.itemsize, kind)
    lengths = items["length"].astype(np.int64)
    before = np.cumsum(lengths) - lengths
    shift = places + counts * kind.itemsize - np.append(before, 0)[firsts]
    return counts, items, np.repeat(shift, counts) + before


def _picked(data: bytes | pa.Buffer, places: Any, kind: np.dtype[Any]) -> Any:
    """The values at some places, all of one type."""
    if not len(places):
        return np.zeros(0, kind)
    everywhere = np.ndarray((len(data) - kind.itemsize + 1,), f"V{kind.itemsize}", data, strides=(1,))
    return everywhere[places].view(kind)


# ---- columns as bytes --------------------------------------------------------------------------------------


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text, or bytes of any length."""
    return any(fits(kind) for fits in (pt.is_string, pt.is_binary, pt.is_large_string, pt.is_large_binary))


def fixed(values: pa.Array) -> Any:
    """The bytes of values of a fixed width, as a row for each; those of a null are undefined."""
    values = values.cast(pa.uint8()) if pt.is_boolean(values.type) else values
    width, buffer = _width(values.type), values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros((len(values), width), np.uint8)
    return np.frombuffer(buffer, np.uint8, len(values) * width, values.offset * width).reshape(-1, width)


def concat(*parts: pa.Array | bytes) -> pa.Array:
    """Concatenates columns of bytes, and bytes that are the same in all rows, as large binaries."""
    if len(parts) == 1:
        return parts[0]
    wide = [
        pa.scalar(part, pa.large_binary()) if isinstance(part, bytes) else part.cast(pa.large_binary())
        for part in (*parts, b"")
    ]
    return pc.binary_join_element_wise(*wide)


def whole(values: Any) -> pa.Array:
    """Rows of bytes, all of one width, as a column."""
    rows, width = values.shape
    bounds = np.arange(rows + 1, dtype=np.int64) * width
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(bounds), data])


# ---- values of a row ---------------------------------------------------------------------------------------


def _width(kind: pa.DataType) -> int:
    """The width of a value in bytes; 0 for variable length and for nested values."""
    if pt.is_boolean(kind):
        return 1
    return int(kind.bit_width) // 8 if pt.is_primitive(kind) or pt.is_decimal(kind) else 0


def _kinds(kind: pa.DataType) -> list[pa.DataType]:
    """The types of a column's values; a struct itself only has its null bit."""
    if not pt.is_struct(kind):
        return [kind]
    return [kind, *(inner for n in range(kind.num_fields) for inner in _kinds(kind.field(n).type))]


def _head(kinds: Sequence[pa.DataType]) -> np.dtype[Any]:
    """The type of a row's head: all but its texts."""
    widths = [(str(n), _width(kind)) for n, kind in enumerate(kinds) if not pt.is_struct(kind)]
    values = [(name, WIDTHS.get(width, f"V{width}")) for name, width in widths if width]
    lengths = [(name, LENGTH) for name, width in widths if not width]
    return np.dtype([("nulls", "u1", (max(1, (len(kinds) + 7) // 8),)), *values, *lengths])


def _apart(column: pa.Array) -> list[pa.Array]:
    """The values of a column, in the order of ``_kinds``."""
    if not pt.is_struct(column.type):
        return [column]
    return [column, *(value for inner in column.flatten() for value in _apart(inner))]


def _together(kind: pa.DataType, values: Iterator[Any]) -> pa.Array:
    """A column from its values; the value of a struct is its nulls."""
    first = next(values)
    if not pt.is_struct(kind):
        return first
    fields = [kind.field(n) for n in range(kind.num_fields)]
    inner = [_together(field.type, values) for field in fields]
    return pa.StructArray.from_arrays(
        inner, fields=fields, mask=pa.array(first) if first is not None else None
    )


def _fixed_column(cells: Any, null: Any, kind: pa.DataType) -> pa.Array:
    cells = np.ascontiguousarray(cells)
    if pt.is_boolean(kind):
        return pa.array(cells.view(bool), mask=null)
    there = pa.py_buffer(np.packbits(~null, bitorder="little")) if null is not None else None
    return pa.Array.from_buffers(kind, len(cells), [there, pa.py_buffer(cells)])


def _texts(values: pa.Array) -> pa.Array:
    """Values of variable length as bytes; nulls are empty."""
    if is_text(values.type):
        texts = values.cast(pa.large_binary())
        return texts.fill_null(b"") if texts.null_count else texts
    plain = values.cast(_plain(values.type)).to_pylist()
    return pa.array([b"" if value is None else _encode(value) for value in plain], pa.large_binary())


def _text_column(data: bytes | pa.Buffer, begins: Any, ends: Any, null: Any, kind: pa.DataType) -> pa.Array:
    """Texts between other bytes: every second piece of the data, so that Arrow copies them."""
    count = len(begins)
    bounds = np.zeros(2 * count + 1, np.int64)
    bounds[:-1:2], bounds[1::2] = begins, ends
    bounds[-1] = ends[-1] if count else 0
    large = pa.large_string() if pt.is_string(kind) or pt.is_large_string(kind) else pa.large_binary()
    pieces = pa.Array.from_buffers(large, 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    texts = pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=null))
    if is_text(kind):
        return texts.cast(kind)
    plain = _plain(kind)
    decode = msgspec.msgpack.Decoder(python_type(plain)).decode
    values = [None if text is None else decode(text) for text in texts.to_pylist()]
    return pa.array(values, plain).cast(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type with numbers for times: a wrong clock may have a year that Python's dates do not reach."""
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_plain(kind.key_type)),
            kind.item_field.with_type(_plain(kind.item_type)),
        )
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pt.is_temporal(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    return kind
