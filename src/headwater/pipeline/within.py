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
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import UsageError
from headwater.pipeline.operator import Moment, State, Stretch
from headwater.pipeline.owned import owned
from headwater.pipeline.pair import LEFT, RIGHT
from headwater.pipeline.sorting import by_bytes, in_order
from headwater.pipeline.windowed import TIMES
from headwater.pipeline.wire import WEIGHT

__all__ = ["Batch", "Bound", "Shelf", "Side", "met", "pairs", "read"]

EARLIEST, LATEST = -(1 << 62), 1 << 62
DIGEST_BYTES = 16
PLACE_BYTES = 33
ENTRY_BYTES = 41
_unsigned = struct.Struct(">Q")


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

    @property
    def shelves(self) -> tuple["Shelf", "Shelf"]:
        """Where the rows of the left and of the right stand."""
        return Shelf(b"l", self.of_left, self.bucket_us), Shelf(b"r", self.of_right, self.bucket_us)


class Side(NamedTuple):
    """The rows of one input that can meet others, in the order of key and time, then of their bytes; and those without key or time."""

    rows: pa.Table
    key: Any
    """The number of each row's key."""
    time: Any
    lone: pa.Table


class Batch(NamedTuple):
    """The rows of a batch. ``keys`` are in the order of their digests."""

    keys: list[bytes]
    """As they stand before the values that they own (``owned.py``)."""
    digests: Any
    """Sixteen bytes for each."""
    left: Side
    right: Side


