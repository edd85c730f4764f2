"""Delta: the changes of a batch in the state of one shard, as two columns and as a file.

A delta also has the size of what it replaces, which its operator has read anyway, so that the size of the
shard follows without another look.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.state.contract import State
from headwater.pipeline.state.files import SCHEMA, Place, Size, write
from headwater.result import Chain

__all__ = ["Delta", "stateless_file"]

COLUMN_BYTES_MAX = 1 << 30
"""Columns of a file count their bytes in 31 bits: longer ones are cut into pieces."""
BYTES = pa.large_binary()


class Delta(Mapping[bytes, bytes | None]):
    """Keys in order, each once, and their values; a null value removes the key.

    ``replaced``: the size of the entries that these keys have so far.
    """

    def __init__(self, keys: pa.Array, values: pa.Array, replaced: Size) -> None:
        self.table = pa.table([_narrow(keys), _narrow(values)], schema=SCHEMA)
        self.replaced = replaced

    @classmethod
    def over(cls, keys: pa.Array, values: pa.Array, before: pa.Array) -> "Delta":
        """From columns; ``before`` has the value of each key so far, null for none."""
        return cls(keys, values, _size(keys, before))

    @classmethod
    def of(cls, changes: Mapping[bytes, bytes | None], state: State) -> "Delta":
        """From changes that an operator has collected by key. Reads what they replace."""
        keys = sorted(changes)
        values = pa.array(map(changes.__getitem__, keys), BYTES)
        return cls.over(pa.array(keys, BYTES), values, pa.array(state.each(keys), BYTES))

    def grown(self, before: Size) -> Size:
        """The size of a shard after it."""
        added = _size(*self.table.columns)
        return Size(
            before.entries + added.entries - self.replaced.entries,
            before.state_bytes + added.state_bytes - self.replaced.state_bytes,
        )

    @cached_property
    def _mapping(self) -> dict[bytes, bytes | None]:
        return dict(zip(*(column.to_pylist() for column in self.table.columns), strict=True))

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._mapping[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return int(self.table.num_rows)


def stateless_file(place: Place, number: int, batch: int, attempt: str, delta: Delta) -> Chain:
    """The output of a step without state: a file that needs none before it.

    Here a key may occur more than once.
    """
    if not len(delta):
        return ()
    name = f"{number}-{batch}-{attempt}.delta"
    size = _size(*delta.table.columns)
    return (write(place, name, batch, [delta.table], whole=True, size=size),)


def _size(keys: Any, values: Any) -> Size:
    """The size of entries; a null value is none."""
    if values.null_count == len(values):
        return Size()
    if values.null_count:
        valid = values.is_valid()
        keys, values = keys.filter(valid), values.filter(valid)
    return Size(len(values), sum(pc.sum(pc.binary_length(column)).as_py() for column in (keys, values)))


def _narrow(column: pa.Array) -> pa.ChunkedArray:
    """A column of the file's type, cut where it is too long."""
    if len(column) < 2 or column.nbytes <= COLUMN_BYTES_MAX:
        return pa.chunked_array([column.cast(pa.binary())], pa.binary())
    middle = len(column) // 2
    halves = (range(middle), range(middle, len(column)))
    parts = [_narrow(column.take(pa.array(half, pa.int64()))) for half in halves]
    return pa.chunked_array([piece for part in parts for piece in part.chunks], pa.binary())
