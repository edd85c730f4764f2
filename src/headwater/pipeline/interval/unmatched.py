"""The rows of the left without a match on the right, each emitted once no match can arrive any more.

A row waits until the horizon has passed its time and the bound, so that no straggler can match it any more.
Operators downstream use a watermark that is earlier by as much (``output_delay``), so that their windows wait
for these rows.

    t TIME DIGEST ROW           → KEY COUNT BYTES     a waiting row of the left, and its number of copies
    l BUCKET DIGEST TIME ROW    → KEY                 the same row, found by its key (``bound.py``)
    r BUCKET DIGEST TIME        → KEY                 the time of a row of the right
"""

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.pipeline.arrow.row_bytes import pack, stacked, unpack
from headwater.pipeline.interval.bound import (
    EARLIEST,
    LATEST,
    Batch,
    Bound,
    Numbers,
    Shelf,
    Side,
    match_ranges,
    read_batch,
)
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.two_inputs import LEFT
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.key_prefix import value_start
from headwater.pipeline.state.layouts import OWNED
from headwater.pipeline.time.watermark import Moment

__all__ = ["Unmatched"]

_count = struct.Struct(">I")
_unsigned = struct.Struct(">Q")


class Unmatched(Spec, frozen=True, kw_only=True):
    """Unchanged rows of the left. State: the rows that wait, and the times of the right."""

    key: tuple[str, ...]
    time: tuple[str, str]
    bound: Bound
    kind: str = "unmatched"
    timed: str = "watermark"
    layout: str = OWNED

    def schema(self, rows: StructType) -> StructType:
        return StructType(rows[LEFT].dataType.fields)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        batch = read_batch(rows, self.time)
        left, right = self.bound.shelves
        changes: dict[bytes, bytes | None] = {}
        matched = left.near(state, batch.digests, batch.right, self.bound.of_right, moment.horizon).entries
        changes.update(dict.fromkeys(matched))
        changes.update(dict.fromkeys(map(_waiting_entry, matched)))
        unmatched = self._unmatched(batch, state, moment.horizon)
        due = batch.left.time[unmatched] < moment.horizon - self.bound.after_us
        texts: list[bytes] = []
        for entry, value in _stretch(state, EARLIEST, moment.horizon - self.bound.after_us):
            at = value_start(value)
            texts += [value[at + _count.size :]] * _count.unpack_from(value, at)[0]
            changes[entry] = None
            changes[left.letter + self._bucket(entry) + entry[9:25] + entry[1:9] + entry[25:]] = None
        changes.update(_waiting_rows(left, batch, unmatched[~due], state))
        changes.update(_right_times(right, batch, batch.right, moment.horizon))
        changes.update(dict.fromkeys(right.forgotten(state, moment.horizon)))
        out = [
            unpack(*stacked(texts), batch.left.rows.schema),
            batch.left.rows.take(pa.array(unmatched[due])),
            batch.left.lone,
        ]
        changes = dict(sorted(changes.items()))
        opens = [
            right.open(state, batch.right.time[right.still(batch.right.time, moment.horizon)], moment),
            self._next_due(state, changes, batch.left.time[unmatched[~due]], moment),
        ]
        open_us = min((time_us for time_us in opens if time_us is not None), default=None)
        return Applied(pa.concat_tables(out), Delta.of(changes, state), open_us)

    def _unmatched(self, batch: Batch, state: State, horizon: int) -> Numbers:
        """The places of the new rows without a match, in this batch or before."""
        side, (before, after) = batch.left, self.bound.of_left
        low, high = side.time - before, side.time + after
        start, end, _ = match_ranges(side.key, low, high, batch.right.key, batch.right.time)
        unmatched: Numbers = np.flatnonzero(start == end)
        if not len(unmatched):
            return unmatched
        # Rows with equal key and time have the same matches: one of each is looked up.
        is_first = np.ones(len(unmatched), bool)
        key, time = side.key[unmatched], side.time[unmatched]
        is_first[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
        firsts = unmatched[is_first]
        shelf = self.bound.shelves[1]
        has_match = np.zeros(len(firsts), bool)
        digests, numbers = batch.digests[side.key[firsts]], np.arange(len(firsts))
        span = low[firsts], high[firsts]
        owner, bounds = shelf.bounds(state, digests, numbers, span, horizon, limit=1)
        has_match[owner[[bool(stretch) for stretch in state.stretches(bounds)]]] = True
        keep: Numbers = unmatched[~has_match[np.cumsum(is_first) - 1]]
        return keep

    def _bucket(self, waiting: bytes) -> bytes:
        time = _unsigned.unpack_from(waiting, 1)[0] - (1 << 63)
        return _unsigned.pack(time // self.bound.bucket_us + (1 << 63))

    def _next_due(
        self, state: State, changes: dict[bytes, bytes | None], added: Numbers, moment: Moment
    ) -> int | None:
        """The watermark at which the first waiting row is emitted, once rows with these times are added."""
        waiting = _stretch(state, moment.horizon - self.bound.after_us, LATEST)
        still = (entry for entry, _ in waiting if changes.get(entry, b"") is not None)
        times: list[int] = [_unsigned.unpack_from(entry, 1)[0] - (1 << 63) for entry in islice(still, 1)]
        if len(added):
            times.append(int(added.min()))
        if not times:
            return None
        return min(times) + self.bound.after_us + 1 + moment.watermark - moment.horizon


def _waiting_entry(entry: bytes) -> bytes:
    """The entry by time of the row with this entry by key."""
    return b"t" + entry[25:33] + entry[9:25] + entry[33:]


def _stretch(state: State, start_us: int, end_us: int) -> Iterator[tuple[bytes, bytes]]:
    """The waiting rows with a time from ``start_us`` to before ``end_us``."""
    start, end = (
        b"t" + _unsigned.pack(min(max(time_us, EARLIEST), LATEST) + (1 << 63))
        for time_us in (start_us, end_us)
    )
    return state.between(start, end)


def _waiting_rows(shelf: Shelf, batch: Batch, places: Numbers, state: State) -> dict[bytes, bytes | None]:
    """The entries of new rows that have to wait."""
    if not len(places):
        return {}
    side = batch.left
    places = places[np.argsort(side.time[places], kind="stable")]
    key = side.key[places]
    texts = pack(side.rows.take(pa.array(places))).to_pylist()
    by_key = shelf.entries(batch.digests, key, side.time[places], texts)
    entries = [_waiting_entry(entry) for entry in by_key]
    counts = Counter(entries)
    stored = state.get(entries)
    owners = [batch.keys[number] for number in key.tolist()]
    changes: dict[bytes, bytes | None] = dict(zip(by_key, owners, strict=True))
    for entry, owner, text in zip(entries, owners, texts, strict=True):
        old = stored.get(entry)
        count = counts[entry] + (_count.unpack_from(old, value_start(old))[0] if old else 0)
        changes[entry] = owner + _count.pack(count) + text
    return changes


def _right_times(shelf: Shelf, batch: Batch, side: Side, horizon: int) -> dict[bytes, bytes | None]:
    """The entries of the times of new rows of the right."""
    still = shelf.still(side.time, horizon)
    if not len(still):
        return {}
    places = shelf.places(batch.digests, side.key[still], side.time[still])
    return dict(zip(places, (batch.keys[number] for number in side.key[still].tolist()), strict=True))
