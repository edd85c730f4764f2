"""Chunks: rows of a key that an operator keeps for a time, many to an entry, in the order of their times.

    LETTER DIGEST TIME NAME → LENGTH KEY ROWS

DIGEST is of the key, so that all chunks of a key stand together however long the key is. TIME is that of the chunk's last row, or with ``first`` of
its first one. What comes is added as chunks of its own: nothing that is kept has to be read or written again for it.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from headwater.pipeline import rowblock
from headwater.pipeline.operator import State

__all__ = ["Chosen", "Chunk", "Loaded", "Made", "chunked", "found", "loaded", "time_of"]

ROWS_MAX = 4096
"""Rows of a chunk, so that whoever looks for a stretch of time does not read all of a key."""
BIAS = 1 << 63
_time = struct.Struct(">Q")
_length = struct.Struct("<I")


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
    """Rows in the order of key and time, with the numbers of their keys and their times."""

    rows: pa.Table
    number: Any
    time: Any


class Made(NamedTuple):
    """New chunks, and of each the number of its key and its time."""

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
    data = [each.value[4 + _length.unpack_from(each.value)[0] :] for each in chunks]
    begins = [rowblock.starts(each) for each in data]
    counts = [len(each) for each in begins]
    shifts = np.concatenate(([0], np.cumsum([len(each) for each in data])))[:-1]
    places = np.array([at for each in begins for at in each], np.int64) + np.repeat(
        shifts.astype(np.int64), counts
    )
    rows = rowblock.unpack(b"".join(data), places, schema)
    numbers = np.array([each.number for each in chunks], np.int64)
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
    """Rows as chunks. ``taken``: names that this batch has given already."""
    rows, number, time = chosen
    if not rows.num_rows:
        return Made({}, [], [])
    data, bounds = rowblock.pack(rows)
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
    made: list[tuple[bytes, bytes]] = []
    for n, time_us, (start, stop) in zip(numbers, times, spans, strict=True):
        key, part = keys[n], data[start:stop]
        name = letter + _digest(key) + _time.pack(time_us + BIAS) + crc32(part).to_bytes(4)
        made.append((name, _length.pack(len(key)) + key + part))
    made.sort()
    return Made(_named_apart(made, state, taken), numbers, times)


def _named_apart(
    made: Sequence[tuple[bytes, bytes]], state: State, taken: Mapping[bytes, bytes | None]
) -> dict[bytes, bytes]:
    """Rows that come a second time are kept a second time."""
    known = state.get([name for name, _ in made])
    entries = dict(made)
    if len(entries) == len(made) and not known and entries.keys().isdisjoint(taken):
        return entries
    entries = {}
    for name, value in made:
        own, again = name, 0
        while own in entries or own in taken or state.get([own]):
            again += 1
            own = name + again.to_bytes(2)
        entries[own] = value
    return entries


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
