"""Unmatched: the rows of the left that no row of the right has met within the bound, and none can meet any more. Each comes out once.

A row waits until the horizon is behind its time and the bound, so that no straggler can still meet it. What stands behind this operator lives by a
watermark that is as much earlier (``behind``), so that its windows wait for these rows.

    t TIME DIGEST ROW           → KEY COUNT BYTES     a row of the left that waits, and how often it came
    l BUCKET DIGEST TIME ROW    → KEY                 where to find it by its key (``within.py``)
    r BUCKET DIGEST TIME        → KEY                 a time at which there was a row of the right
"""

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.pipeline import within
from headwater.pipeline.layout import OWNED
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.owned import behind
from headwater.pipeline.pair import LEFT
from headwater.pipeline.rowbytes import pack, stacked, unpack
from headwater.pipeline.within import EARLIEST, LATEST, Batch, Bound, Shelf, Side

__all__ = ["Unmatched"]

_count = struct.Struct(">I")
_unsigned = struct.Struct(">Q")


class Unmatched(Spec, frozen=True, kw_only=True):
    """The rows of the left as they came. State: those that wait, and the times of the right."""

    key: tuple[str, ...]
    time: tuple[str, str]
    bound: Bound
    kind: str = "unmatched"
    timed: str = "watermark"
    layout: str = OWNED

    def schema(self, rows: StructType) -> StructType:
        return StructType(rows[LEFT].dataType.fields)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        batch = within.read(rows, self.time)
        left, right = self.bound.shelves
        changes: dict[bytes, bytes | None] = {}
        near = left.near(state, batch.digests, batch.right, self.bound.of_right, moment.horizon).entries
        changes.update(dict.fromkeys(near))
        changes.update(dict.fromkeys(map(_waiting, near)))
        missed = self._missed(batch, state, moment.horizon)
        late = batch.left.time[missed] < moment.horizon - self.bound.after_us
        texts: list[bytes] = []
        for entry, value in _due(state, moment.horizon - self.bound.after_us):
            at = behind(value)
            texts += [value[at + _count.size :]] * _count.unpack_from(value, at)[0]
            changes[entry] = None
            changes[left.letter + self._bucket(entry) + entry[9:25] + entry[1:9] + entry[25:]] = None
        changes.update(_waits(left, batch, missed[~late], state))
        changes.update(_heard(right, batch, batch.right, moment.horizon))
        changes.update(dict.fromkeys(right.forgotten(state, moment.horizon)))
        out = [
            unpack(*stacked(texts), batch.left.rows.schema),
            batch.left.rows.take(pa.array(missed[late])),
            batch.left.lone,
        ]
        changes = dict(sorted(changes.items()))
        opens = [
            right.open(state, batch.right.time[right.still(batch.right.time, moment.horizon)], moment),
            self._goes(state, changes, batch.left.time[missed[~late]], moment),
        ]
        open_us = min((each for each in opens if each is not None), default=None)
        return Applied(pa.concat_tables(out), changes, open_us)

    def _missed(self, batch: Batch, state: State, horizon: int) -> Any:
        """The rows that came and that no row of the right has met, of this batch or before."""
        side, (before, after) = batch.left, self.bound.of_left
        low, high = side.time - before, side.time + after
        start, end, _ = within.met(side.key, low, high, batch.right.key, batch.right.time)
        missed = np.flatnonzero(start == end)
        first = np.ones(len(missed), bool)
        key, time = side.key[missed], side.time[missed]
        first[1:] = (key[1:] != key[:-1]) | (time[1:] != time[:-1])
        each = missed[first]
        shelf = self.bound.shelves[1]
        found = np.zeros(len(each), bool)
        digests, numbers = batch.digests[side.key[each]], np.arange(len(each))
        span = low[each], high[each]
        owner, bounds = shelf.bounds(state, digests, numbers, span, horizon, most=1)
        found[owner[[bool(part) for part in state.stretches(bounds)]]] = True
        return missed[~found[np.cumsum(first) - 1]] if len(missed) else missed

    def _bucket(self, waiting: bytes) -> bytes:
        time = _unsigned.unpack_from(waiting, 1)[0] - (1 << 63)
        return _unsigned.pack(time // self.bound.bucket_us + (1 << 63))

    def _goes(
        self, state: State, changes: dict[bytes, bytes | None], added: Any, moment: Moment
    ) -> int | None:
        """The watermark at which the first row goes on that waits, when rows with these times are added."""
        waiting = _stretch(state, moment.horizon - self.bound.after_us, LATEST)
        still = (entry for entry, _ in waiting if changes.get(entry, b"") is not None)
        times: list[int] = [_unsigned.unpack_from(entry, 1)[0] - (1 << 63) for entry in islice(still, 1)]
        if len(added):
            times.append(int(added.min()))
        if not times:
            return None
        return min(times) + self.bound.after_us + 1 + moment.watermark - moment.horizon


def _waiting(entry: bytes) -> bytes:
    """Where the row stands whose place by key is this."""
    return b"t" + entry[25:33] + entry[9:25] + entry[33:]


def _stretch(state: State, start_us: int, end_us: int) -> Iterator[tuple[bytes, bytes]]:
    start, end = (
        b"t" + _unsigned.pack(min(max(each, EARLIEST), LATEST) + (1 << 63)) for each in (start_us, end_us)
    )
    return state.between(start, end)


def _due(state: State, upto_us: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows whose time is before another."""
    return _stretch(state, EARLIEST, upto_us)


def _waits(shelf: Shelf, batch: Batch, places: Any, state: State) -> dict[bytes, bytes | None]:
    """Rows that wait from now on."""
    if not len(places):
        return {}
    side = batch.left
    places = places[np.argsort(side.time[places], kind="stable")]
    key = side.key[places]
    texts = pack(side.rows.take(pa.array(places))).to_pylist()
    by_key = shelf.entries(batch.digests, key, side.time[places], texts)
    entries = [_waiting(entry) for entry in by_key]
    counts = Counter(entries)
    known = state.get(entries)
    owners = [batch.keys[number] for number in key.tolist()]
    changes: dict[bytes, bytes | None] = dict(zip(by_key, owners, strict=True))
    for entry, owner, text in zip(entries, owners, texts, strict=True):
        old = known.get(entry)
        count = counts[entry] + (_count.unpack_from(old, behind(old))[0] if old else 0)
        changes[entry] = owner + _count.pack(count) + text
    return changes


def _heard(shelf: Shelf, batch: Batch, side: Side, horizon: int) -> dict[bytes, bytes | None]:
    """The times of the right from now on."""
    still = shelf.still(side.time, horizon)
    if not len(still):
        return {}
    places = shelf.places(batch.digests, side.key[still], side.time[still])
    return dict(zip(places, (batch.keys[number] for number in side.key[still].tolist()), strict=True))