def read(rows: pa.Table, times: tuple[str, str]) -> Batch:
    """The rows of both inputs (``pair.py``). UsageError when one is taken back: what it has met is not undone."""
    rows = rows.combine_chunks()
    if pc.any(pc.less(rows.column(WEIGHT), 1)).as_py():
        raise UsageError("rows are matched within a time that are taken back later", expected="two streams")
    encoded = rows.column("_key").cast(pa.binary()).combine_chunks().dictionary_encode()
    digests = _digests(encoded.dictionary)
    order = np.lexsort(digests.view(">u8").T[::-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    key = rank[encoded.indices.to_numpy()]
    on = [pc.is_valid(rows.column(name)) for name in rows.column_names if name.startswith("_on")]
    joins = reduce(pc.and_, on).to_numpy()
    left, right = (
        _side(rows.column(name).combine_chunks(), key, joins, time)
        for name, time in zip((LEFT, RIGHT), times, strict=True)
    )
    return Batch(owned(encoded.dictionary.take(pa.array(order))), digests[order], left, right)


def _digests(keys: pa.BinaryArray) -> Any:
    """What stands for a key, in sixteen bytes: itself and its length if it is short."""
    lengths = pc.binary_length(keys).to_numpy()
    out = np.zeros((len(keys), DIGEST_BYTES), np.uint8)
    out[:, -1] = np.minimum(lengths, DIGEST_BYTES)
    short = lengths < DIGEST_BYTES
    texts = keys.filter(pa.array(short))
    sizes = lengths[short]
    starts = np.cumsum(sizes) - sizes
    column = np.arange(sizes.sum()) - np.repeat(starts, sizes)
    data = np.frombuffer(b"".join(texts.to_pylist()), np.uint8)
    out[np.repeat(np.flatnonzero(short), sizes), column] = data
    for number in np.flatnonzero(~short).tolist():
        digest = hashlib.blake2b(keys[number].as_py(), digest_size=DIGEST_BYTES - 1).digest()
        out[number, :-1] = np.frombuffer(digest, np.uint8)
    return out


def _side(column: pa.StructArray, key: Any, joins: Any, time: str) -> Side:
    here = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    rows = pa.Table.from_struct_array(column.take(pa.array(here)))
    at = rows.column(time).cast(TIMES).cast(pa.int64()).combine_chunks()
    meets = joins[here] & pc.is_valid(at).to_numpy(zero_copy_only=False)
    some, lone = np.flatnonzero(meets), np.flatnonzero(~meets)
    key, times = key[here][some], pc.fill_null(at, 0).to_numpy(zero_copy_only=False)[some]
    meeting = rows.take(pa.array(some)) if len(lone) else rows
    order = in_order(meeting, key, times)
    alone = by_bytes(rows.take(pa.array(lone)))
    return Side(meeting.take(pa.array(order)), key[order], times[order], alone)


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

    def open(self, state: State, added: Any, moment: Moment) -> int | None:
        """The watermark at which the first bucket that is left will be forgotten, when rows with these times are added."""
        due = self.due(moment.horizon)
        found = next(state.between(self._start(due), self._start(LATEST // self.bucket_us)), None)
        buckets = [] if found is None else [_unsigned.unpack_from(found[0], 1)[0] - (1 << 63)]
        if len(added):
            buckets.append(int(added.min()) // self.bucket_us)
        if not buckets:
            return None
        ends: int = (min(buckets) + 1) * self.bucket_us
        return ends + self.reach[1] + moment.watermark - moment.horizon

    def still(self, time: Any, horizon: int) -> Any:
        """Which rows with such times are kept; in batch, where nothing comes any more, none."""
        return np.flatnonzero(time // self.bucket_us >= self.due(horizon))

    def entries(self, digests: Any, key: Any, time: Any, texts: Sequence[bytes]) -> list[bytes]:
        """Where rows stand."""
        out = np.empty((len(key), ENTRY_BYTES), np.uint8)
        self._place(out, digests[key], time // self.bucket_us, time)
        rows = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
        out[:, PLACE_BYTES:] = np.frombuffer(rows, np.uint8).reshape(-1, 8)
        return _cut(out)

    def places(self, digests: Any, key: Any, time: Any) -> list[bytes]:
        """Where rows stand of which nothing but key and time is kept."""
        out = np.empty((len(key), PLACE_BYTES), np.uint8)
        self._place(out, digests[key], time // self.bucket_us, time)
        return _cut(out)

    def near(self, state: State, digests: Any, side: Side, reach: tuple[int, int], horizon: int) -> Found:
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
        owner, bounds = self.bounds(state, digests, side.key[first], span, horizon, most=LATEST)
        for key, part in zip(owner.tolist(), state.stretches(bounds), strict=True):
            for entry, value in part:
                found.key.append(key)
                found.entries.append(entry)
                found.values.append(value)
        return found

    def bounds(
        self, state: State, digests: Any, key: Any, span: tuple[Any, Any], horizon: int, *, most: int
    ) -> tuple[Any, list[Stretch]]:
        """Where at most so many entries of keys stand that are from one time to another; with the number of the key for each.

        Empty buckets are left out.
        """
        low, high = span
        begin = np.maximum(low // self.bucket_us, self.due(horizon))
        many = np.maximum(high // self.bucket_us + 1 - begin, 0)
        of = np.repeat(np.arange(len(key)), many)
        bucket = np.arange(len(of)) + np.repeat(begin - (np.cumsum(many) - many), many)
        unique, which = np.unique(bucket, return_inverse=True)
        there = np.array([self._filled(state, number) for number in unique.tolist()], bool)[which]
        of, bucket = of[there], bucket[there]
        starts = np.empty((len(of), PLACE_BYTES), np.uint8)
        self._place(starts, digests[key[of]], bucket, low[of])
        ends = starts.copy()
        ends[:, PLACE_BYTES - 8 :] = _ordered(high[of] + 1)
        return key[of], list(zip(_cut(starts), _cut(ends), repeat(most)))

    def _place(self, out: Any, digests: Any, bucket: Any, time: Any) -> None:
        out[:, 0] = self.letter[0]
        out[:, 1:9] = _ordered(bucket)
        out[:, 9:25] = digests
        out[:, 25:33] = _ordered(time)

    def _filled(self, state: State, bucket: int) -> bool:
        return next(state.between(self._start(bucket), self._start(bucket + 1)), None) is not None

    def _start(self, bucket: int) -> bytes:
        return self.letter + _unsigned.pack(min(max(bucket + (1 << 63), 0), (1 << 64) - 1))


def _ordered(numbers: Any) -> Any:
    """Numbers as bytes, negative ones first."""
    return (numbers ^ np.int64(-(1 << 63))).astype(">i8").view(np.uint8).reshape(-1, 8)


def _cut(rows: Any) -> list[bytes]:
    """The rows of a matrix of bytes."""
    data, width = rows.tobytes(), rows.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]
