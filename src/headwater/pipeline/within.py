"""Within: what joins of two streams within a time bound share: the rows of a batch in order, who meets whom, and where rows stand in the state.

A left row at time T and a right row with the same key meet when the right one is from ``T - before`` to ``T + after``, both included. So a left row may
be met by right ones up to ``T + after``, and a right row at T by left ones up to ``T + before``: when the horizon is behind that, it is forgotten.

    l BUCKET DIGEST TIME ROW → KEY …      a row of the left
    r BUCKET DIGEST TIME ROW → KEY …      a row of the right

BUCKET is a stretch of time as long as the bound, DIGEST stands for the key and ROW for the row. Rows of a key that are near a time stand
together, in two buckets, and what is to be forgotten stands first: there are no time-outs beside the rows.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.operator import Moment, State
from headwater.pipeline.pair import LEFT, RIGHT
from headwater.pipeline.stored import Stored
from headwater.pipeline.windowed import TIMES

__all__ = ["Batch", "Bound", "Shelf", "Side", "key_of", "met", "pairs", "read", "row_digest", "valued"]

EARLIEST, LATEST = -(1 << 62), 1 << 62
PLACE_BYTES = 33
_unsigned = struct.Struct(">Q")
_length = struct.Struct(">I")


class Bound(msgspec.Struct, frozen=True):
    """How long before and after a left row the right one may be, in microseconds, and how long a bucket is."""

    before_us: int
    after_us: int
    bucket_us: int

    @property
    def of_left(self) -> tuple[int, int]:
        """How far before and after a left row the right ones may be."""
        return self.before_us, self.after_us

    @property
    def of_right(self) -> tuple[int, int]:
        """How far before and after a right row the left ones may be."""
        return self.after_us, self.before_us


class Side(NamedTuple):
    """The rows of one input that can meet others, in the order of key and time, then of their bytes; and those without key or time."""

    rows: pa.Table
    key: Any
    """The number of each row's key."""
    time: Any
    lone: pa.Table
    stored: Stored


class Batch(NamedTuple):
    """The rows of a batch. ``keys`` are in the order of their digests."""

    keys: list[bytes]
    digests: list[bytes]
    left: Side
    right: Side


def read(rows: pa.Table, times: tuple[str, str]) -> Batch:
    """The rows of both inputs (``pair.py``)."""
    rows = rows.combine_chunks()
    encoded = rows.column("_key").cast(pa.binary()).combine_chunks().dictionary_encode()
    keys = encoded.dictionary.to_pylist()
    digests = [hashlib.blake2b(key, digest_size=16).digest() for key in keys]
    order = sorted(range(len(keys)), key=digests.__getitem__)
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys))
    key = rank[encoded.indices.to_numpy()]
    on = [pc.is_valid(rows.column(name)) for name in rows.column_names if name.startswith("_on")]
    joins = reduce(pc.and_, on).to_numpy()
    left, right = (
        _side(rows.column(name).combine_chunks(), key, joins, time)
        for name, time in zip((LEFT, RIGHT), times, strict=True)
    )
    return Batch([keys[n] for n in order], [digests[n] for n in order], left, right)


def _side(column: pa.StructArray, key: Any, joins: Any, time: str) -> Side:
    here = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    rows = pa.Table.from_struct_array(column.take(pa.array(here)))
    stored = Stored(rows.schema)
    at = rows.column(time).cast(TIMES).cast(pa.int64()).combine_chunks()
    meets = joins[here] & pc.is_valid(at).to_numpy(zero_copy_only=False)
    some, lone = np.flatnonzero(meets), np.flatnonzero(~meets)
    key, times = key[here][some], pc.fill_null(at, 0).to_numpy(zero_copy_only=False)[some]
    order = np.lexsort((times, key))
    key, times, some = key[order], times[order], some[order]
    same = np.flatnonzero((key[1:] == key[:-1]) & (times[1:] == times[:-1]))
    _settle(rows, stored, some, same)
    alone = rows.take(pa.array(lone))
    if len(lone) > 1:
        texts = stored.encoded(alone)
        alone = alone.take(pa.array(sorted(range(len(texts)), key=texts.__getitem__)))
    return Side(rows.take(pa.array(some)), key, times, alone, stored)


def _settle(rows: pa.Table, stored: Stored, order: Any, same: Any) -> None:
    """Rows with the same key and time get the order of their bytes. ``same``: each place whose next row has the same."""
    if not len(same):
        return
    breaks = np.flatnonzero(np.diff(same) > 1) + 1
    for run in np.split(same, breaks):
        start, end = int(run[0]), int(run[-1]) + 2
        texts = stored.encoded(rows.take(pa.array(order[start:end])))
        order[start:end] = order[start:end][sorted(range(len(texts)), key=texts.__getitem__)]


# ---- who meets whom ------------------------------------------------------------------------------------


def met(key: Any, low: Any, high: Any, key_r: Any, time_r: Any) -> tuple[Any, Any, Any]:
    """For each row which others with its key are from ``low`` to ``high``: a stretch of the others, from and to, in the order that comes last."""
    n, total = len(key), len(key) + len(key_r)
    what = np.repeat(np.array([0, 1, 2], np.int8), (n, len(key_r), n))
    order = np.lexsort((what, np.concatenate([low, time_r, high]), np.concatenate([key, key_r, key])))
    is_other = what[order] == 1
    seen = np.empty(len(order), np.int64)
    seen[order] = np.cumsum(is_other)
    return seen[:n], seen[total:], order[is_other] - n


