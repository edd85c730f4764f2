"""Stored: rows as bytes, one text for each, as they stand in an operator's state, and back.

Times and dates are numbers there: they are read and written faster, and a wrong clock may show a year that Python has no date for.
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from headwater.pipeline.keyed import decoder

__all__ = ["Stored"]


class Stored:
    """How rows of one kind are stored. Equal rows have equal bytes."""

    def __init__(self, kind: pa.Schema) -> None:
        self._kind = kind
        self._numbers = pa.schema([field.with_type(_number(field.type)) for field in kind])
        self._decode = decoder(self._numbers)

    def encoded(self, rows: pa.Table) -> list[bytes]:
        columns = (column.to_pylist() for column in rows.cast(self._numbers).columns)
        return [_encode(row) for row in zip(*columns, strict=True)]

    def table(self, encoded: Sequence[bytes]) -> pa.Table:
        if not encoded:
            return self._kind.empty_table()
        columns = zip(*map(self._decode, encoded), strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._numbers, strict=True)]
        return pa.table(arrays, schema=self._numbers).cast(self._kind)


_encode = msgspec.msgpack.Encoder().encode


def _number(kind: pa.DataType) -> pa.DataType:
    if pt.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pt.is_date32(kind) else kind
