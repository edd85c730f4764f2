"""Packing: columns of keys and values become the record batches of a topic's partitions, without an object for each record.

The bytes of a record are a join of columns: lengths, key, value. Arrow joins them, and the joined column's buffer is the body of the
batch.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.record import LZ4, TRANSACTIONAL, frame, lz4_frame

__all__ = ["Packed", "column", "hashes", "packed", "parcels", "spread"]

BYTES = pa.large_binary()
BATCH_BYTES = 900_000
"""Of records before they are compressed: brokers take a megabyte unless they are told otherwise."""
BATCH_RECORDS = 1 << 14
SIDE_BY_SIDE_MIN = 10_000
"""So many records are packed in parts, on several threads: Arrow and the compression leave Python to others."""
COMPRESSED_BYTES_MIN = 1024
"""A smaller batch is sent as it is."""
NULL = 1
"""The length -1, as it is written."""
SEED, FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


class Packed(NamedTuple):
    """The records of one batch; who produces them, and where they stand, is told when they are sent."""

    body: bytes
    records: int
    compressed: bool

    def batch(self, producer_id: int, epoch: int, sequence: int, at_ms: int) -> bytes:
        attributes = TRANSACTIONAL | (LZ4 if self.compressed else 0)
        fields = (attributes, self.records - 1, at_ms, at_ms, producer_id, epoch, sequence, self.records)
        return frame(0, fields, self.body)


def column(values: Any) -> pa.Array:
    """Bytes and nulls as a column of large binaries. Made by hand: Arrow's own way loads pandas, which takes 40 MB."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values if values.type == BYTES else values.cast(BYTES)
    there = None
    if None in values:
        there = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
        values = [b"" if value is None else value for value in values]
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=bounds[1:])
    return _binaries(bounds, b"".join(values), there)


