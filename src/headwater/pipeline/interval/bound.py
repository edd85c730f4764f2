"""The common part of joins within a time bound: sorted rows, matching pairs, and places in the state.

A left row at time T and a right row with the same key match if the right one is from ``T - before`` to ``T +
after``, both inclusive. So a left row may have matches up to ``T + after``, and a right row at T up to ``T +
before``. Once the horizon has passed that time, the row is forgotten.

    l BUCKET DIGEST TIME ROW → KEY …      a row of the left
    r BUCKET DIGEST TIME ROW → KEY …      a row of the right

BUCKET is an interval of time as long as the bound, DIGEST identifies the key and ROW the row. Rows of a key
that are near a time are in two buckets, next to each other, and the rows to forget come first: no time-outs
are stored in addition.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import UsageError
from headwater.pipeline.arrow.sort_keys import by_bytes, in_order
from headwater.pipeline.operator.event_rows import TIMES
from headwater.pipeline.operator.two_inputs import LEFT, RIGHT
from headwater.pipeline.state.contract import State, Stretch
from headwater.pipeline.state.key_prefix import owned
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = [
    "EARLIEST",
    "LATEST",
    "Batch",
    "Bound",
    "Flags",
    "Found",
    "Numbers",
    "Shelf",
    "Side",
    "match_ranges",
    "pairs",
    "read_batch",
]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
EARLIEST, LATEST = -(1 << 62), 1 << 62
DIGEST_BYTES = 16
PLACE_BYTES = 33
ENTRY_BYTES = 41
_unsigned = struct.Struct(">Q")


class Bound(msgspec.Struct, frozen=True):
    """How far a right row may be before and after a left one, and the length of a bucket, in microseconds."""

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
        """The parts of the state with the rows of the left, and of the right."""
        return Shelf(b"l", self.of_left, self.bucket_us), Shelf(b"r", self.of_right, self.bucket_us)


class Side(NamedTuple):
    """The rows of one input that can have a match, sorted by key, time and bytes."""

    rows: pa.Table
    key: Numbers
    """The number of each row's key."""
    time: Numbers
    lone: pa.Table
    """Rows without key or time, which match nothing."""


class Batch(NamedTuple):
    """The rows of a batch. Keys are numbered in the order of their digests."""

    keys: list[bytes]
    """The keys in the form in which values begin with them (``pipeline/state/key_prefix.py``)."""
    digests: npt.NDArray[np.uint8]
    """Sixteen bytes for each key."""
    left: Side
    right: Side


def read_batch(rows: pa.Table, times: tuple[str, str]) -> Batch:
    """The rows of both inputs (``pipeline/operator/two_inputs.py``).

    UsageError for a retracted row: its matches are not undone.
    """
    rows = rows.combine_chunks()
    if pc.any(pc.less(rows.column(WEIGHT), 1)).as_py():
        raise UsageError(
            "a join within a time bound has received a retracted row", expected="rows of streams"
        )
    encoded = rows.column("_key").cast(pa.binary()).combine_chunks().dictionary_encode()
    digests = _digests(encoded.dictionary)
    order = np.lexsort(digests.view(">u8").T[::-1])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    key = rank[encoded.indices.to_numpy()]
    on = [pc.is_valid(rows.column(name)) for name in rows.column_names if name.startswith("_on")]
    has_key = reduce(pc.and_, on).to_numpy()
    left, right = (
        _side(rows.column(name).combine_chunks(), key, has_key, time)
        for name, time in zip((LEFT, RIGHT), times, strict=True)
    )
    return Batch(owned(encoded.dictionary.take(pa.array(order))), digests[order], left, right)


