"""Shard blocks: rows between two operators as pieces of Arrow data, which Spark moves to their shards unread.

A row that goes from Python into the JVM, through a shuffle and back costs more than most operators need for
it. If nothing is between two operators, the first one computes the shard of each row itself and emits a few
blocks for each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

__all__ = ["BLOCK", "KIND", "Cut", "opened"]

SHARD, BLOCK = "_shard", "_block"
KIND = StructType([StructField(SHARD, IntegerType()), StructField(BLOCK, BinaryType())])
BLOCK_BYTES = 4 << 20
"""The approximate size of a block, unless one row is larger."""


@dataclass(frozen=True)
class Cut:
    """Cuts rows with a binary ``_key`` into blocks for this many shards (``pipeline/operator/apply.py``)."""

    shards: int

    def __call__(self, rows: pa.Table) -> pa.Table:
        keys = rows.column("_key").to_pylist()
        shard = np.fromiter(map(crc32, keys), np.uint32, len(keys)) % self.shards
        blocks: list[tuple[int, bytes]] = []
        for number in range(self.shards):
            mine = rows.filter(pa.array(shard == number)) if self.shards > 1 else rows
            blocks += [(number, block) for block in _blocks(mine.combine_chunks())]
        numbers = pa.array([number for number, _ in blocks], pa.int32())
        data = pa.chunked_array(
            [pa.array([block], pa.binary()) for _, block in blocks], pa.binary()
        )  # one array for each: together they may exceed the size of one
        return pa.table([numbers, data], names=[SHARD, BLOCK])


def opened(blocks: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in some blocks, with their ``_shard``."""
    tables = []
    for number, block in zip(*(blocks.column(name) for name in (SHARD, BLOCK)), strict=True):
        rows = pa.ipc.open_stream(block.as_buffer()).read_all()
        shard = pa.array(np.full(rows.num_rows, number.as_py(), np.int32))
        tables.append(rows.append_column(SHARD, shard))
    (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
    return batch


def _blocks(rows: pa.Table) -> Iterator[bytes]:
    number = np.cumsum(_sizes(rows)) // BLOCK_BYTES
    bounds = np.flatnonzero(np.diff(number, prepend=-1, append=-1))
    for start, end in pairwise(bounds.tolist()):
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as stream:
            stream.write_table(rows.slice(start, end - start))
        yield out.getvalue().to_pybytes()


def _sizes(rows: pa.Table) -> Any:
    """The approximate size of each row: the bytes of variable length, and a few for the others."""
    variable = [column for column in rows.columns if pa.types.is_large_binary(column.type)]
    lengths = [pc.fill_null(pc.binary_length(column), 0).to_numpy() for column in variable]
    return np.sum([np.full(rows.num_rows, 8 * rows.num_columns), *lengths], axis=0)