def parcels(keys: pa.Array, values: pa.Array, count: int, apart: int) -> Iterator[tuple[int, list[Packed]]]:
    """Records as batches of ``count`` partitions, each partition's in the order of its records."""
    size = len(keys)
    cuts = range(0, size, size if size < SIDE_BY_SIDE_MIN else -(-size // (os.cpu_count() or 1)))

    def made(at: int) -> list[tuple[int, list[Packed]]]:
        some = slice(at, at + cuts.step)
        return [(each, list(packed(*part))) for each, *part in spread(keys[some], values[some], count, apart)]

    for part in (map if len(cuts) == 1 else _threads().map)(made, cuts):
        yield from part


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "packing")


os.register_at_fork(after_in_child=_threads.cache_clear)


def spread(
    keys: pa.Array, values: pa.Array, count: int, apart: int
) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """The records of each of ``count`` partitions, in their order: by key as Java's clients do, those without a key in ``apart``."""
    if count == 1:
        yield 0, keys, values
        return
    chosen = (hashes(keys) % count).astype(np.int32)
    if keys.null_count:
        chosen[_nulls(keys)] = apart
    order = np.argsort(chosen, kind="stable")
    bounds = np.searchsorted(chosen[order], np.arange(count + 1))
    for partition in range(count):
        first, last = bounds[partition], bounds[partition + 1]
        if first < last:
            some = pa.Array.from_buffers(pa.int64(), last - first, [None, pa.py_buffer(order[first:last])])
            yield partition, keys.take(some), values.take(some)


def packed(keys: pa.Array, values: pa.Array) -> Iterator[Packed]:
    """Records as batches, none larger than a broker takes; a record that is too large alone is a batch of its own."""
    sizes = _lengths(keys) + _lengths(values)
    reach = np.cumsum(sizes + 16)
    at = 0
    while at < len(keys):
        before = int(reach[at - 1]) if at else 0
        end = int(np.searchsorted(reach, before + BATCH_BYTES, "right"))
        end = min(max(end, at + 1), at + BATCH_RECORDS)
        body = _body(keys[at:end], values[at:end])
        small = lz4_frame(body) if len(body) >= COMPRESSED_BYTES_MIN else body
        yield Packed(small, end - at, small is not body)
        at = end


def hashes(keys: pa.Array) -> Any:
    """Kafka's murmur2 of each key, not negative; that of ``partition.py`` by columns."""
    lengths, (data, begins) = _lengths(keys), _placed(keys)
    found = SEED ^ lengths.astype(np.uint32)
    padded = np.frombuffer(data + bytes(4), np.uint8)
    words = np.ndarray(len(padded) - 3, "<u4", buffer=padded, strides=(1,))
    whole = lengths >> 2
    for number in range(int(whole.max(initial=0))):
        some = np.flatnonzero(whole > number)
        word = words[begins[some] + 4 * number] * FACTOR
        word = (word ^ word >> 24) * FACTOR
        found[some] = found[some] * FACTOR ^ word
    rest = lengths & 3
    some = np.flatnonzero(rest)
    tail = words[begins[some] + 4 * whole[some]] & (
        (np.uint32(1) << (8 * rest[some]).astype(np.uint32)) - np.uint32(1)
    )
    found[some] = (found[some] ^ tail) * FACTOR
    found = (found ^ found >> 13) * FACTOR
    return (found ^ found >> 15) & np.uint32(0x7FFFFFFF)


def _body(keys: pa.Array, values: pa.Array) -> bytes:
    """Records one after the other: length, attributes, no time of their own, place, key, value, no headers."""
    count = len(keys)
    pieces = [_counted()[:count], *_measured(keys), *_measured(values)]
    sizes = 3 + sum(_lengths(piece) for piece in pieces)
    joined = pc.binary_join_element_wise(_varints(sizes), PLAIN, *pieces, NO_HEADERS, NOTHING)
    bounds = np.frombuffer(joined.buffers()[1], np.int64)
    return memoryview(joined.buffers()[2])[bounds[joined.offset] : bounds[joined.offset + count]].tobytes()


def _measured(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The lengths of texts as they are written, and the texts."""
    if not texts.null_count:
        return _varints(_lengths(texts)), texts
    written = _zigzag(_lengths(texts))
    written[_nulls(texts)] = NULL
    return _unsigned(written), pc.coalesce(texts, NOTHING)


@cache
def _counted() -> pa.Array:
    """The places of records in a batch."""
    return _varints(np.arange(BATCH_RECORDS))


def _varints(numbers: Any) -> pa.Array:
    return _unsigned(_zigzag(numbers))


def _zigzag(numbers: Any) -> Any:
    return numbers.astype(np.int64) << 1


def _unsigned(numbers: Any) -> pa.Array:
    """Each number, none of them negative, in groups of seven bits, the lowest first."""
    most = int(numbers.max(initial=0))
    if most < 1 << 7:
        return _binaries(np.arange(len(numbers) + 1), numbers.astype(np.uint8))
    width = -(-most.bit_length() // 7)
    groups = numbers[:, None] >> (7 * np.arange(width))
    some = np.ones(groups.shape, bool)
    some[:, 1:] = groups[:, 1:] > 0
    cells = (groups & 0x7F).astype(np.uint8)
    cells[:, :-1] |= some[:, 1:].astype(np.uint8) << 7
    bounds = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(some.sum(axis=1), out=bounds[1:])
    return _binaries(bounds, cells[some])


def _lengths(texts: pa.Array) -> Any:
    """Of each text; 0 for a null."""
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    found = np.diff(bounds)
    if texts.null_count:
        found[_nulls(texts)] = 0
    return found


def _nulls(texts: pa.Array) -> Any:
    """Which are null, where some are."""
    there = np.unpackbits(np.frombuffer(texts.buffers()[0], np.uint8), bitorder="little")
    return there[texts.offset : texts.offset + len(texts)] == 0


def _placed(texts: pa.Array) -> tuple[bytes, Any]:
    """The bytes of texts, and where each begins in them."""
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = memoryview(texts.buffers()[2] or b"")
    return data[bounds[0] : bounds[-1]].tobytes(), bounds[:-1] - bounds[0]


def _binaries(bounds: Any, data: Any, there: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(BYTES, len(bounds) - 1, [there, pa.py_buffer(bounds), pa.py_buffer(data)])


def _fixed(text: bytes) -> pa.Scalar:
    """The same in all rows."""
    return _binaries(np.array([0, len(text)]), text)[0]


PLAIN, NO_HEADERS, NOTHING = map(_fixed, (b"\0\0", b"\0", b""))
"""What stands in every record between its length and its place, what it ends with, and what is between columns."""