def pairs(key: Any, low: Any, high: Any, key_r: Any, time_r: Any) -> tuple[Any, Any]:
    """All pairs that meet, as places of both."""
    start, end, order = met(key, low, high, key_r, time_r)
    many = end - start
    ours = np.repeat(np.arange(len(key)), many)
    theirs = np.arange(len(ours)) + np.repeat(start - (np.cumsum(many) - many), many)
    return ours, order[theirs]


# ---- where rows stand ----------------------------------------------------------------------------------


class Found(NamedTuple):
    """Entries of a shelf, with the number of their key."""

    key: list[int]
    entries: list[bytes]
    values: list[bytes]


class Shelf(NamedTuple):
    """The rows of one input in the state. ``reach``: how far before and after them rows of the other one meet them."""

    letter: bytes
    reach: tuple[int, int]
    bucket_us: int

    def due(self, horizon: int) -> int:
        """The first bucket that is not to be forgotten."""
        return (max(horizon, EARLIEST) - self.reach[1]) // self.bucket_us

    def forgotten(self, state: State, horizon: int) -> Iterator[bytes]:
        """The entries that nothing can meet any more."""
        for entry, _ in state.between(self.letter, self._start(self.due(horizon))):
            yield entry

    def open(self, state: State, changes: Mapping[bytes, bytes | None], moment: Moment) -> int | None:
        """The watermark at which the first bucket that is left will be forgotten."""
        begin = self._start(self.due(moment.horizon))
        still = (
            entry
            for entry, _ in state.between(begin, self._start(LATEST // self.bucket_us))
            if changes.get(entry, b"") is not None
        )
        added = (entry for entry, value in changes.items() if entry[:1] == self.letter and value is not None)
        first = min(filter(None, (next(still, None), min(added, default=None))), default=None)
        if first is None:
            return None
        number: int = _unsigned.unpack_from(first, 1)[0] - (1 << 63)
        return (number + 1) * self.bucket_us + self.reach[1] + moment.watermark - moment.horizon

    def places(self, digests: Sequence[bytes], key: Any, time: Any) -> list[bytes]:
        """Where rows stand, but for what stands for the row itself."""
        out = np.empty((len(key), PLACE_BYTES), np.uint8)
        out[:, 0] = self.letter[0]
        out[:, 1:9] = _ordered(time // self.bucket_us)
        out[:, 9:25] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)[key]
        out[:, 25:] = _ordered(time)
        data = out.tobytes()
        return [data[at : at + PLACE_BYTES] for at in range(0, len(data), PLACE_BYTES)]

    def near(
        self, state: State, digests: Sequence[bytes], side: Side, reach: tuple[int, int], horizon: int
    ) -> Found:
        """The entries that rows of the other side meet; each once, though several may meet it. Those rows are in order."""
        found = Found([], [], [])
        if not len(side.key):
            return found
        before, after = reach
        begins = np.ones(len(side.key), bool)
        begins[1:] = (side.key[1:] != side.key[:-1]) | (side.time[1:] - side.time[:-1] > before + after)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(begins)) - 1
        span = side.time[first] - before, side.time[last] + after
        owner, bounds = self.bounds(state, digests, side.key[first], span, horizon)
        for key, part in zip(owner, state.ranges(bounds), strict=True):
            for entry, value in part:
                found.key.append(key)
                found.entries.append(entry)
                found.values.append(value)
        return found

    def bounds(
        self, state: State, digests: Sequence[bytes], key: Any, span: tuple[Any, Any], horizon: int
    ) -> tuple[list[int], list[tuple[bytes, bytes]]]:
        """Where entries of keys stand that are from one time to another; with the number of the key for each. Empty buckets are left out."""
        width, due, (low, high) = self.bucket_us, self.due(horizon), span
        there: dict[int, bytes | None] = {}
        owner: list[int] = []
        bounds: list[tuple[bytes, bytes]] = []
        stretches = zip(
            key.tolist(),
            (low // width).tolist(),
            (high // width).tolist(),
            _texts(low),
            _texts(high + 1),
            strict=True,
        )
        for number, begin, end, start, stop in stretches:
            for bucket in range(max(begin, due), end + 1):
                if bucket not in there:
                    there[bucket] = self._filled(state, bucket)
                if (place := there[bucket]) is not None:
                    place += digests[number]
                    owner.append(number)
                    bounds.append((place + start, place + stop))
        return owner, bounds

    def _filled(self, state: State, bucket: int) -> bytes | None:
        """What entries of a bucket begin with; None when there are none."""
        start = self._start(bucket)
        found = next(state.between(start, self._start(bucket + 1)), None)
        return start if found is not None else None

    def _start(self, bucket: int) -> bytes:
        return self.letter + _unsigned.pack(min(max(bucket + (1 << 63), 0), (1 << 64) - 1))


def _ordered(numbers: Any) -> Any:
    """Numbers as bytes, negative ones first."""
    return (numbers ^ np.int64(-(1 << 63))).astype(">i8").view(np.uint8).reshape(-1, 8)


def _texts(numbers: Any) -> list[bytes]:
    data = _ordered(numbers).tobytes()
    return [data[start:end] for start, end in pairwise(range(0, len(data) + 1, 8))]


def row_digest(row: bytes) -> bytes:
    """What stands for a row where it stands."""
    return hashlib.blake2b(row, digest_size=8).digest()


def valued(key: bytes, value: bytes = b"") -> bytes:
    """A value with the key that owns it (``layout.py``)."""
    return _length.pack(len(key)) + key + value


def key_of(value: bytes) -> tuple[bytes, int]:
    """The key that owns a value, and where the rest begins."""
    end = 4 + int.from_bytes(value[:4])
    return value[4:end], end
