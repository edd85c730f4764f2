"""Time chunks: rows that an operator keeps for a time, many in an entry, in the order of their times.

    LETTER DIGEST TIME NAME → KEY COUNT LENGTHS ROWS

DIGEST is of the key, so that all chunks of a key are adjacent, however long the key is. TIME is that of the
chunk's last row, or with ``first`` of its first one. New rows are added as new chunks: no existing chunk is
read or rewritten.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from headwater.pipeline.arrow import row_bytes
from headwater.pipeline.state import key_prefix
from headwater.pipeline.state.contract import State

__all__ = ["Chosen", "Chunk", "Loaded", "Made", "chunked", "found", "loaded", "time_of"]

ROWS_MAX = 4096
"""The maximum number of rows in a chunk, so that a range of time can be read without all rows of a key."""
BIAS = 1 << 63
_time = struct.Struct(">Q")
_count = struct.Struct("<I")
ITEM = np.dtype([("length", "<u4")])


class Chunk(NamedTuple):
    """A chunk of the key with this number."""

    number: int
    name: bytes
    value: bytes


class Loaded(NamedTuple):
    """The rows of some chunks: the number of the key and of the chunk of each."""

    rows: pa.Table
    number: Any
    chunk: Any


class Chosen(NamedTuple):
    """Rows in the order of key and time, with the number of the key of each and its time."""

    rows: pa.Table
    number: Any
    time: Any


class Made(NamedTuple):
    """New chunks, with the number of the key of each and its time."""

    entries: dict[bytes, bytes]
    numbers: list[int]
    times: list[int]


def time_of(name: bytes) -> int:
    """The time in a chunk's name."""
    time_us: int = _time.unpack_from(name, 17)[0]
    return time_us - BIAS


def found(
    state: State, letter: bytes, key: bytes, number: int, since_us: int | None = None
) -> Iterator[Chunk]:
    """The chunks of a key, from a time on, in order."""
    prefix = letter + _digest(key)
    start = prefix + (_time.pack(since_us + BIAS) if since_us is not None else b"")
    for name, value in state.between(start, prefix + b"\xff" * 9):
        yield Chunk(number, name, value)


def loaded(chunks: Sequence[Chunk], schema: pa.Schema) -> Loaded:
    values = [chunk.value for chunk in chunks]
    data, at = row_bytes.stacked(values)
    at = at + np.fromiter(map(key_prefix.value_start, values), np.int64, len(values))
    counts, _, begins = row_bytes.listed(data, at, ITEM)
    rows = row_bytes.unpack(data, begins, schema)
    numbers = np.array([chunk.number for chunk in chunks], np.int64)
    return Loaded(rows, np.repeat(numbers, counts), np.repeat(np.arange(len(chunks)), counts))


def chunked(
    state: State,
    taken: Mapping[bytes, bytes | None],
    letter: bytes,
    keys: Sequence[bytes],
    chosen: Chosen,
    *,
    first: bool = False,
) -> Made:
    """Rows as chunks. ``taken``: names that this batch has used already."""
    rows, number, time = chosen
    if not rows.num_rows:
        return Made({}, [], [])
    packed = row_bytes.pack(rows)
    _, bounds, data = packed.buffers()
    bounds, data = np.frombuffer(bounds, np.int64), data.to_pybytes()
    lengths = np.diff(bounds).astype(ITEM)
    begins = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
    ends = np.append(begins[1:], len(number))
    cuts = [
        (at, min(at + ROWS_MAX, end))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        for at in range(begin, end, ROWS_MAX)
    ]
    starts = np.array([start for start, _ in cuts], np.int64)
    stops = np.array([stop for _, stop in cuts], np.int64)
    times = time[starts if first else stops - 1].tolist()
    spans = zip(bounds[starts].tolist(), bounds[stops].tolist(), strict=True)
    numbers = number[starts].tolist()
    owners = key_prefix.owned(pa.array([keys[n] for n in numbers], pa.binary()))
    named_chunks: list[tuple[bytes, bytes]] = []
    for n, owner, time_us, cut, span in zip(numbers, owners, times, cuts, spans, strict=True):
        part = data[slice(*span)]
        name = letter + _digest(keys[n]) + _time.pack(time_us + BIAS) + crc32(part).to_bytes(4)
        named_chunks.append(
            (name, owner + _count.pack(cut[1] - cut[0]) + lengths[slice(*cut)].tobytes() + part)
        )
    named_chunks.sort()
    return Made(_named_apart(named_chunks, state, taken), numbers, times)


def _named_apart(
    named_chunks: Sequence[tuple[bytes, bytes]], state: State, taken: Mapping[bytes, bytes | None]
) -> dict[bytes, bytes]:
    """Gives equal chunks different names: rows that come a second time are kept a second time."""
    stored = state.get([name for name, _ in named_chunks])
    entries = dict(named_chunks)
    if len(entries) == len(named_chunks) and not stored and entries.keys().isdisjoint(taken):
        return entries
    entries = {}
    for name, value in named_chunks:
        own, again = name, 0
        while own in entries or own in taken or state.get([own]):
            again += 1
            own = name + again.to_bytes(2)
        entries[own] = value
    return entries


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
