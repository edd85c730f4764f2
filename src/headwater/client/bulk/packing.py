"""Packing: from columns of keys and values to record batches, without an object for each record.

The bytes of a record are a join of columns: lengths, key, value. Arrow joins them, and the buffer of the
joined column is the body of the batch.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.partitioner import murmur2
from headwater.record import (
    HEADER_BYTES,
    LZ4,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Record,
    encode_batch,
    frame,
    lz4_frame,
)

__all__ = ["PackedBatch", "column", "hashes", "pack", "pack_partitions", "pack_records", "split_by_partition"]

Int64s = npt.NDArray[np.int64]

BYTES = pa.large_binary()
BATCH_BYTES = 900_000
"""Of records before they are compressed: by default brokers take a megabyte."""
BATCH_RECORDS = 1 << 14
PARALLEL_RECORDS_MIN = 10_000
"""From this number on, records are packed on several threads.

Arrow and the compression release the interpreter.
"""
COMPRESSED_BYTES_MIN = 1024
"""A smaller batch is sent uncompressed."""
NULL = 1
"""The length -1 in zigzag encoding."""
SEED, FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


class PackedBatch(NamedTuple):
    """The records of one batch; its header is made when it is sent."""

    body: bytes
    records: int
    compressed: bool
    times_ms: tuple[int, int] | None = None
    """The base and the largest timestamp, if its records have their own; else they get the time."""

    def batch(self, producer_id: int, epoch: int, sequence: int, at_ms: int) -> bytes:
        attributes = TRANSACTIONAL | (LZ4 if self.compressed else 0)
        base_ms, last_ms = self.times_ms or (at_ms, at_ms)
        fields = (attributes, self.records - 1, base_ms, last_ms, producer_id, epoch, sequence, self.records)
        return frame(0, fields, self.body)


def column(values: Any) -> pa.Array:
    """Bytes and nulls as a column of large binaries.

    Arrow's own conversion would load pandas, which takes 40 MB.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values if values.type == BYTES else values.cast(BYTES)
    validity = None
    if None in values:
        validity = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))
        values = [b"" if value is None else value for value in values]
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=bounds[1:])
    return _binaries(bounds, b"".join(values), validity)


