"""Chunks: rows of a key that an operator keeps for a time, many to an entry, in the order of their times.

    LETTER DIGEST TIME NAME → LENGTH KEY ROWS

DIGEST is of the key, so that all chunks of a key stand together however long the key is. TIME is that of the chunk's last row, or with ``first`` of
its first one. What comes is added as chunks of its own: nothing that is kept has to be read or written again for it.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from headwater.pipeline import packed
from headwater.pipeline.operator import State

__all__ = ["Chunk", "Loaded", "chunked", "found", "loaded", "time_of"]

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
    begins = [packed.starts(each) for each in data]
    counts = [len(each) for each in begins]
    shifts = np.concatenate(([0], np.cumsum([len(each) for each in data])))[:-1]
    places = np.array([at for each in begins for at in each], np.int64) + np.repeat(
        shifts.astype(np.int64), counts
    )
    rows = packed.unpack(b"".join(data), places, schema)
    numbers = np.array([each.number for each in chunks], np.int64)
    return Loaded(rows, np.repeat(numbers, counts), np.repeat(np.arange(len(chunks)), counts))


def chunked(
    state: State,
    taken: Iterable[bytes],
    letter: bytes,
    keys: Sequence[bytes],
    rows: pa.Table,
    number: Any,
    time: Any,
    *,
    first: bool = False,
) -> list[Chunk]:
    """Rows in the order of key and time as chunks. ``taken``: names that this batch has given already."""
    if not rows.num_rows:
        return []
    data, bounds = packed.pack(rows)
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
    made = []
    for n, time_us, (start, stop) in zip(number[starts].tolist(), times, spans, strict=True):
        key, part = keys[n], data[start:stop]
        name = letter + _digest(key) + _time.pack(time_us + BIAS) + crc32(part).to_bytes(4)
        made.append(Chunk(n, name, _length.pack(len(key)) + key + part))
    return _named_apart(made, state, set(taken))


def _named_apart(made: list[Chunk], state: State, taken: set[bytes]) -> list[Chunk]:
    """Rows that come a second time are kept a second time."""
    taken |= state.get(sorted(each.name for each in made)).keys()
    out = []
    for each in made:
        name, again = each.name, 0
        while name in taken:
            again += 1
            name = each.name + again.to_bytes(2)
            taken |= state.get([name]).keys()
        taken.add(name)
        out.append(each._replace(name=name))
    return out


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
