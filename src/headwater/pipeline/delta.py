"""Delta: what changes in a shard's state as two columns, for logics that make them so: no key or value becomes an object on its way into a file.

It says as well what stood there before, which its logic has seen anyway, so that the size of the shard is known without looking again. Whoever wants a
mapping has one.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.statefile import SCHEMA, Place, Size, columns, write
from headwater.result import Chain

__all__ = ["Delta", "alone", "tabled"]

COLUMN_BYTES_MAX = 1 << 30
"""Columns of a file count their bytes in 31 bits: longer ones come in pieces."""


class Delta(Mapping[bytes, bytes | None]):
    """Keys in order, each once, and their values; a null removes the key. ``was``: those of them that were there, and their values."""

    def __init__(self, keys: pa.Array, values: pa.Array, was: Size) -> None:
        self.table = pa.table([_narrow(keys), _narrow(values)], schema=SCHEMA)
        self.was = was

    @classmethod
    def over(cls, keys: pa.Array, values: pa.Array, before: pa.Array) -> "Delta":
        """``before``: what stood at each key, null for nothing."""
        return cls(keys, values, _size(keys, before))

    def grown(self, before: Size) -> Size:
        """The size of a shard after it."""
        now = _size(*self.table.columns)
        return Size(
            before.entries + now.entries - self.was.entries,
            before.state_bytes + now.state_bytes - self.was.state_bytes,
        )

    @cached_property
    def _mapping(self) -> dict[bytes, bytes | None]:
        return dict(zip(*(each.to_pylist() for each in self.table.columns), strict=True))

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._mapping[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return int(self.table.num_rows)


def alone(
    place: Place, number: int, batch: int, attempt: str, changes: Mapping[bytes, bytes | None]
) -> Chain:
    """What a step without state has made of a batch: a file that needs none before it, and in which a key may stand more than once."""
    if not len(changes):
        return ()
    table = tabled(changes)
    name = f"{number}-{batch}-{attempt}.delta"
    return (write(place, name, batch, [table], whole=True, size=_size(*table.columns)),)


def tabled(changes: Mapping[bytes, bytes | None]) -> pa.Table:
    """Changes as a file has them."""
    return changes.table if isinstance(changes, Delta) else columns(changes)


def _size(keys: Any, values: Any) -> Size:
    if values.null_count == len(values):
        return Size()
    if values.null_count:
        there = values.is_valid()
        keys, values = keys.filter(there), values.filter(there)
    return Size(len(values), sum(pc.sum(pc.binary_length(each)).as_py() for each in (keys, values)))


def _narrow(column: pa.Array) -> pa.ChunkedArray:
    if len(column) < 2 or column.nbytes <= COLUMN_BYTES_MAX:
        return pa.chunked_array([column.cast(pa.binary())], pa.binary())
    middle = len(column) // 2
    halves = (range(middle), range(middle, len(column)))
    parts = [_narrow(column.take(pa.array(each, pa.int64()))) for each in halves]
    return pa.chunked_array([piece for part in parts for piece in part.chunks], pa.binary())