def pack_partitions(
    keys: pa.Array, values: pa.Array, count: int, keyless: int
) -> Iterator[tuple[int, list[PackedBatch]]]:
    """Records as batches of ``count`` partitions, in the order of the records of each partition."""
    size = len(keys)
    starts = range(0, size, size if size < PARALLEL_RECORDS_MIN else -(-size // (os.cpu_count() or 1)))

    def pack_slice(start: int) -> list[tuple[int, list[PackedBatch]]]:
        rows = slice(start, start + starts.step)
        parts = split_by_partition(keys[rows], values[rows], count, keyless)
        return [(partition, list(pack(*columns))) for partition, *columns in parts]

    for batches in (map if len(starts) == 1 else _threads().map)(pack_slice, starts):
        yield from batches


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "packing")


os.register_at_fork(after_in_child=_threads.cache_clear)


def split_by_partition(
    keys: pa.Array, values: pa.Array, count: int, keyless: int
) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """The records of each of ``count`` partitions, in their order.

    Keys choose the partition as with Java's clients; records without a key go to the partition ``keyless``.
    """
    if count == 1:
        yield 0, keys, values
        return
    chosen = (hashes(keys) % count).astype(np.int32)
    if keys.null_count:
        chosen[_nulls(keys)] = keyless
    order = np.argsort(chosen, kind="stable")
    bounds = np.searchsorted(chosen[order], np.arange(count + 1))
    for partition in range(count):
        first, last = bounds[partition], bounds[partition + 1]
        if first < last:
            rows = pa.Array.from_buffers(pa.int64(), last - first, [None, pa.py_buffer(order[first:last])])
            yield partition, keys.take(rows), values.take(rows)


def pack(keys: pa.Array, values: pa.Array) -> Iterator[PackedBatch]:
    """Records as batches that a broker takes; a record that is too large is a batch of its own."""
    sizes = _lengths(keys) + _lengths(values)
    reach = np.cumsum(sizes + 16)
    at = 0
    while at < len(keys):
        before = int(reach[at - 1]) if at else 0
        end = int(np.searchsorted(reach, before + BATCH_BYTES, "right"))
        end = min(max(end, at + 1), at + BATCH_RECORDS)
        body = _body(keys[at:end], values[at:end])
        packed = lz4_frame(body) if len(body) >= COMPRESSED_BYTES_MIN else body
        yield PackedBatch(packed, end - at, packed is not body)
        at = end


def pack_records(
    records: Sequence[Record], count: int, keyless: int, at_ms: int
) -> Iterator[tuple[int, list[PackedBatch]]]:
    """Few records with headers as batches of ``count`` partitions, which they choose as above.

    ``at_ms`` is the time of those that have none.
    """
    chosen: dict[int, list[list[Record]]] = {}
    sizes: dict[int, int] = {}
    for record in records:
        partition = keyless if record.key is None else murmur2(record.key) % count
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        sizes[partition] = sizes.get(partition, BATCH_BYTES) + size
        if sizes[partition] > BATCH_BYTES:
            chosen.setdefault(partition, []).append([])
            sizes[partition] = size
        if record.timestamp == NO_TIMESTAMP:
            record = msgspec.structs.replace(record, timestamp=at_ms)  # noqa: PLW2901
        chosen[partition][-1].append(record)
    for partition, groups in chosen.items():
        yield partition, [_packed(group) for group in groups]


def _packed(records: Sequence[Record]) -> PackedBatch:
    body = encode_batch(records)[HEADER_BYTES:]
    packed = lz4_frame(body) if len(body) >= COMPRESSED_BYTES_MIN else body
    times_ms = records[0].timestamp, max(record.timestamp for record in records)
    return PackedBatch(packed, len(records), packed is not body, times_ms)


def hashes(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Kafka's murmur2 of each key, not negative: that of ``client/partitioner.py`` for a column."""
    lengths, (data, begins) = _lengths(keys), _contents(keys)
    hashed: Any = SEED ^ lengths.astype(np.uint32)
    padded = np.frombuffer(data + bytes(4), np.uint8)
    words = np.ndarray(len(padded) - 3, "<u4", buffer=padded, strides=(1,))
    whole = lengths >> 2
    for number in range(int(whole.max(initial=0))):
        longer = np.flatnonzero(whole > number)
        word: Any = words[begins[longer] + 4 * number] * FACTOR
        word = (word ^ word >> 24) * FACTOR
        hashed[longer] = hashed[longer] * FACTOR ^ word
    rest = lengths & 3
    unaligned = np.flatnonzero(rest)
    mask = (np.uint32(1) << (8 * rest[unaligned]).astype(np.uint32)) - np.uint32(1)
    tail = words[begins[unaligned] + 4 * whole[unaligned]] & mask
    hashed[unaligned] = (hashed[unaligned] ^ tail) * FACTOR
    hashed = (hashed ^ hashed >> 13) * FACTOR
    result: npt.NDArray[np.uint32] = (hashed ^ hashed >> 15) & np.uint32(0x7FFFFFFF)
    return result


def _body(keys: pa.Array, values: pa.Array) -> bytes:
    """Records one after the other: length, attributes, no timestamp, index, key, value, no headers."""
    count = len(keys)
    pieces = [_indexes()[:count], *_with_lengths(keys), *_with_lengths(values)]
    sizes: Any = 3 + sum(_lengths(piece) for piece in pieces)
    joined = pc.binary_join_element_wise(_varints(sizes), PLAIN, *pieces, NO_HEADERS, NOTHING)
    bounds = np.frombuffer(joined.buffers()[1], np.int64)
    return memoryview(joined.buffers()[2])[bounds[joined.offset] : bounds[joined.offset + count]].tobytes()


def _with_lengths(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The encoded lengths of texts, and the texts."""
    if not texts.null_count:
        return _varints(_lengths(texts)), texts
    lengths = _zigzag(_lengths(texts))
    lengths[_nulls(texts)] = NULL
    return _unsigned(lengths), pc.coalesce(texts, NOTHING)


@cache
def _indexes() -> pa.Array:
    """The indexes of records in a batch, encoded."""
    return _varints(np.arange(BATCH_RECORDS))


def _varints(numbers: Int64s) -> pa.Array:
    return _unsigned(_zigzag(numbers))


def _zigzag(numbers: Int64s) -> Int64s:
    return numbers.astype(np.int64) << 1


def _unsigned(numbers: Int64s) -> pa.Array:
    """Numbers that are not negative in groups of seven bits, the lowest first."""
    largest = int(numbers.max(initial=0))
    if largest < 1 << 7:
        return _binaries(np.arange(len(numbers) + 1), numbers.astype(np.uint8))
    width = -(-largest.bit_length() // 7)
    groups = numbers[:, None] >> (7 * np.arange(width))
    used = np.ones(groups.shape, bool)
    used[:, 1:] = groups[:, 1:] > 0
    cells = (groups & 0x7F).astype(np.uint8)
    cells[:, :-1] |= used[:, 1:].astype(np.uint8) << 7
    bounds = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=bounds[1:])
    return _binaries(bounds, cells[used])


def _lengths(texts: pa.Array) -> Int64s:
    """The length of each text; 0 for a null."""
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(bounds)
    if texts.null_count:
        lengths[_nulls(texts)] = 0
    return lengths


def _nulls(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Which texts are null; only for a column with nulls."""
    valid: npt.NDArray[np.uint8] = np.unpackbits(
        np.frombuffer(texts.buffers()[0], np.uint8), bitorder="little"
    )
    nulls: npt.NDArray[np.bool_] = valid[texts.offset : texts.offset + len(texts)] == 0
    return nulls


def _contents(texts: pa.Array) -> tuple[bytes, Int64s]:
    """The bytes of all texts, and where each text begins in them."""
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = memoryview(texts.buffers()[2] or b"")
    return data[bounds[0] : bounds[-1]].tobytes(), bounds[:-1] - bounds[0]


def _binaries(bounds: Int64s, data: Any, validity: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(BYTES, len(bounds) - 1, [validity, pa.py_buffer(bounds), pa.py_buffer(data)])


def _fixed(text: bytes) -> pa.Scalar:
    """A text that is the same in all rows."""
    return _binaries(np.array([0, len(text)]), text)[0]


PLAIN, NO_HEADERS, NOTHING = map(_fixed, (b"\0\0", b"\0", b""))
"""Between the length and the index of a record; at its end; between the joined columns."""
