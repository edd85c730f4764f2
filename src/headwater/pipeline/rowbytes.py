"""Rows as bytes and back, all rows of a column at a time: how operators keep whole rows in their state.

    VALIDITY | columns of one width, in order | lengths of the others | their bytes, in order

The same row is the same bytes, so that rows are compared as they are kept. A row can only be read with the schema that it was written with: an
operator that keeps rows has that schema in its definition.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headwater.pipeline.keyed import python_type

__all__ = ["RowBytes"]

ROWS_AT_ONCE = 65_536
LENGTH = 4
"""Bytes of a length: no record of a log is longer."""


class RowBytes:
    """Writes and reads rows of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._fixed = [(at, _width(each.type)) for at, each in enumerate(schema) if _width(each.type)]
        self._others = [at for at, each in enumerate(schema) if not _width(each.type)]
        self._flags = (len(schema) + 7) // 8
        self._head = self._flags + sum(width for _, width in self._fixed) + LENGTH * len(self._others)
        self._decoders = {
            at: msgspec.msgpack.Decoder(python_type(schema.field(at).type))
            for at in self._others
            if not _is_text(schema.field(at).type)
        }

    def write(self, rows: pa.Table) -> list[bytes]:
        """The bytes of each row."""
        written: list[bytes] = []
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            written += self._written(rows.slice(start, ROWS_AT_ONCE).cast(self.schema))
        return written

    def read(self, rows: Sequence[bytes]) -> pa.Table:
        """The rows of these bytes."""
        parts = [
            self._read(rows[start : start + ROWS_AT_ONCE]) for start in range(0, len(rows), ROWS_AT_ONCE)
        ]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def _written(self, rows: pa.Table) -> list[bytes]:
        columns = [column.combine_chunks() for column in rows.columns]
        count = rows.num_rows
        valid = np.stack([_valid(column) for column in columns], axis=1)
        head = np.zeros((count, self._head), np.uint8)
        head[:, : self._flags] = np.packbits(valid, axis=1)
        at = self._flags
        for number, width in self._fixed:
            cells = _cells(columns[number], width)
            cells[~valid[:, number]] = 0  # whatever stands behind a null
            head[:, at : at + width] = cells
            at += width
        texts = [self._texts(number, columns[number]) for number in self._others]
        lengths = [_offsets(text)[1:] - _offsets(text)[:-1] for text in texts]
        for each in lengths:
            head[:, at : at + LENGTH] = each.astype("<u4").view(np.uint8).reshape(count, LENGTH)
            at += LENGTH
        sizes = self._head + sum(lengths, np.zeros(count, np.int64))
        ends = np.cumsum(sizes)
        out = np.empty(int(ends[-1]), np.uint8)
        starts = ends - sizes
        out[(starts[:, None] + np.arange(self._head)).ravel()] = head.ravel()
        starts = starts + self._head
        for text, length in zip(texts, lengths, strict=True):
            out[_spread(starts, length)] = _data(text)
            starts = starts + length
        whole = out.tobytes()
        bounds = [0, *ends.tolist()]
        return [whole[a:b] for a, b in pairwise(bounds)]

    def _read(self, rows: Sequence[bytes]) -> pa.Table:
        count = len(rows)
        data = np.frombuffer(b"".join(rows), np.uint8)
        starts = np.cumsum([0, *map(len, rows)])[:-1]
        head = data[(starts[:, None] + np.arange(self._head)).ravel()].reshape(count, self._head)
        valid = np.unpackbits(head[:, : self._flags], axis=1)[:, : len(self.schema)].astype(bool)
        columns: dict[int, pa.Array] = {}
        at = self._flags
        for number, width in self._fixed:
            columns[number] = _column(
                self.schema.field(number).type, head[:, at : at + width], valid[:, number]
            )
            at += width
        starts = starts + self._head
        for number in self._others:
            length = (
                np.ascontiguousarray(head[:, at : at + LENGTH]).view("<u4").reshape(count).astype(np.int64)
            )
            at += LENGTH
            text = _binary(data[_spread(starts, length)], length, valid[:, number])
            columns[number] = self._values(number, text)
            starts = starts + length
        return pa.Table.from_arrays(
            [columns[number] for number in range(len(self.schema))], schema=self.schema
        )

    def _texts(self, number: int, column: pa.Array) -> pa.Array:
        """A column whose values have lengths of their own, as binary without nulls."""
        if number not in self._decoders:
            return column.cast(pa.large_binary()).fill_null(b"")
        packed = [b"" if value is None else msgspec.msgpack.encode(value) for value in column.to_pylist()]
        return pa.array(packed, pa.large_binary())

    def _values(self, number: int, text: pa.Array) -> pa.Array:
        kind = self.schema.field(number).type
        if number not in self._decoders:
            return text.cast(kind)
        decode = self._decoders[number].decode
        return pa.array([None if each is None else decode(each) for each in text.to_pylist()], kind)


def _width(kind: pa.DataType) -> int:
    """Bytes of a value; 0 where they differ, or where there are several values in one."""
    if pt.is_boolean(kind):
        return 1
    if pt.is_primitive(kind) or pt.is_decimal(kind):
        return int(kind.bit_width) // 8
    return 0


def _is_text(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary))


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _cells(column: pa.Array, width: int) -> Any:
    """The values of a column as bytes, a row for each."""
    if pt.is_boolean(column.type):
        column = column.cast(pa.uint8())
    count, begin = len(column), column.offset * width
    found = np.frombuffer(column.buffers()[1], np.uint8, count * width, begin)
    return found.reshape(count, width).copy()


def _column(kind: pa.DataType, cells: Any, valid: Any) -> pa.Array:
    values = pa.py_buffer(np.ascontiguousarray(cells))
    plain = pa.uint8() if pt.is_boolean(kind) else kind
    column = pa.Array.from_buffers(plain, len(cells), [_bitmap(valid), values])
    return column.cast(kind)


def _bitmap(valid: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(text: pa.Array) -> Any:
    return np.frombuffer(text.buffers()[1], np.int64, len(text) + 1, text.offset * 8)


def _data(text: pa.Array) -> Any:
    offsets = _offsets(text)
    data = text.buffers()[2]
    if data is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _binary(data: Any, length: Any, valid: Any) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(length), buffers)


def _spread(starts: Any, length: Any) -> Any:
    """The place of each byte of stretches, one after the other."""
    before = np.cumsum(length) - length
    return np.repeat(starts - before, length) + np.arange(int(length.sum()))