def _digests(keys: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    """Sixteen bytes for each key: the key itself and its length if it is short, otherwise a hash."""
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


def _side(column: pa.StructArray, key: Numbers, has_key: Flags, time: str) -> Side:
    here = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
    rows = pa.Table.from_struct_array(column.take(pa.array(here)))
    at = rows.column(time).cast(TIMES).cast(pa.int64()).combine_chunks()
    can_match = has_key[here] & pc.is_valid(at).to_numpy(zero_copy_only=False)
    some, lone = np.flatnonzero(can_match), np.flatnonzero(~can_match)
    key, times = key[here][some], pc.fill_null(at, 0).to_numpy(zero_copy_only=False)[some]
    candidates = rows.take(pa.array(some)) if len(lone) else rows
    order = in_order(candidates, key, times)
    lone_rows = by_bytes(rows.take(pa.array(lone)))
    return Side(candidates.take(pa.array(order)), key[order], times[order], lone_rows)


# ---- matches -------------------------------------------------------------------------------------------


def match_ranges(
    key: Numbers, low: Numbers, high: Numbers, other_key: Numbers, other_time: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """For each row, the others with its key and a time from ``low`` to ``high``.

    Returns the start and end of a range of others for each row, and the order of the others to which the
    ranges refer.
    """
    n, total = len(key), len(key) + len(other_key)
    what = np.repeat(np.array([0, 1, 2], np.int8), (n, len(other_key), n))
    times = np.concatenate([low, other_time, high])
    order = np.lexsort((what, times, np.concatenate([key, other_key, key])))
    is_other = what[order] == 1
    seen = np.empty(len(order), np.int64)
    seen[order] = np.cumsum(is_other)
    return seen[:n], seen[total:], order[is_other] - n


def pairs(
    key: Numbers, low: Numbers, high: Numbers, other_key: Numbers, other_time: Numbers
) -> tuple[Numbers, Numbers]:
    """All matching pairs, as places of the rows and of the others."""
    start, end, order = match_ranges(key, low, high, other_key, other_time)
    count = end - start
    ours = np.repeat(np.arange(len(key)), count)
    theirs = np.arange(len(ours)) + np.repeat(start - (np.cumsum(count) - count), count)
    return ours, order[theirs]


# ---- places in the state -------------------------------------------------------------------------------


class Found(NamedTuple):
    """Entries of a shelf, with the numbers of their keys."""

    key: list[int]
    entries: list[bytes]
    values: list[bytes]


class Shelf(NamedTuple):
    """The rows of one input in the state. ``reach``: how far before and after a row its matches may be."""

    letter: bytes
    reach: tuple[int, int]
    bucket_us: int

    def due(self, horizon: int) -> int:
        """The first bucket that is not to be forgotten."""
        return (max(horizon, EARLIEST) - self.reach[1]) // self.bucket_us

    def forgotten(self, state: State, horizon: int) -> Iterator[bytes]:
        """The entries that cannot have a match any more."""
        for entry, _ in state.between(self.letter, self._start(self.due(horizon))):
            yield entry

    def open(self, state: State, added: Numbers, moment: Moment) -> int | None:
        """The watermark at which the first bucket will be forgotten, once rows with these times are added."""
        due = self.due(moment.horizon)
        first = next(state.between(self._start(due), self._start(LATEST // self.bucket_us)), None)
        buckets = [] if first is None else [_unsigned.unpack_from(first[0], 1)[0] - (1 << 63)]
        if len(added):
            buckets.append(int(added.min()) // self.bucket_us)
        if not buckets:
            return None
        ends: int = (min(buckets) + 1) * self.bucket_us
        return ends + self.reach[1] + moment.watermark - moment.horizon

    def still(self, time: Numbers, horizon: int) -> Numbers:
        """The places of the rows that are kept; in batch there are none, since nothing follows."""
        return np.flatnonzero(time // self.bucket_us >= self.due(horizon))

    def entries(
        self, digests: npt.NDArray[np.uint8], key: Numbers, time: Numbers, texts: Sequence[bytes]
    ) -> list[bytes]:
        """The entries of rows."""
        out = np.empty((len(key), ENTRY_BYTES), np.uint8)
        self._write_place(out, digests[key], time // self.bucket_us, time)
        rows = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
        out[:, PLACE_BYTES:] = np.frombuffer(rows, np.uint8).reshape(-1, 8)
        return _rows(out)

    def places(self, digests: npt.NDArray[np.uint8], key: Numbers, time: Numbers) -> list[bytes]:
        """The entries of rows of which only key and time are kept."""
        out = np.empty((len(key), PLACE_BYTES), np.uint8)
        self._write_place(out, digests[key], time // self.bucket_us, time)
        return _rows(out)

    def near(
        self,
        state: State,
        digests: npt.NDArray[np.uint8],
        side: Side,
        reach: tuple[int, int],
        horizon: int,
    ) -> Found:
        """The entries that match rows of the other side, each once, even if it has several matches.

        The rows are sorted.
        """
        found = Found([], [], [])
        if not len(side.key):
            return found
        before, after = reach
        begins = np.ones(len(side.key), bool)
        begins[1:] = (side.key[1:] != side.key[:-1]) | (side.time[1:] - side.time[:-1] > before + after)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(begins)) - 1
        span = side.time[first] - before, side.time[last] + after
        owner, bounds = self.bounds(state, digests, side.key[first], span, horizon, limit=LATEST)
        for key, stretch in zip(owner.tolist(), state.stretches(bounds), strict=True):
            for entry, value in stretch:
                found.key.append(key)
                found.entries.append(entry)
                found.values.append(value)
        return found

    def bounds(
        self,
        state: State,
        digests: npt.NDArray[np.uint8],
        key: Numbers,
        span: tuple[Numbers, Numbers],
        horizon: int,
        *,
        limit: int,
    ) -> tuple[Numbers, list[Stretch]]:
        """The ranges of the entries of keys within times, with the number of the key of each.

        Empty buckets are left out.

        A key has a range in each bucket; ``limit`` is the greatest number of entries to read of a range.
        """
        low, high = span
        begin = np.maximum(low // self.bucket_us, self.due(horizon))
        count = np.maximum(high // self.bucket_us + 1 - begin, 0)
        of = np.repeat(np.arange(len(key)), count)
        bucket = np.arange(len(of)) + np.repeat(begin - (np.cumsum(count) - count), count)
        unique, which = np.unique(bucket, return_inverse=True)
        filled = np.array([self._is_filled(state, number) for number in unique.tolist()], bool)[which]
        of, bucket = of[filled], bucket[filled]
        starts = np.empty((len(of), PLACE_BYTES), np.uint8)
        self._write_place(starts, digests[key[of]], bucket, low[of])
        ends = starts.copy()
        ends[:, PLACE_BYTES - 8 :] = _sortable(high[of] + 1)
        return key[of], list(zip(_rows(starts), _rows(ends), repeat(limit)))

    def _write_place(
        self,
        out: npt.NDArray[np.uint8],
        digests: npt.NDArray[np.uint8],
        bucket: Numbers,
        time: Numbers,
    ) -> None:
        out[:, 0] = self.letter[0]
        out[:, 1:9] = _sortable(bucket)
        out[:, 9:25] = digests
        out[:, 25:33] = _sortable(time)

    def _is_filled(self, state: State, bucket: int) -> bool:
        return next(state.between(self._start(bucket), self._start(bucket + 1)), None) is not None

    def _start(self, bucket: int) -> bytes:
        return self.letter + _unsigned.pack(min(max(bucket + (1 << 63), 0), (1 << 64) - 1))


def _sortable(numbers: Numbers) -> npt.NDArray[np.uint8]:
    """Numbers as bytes that sort as the numbers do, negative ones first."""
    return (numbers ^ np.int64(-(1 << 63))).astype(">i8").view(np.uint8).reshape(-1, 8)


def _rows(matrix: npt.NDArray[np.uint8]) -> list[bytes]:
    """The rows of a matrix of bytes."""
    data, width = matrix.tobytes(), matrix.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]
