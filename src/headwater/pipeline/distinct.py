"""Distinct: rows without their duplicates. Of the rows of a key whose times are no more than ``within`` from one that has gone on, none goes on.

The first that comes goes on; of one batch the one with the smallest time, of equal times the one with the smallest bytes. A time is kept until
no row may come any more that is so near to it.

    k KEY           → TIME TIMES        the times of the rows that have gone on, in order
    t TIME DIGEST   → KEY               when the first of them is forgotten
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.decoders import from_msgpack
from headwater.pipeline import timers, windowed
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Moment, State, Staying

__all__ = ["Distinct"]


class Distinct(Staying, frozen=True, kw_only=True):
    """Rows as they came, each once. State: a time for each row that has gone on."""

    key: tuple[str, ...]
    time: str
    within_us: int
    kind: str = "distinct"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        windowed.check_time(self.kind, rows, self.time)
        return rows

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        names = [name for name in rows.column_names if name != "_key"]
        found = windowed.ordered(rows, names, self.time)
        times = found.time.tolist()
        bounds = np.searchsorted(found.key, np.arange(len(found.keys) + 1)).tolist()
        fresh = dict(zip(found.keys, pairwise(bounds), strict=True))
        due = {key for _, key in timers.due(state, moment.horizon)}
        keys = sorted(due.union(fresh))
        known = state.get([timers.place(key) for key in keys])
        going: list[int] = []
        changes: dict[bytes, bytes | None] = {}
        for key in keys:
            old = known.get(timers.place(key))
            held = from_msgpack(old[8:], list[int]) if old is not None else []
            for n in range(*fresh.get(key, (0, 0))):
                if not self._is_near(times[n], held):
                    going.append(n)
                    insort(held, times[n])
            after = self._kept(held, moment.horizon)
            if after != old:
                changes |= timers.changed(key, old, after)
        open_us = timers.open_at(state, changes, moment)
        chosen = _chosen(found, going)
        return Applied(found.rows.take(pa.array(chosen, pa.int64())), dict(sorted(changes.items())), open_us)

    def _is_near(self, time: int, held: Sequence[int]) -> bool:
        place = bisect_left(held, time - self.within_us)
        return place < len(held) and held[place] <= time + self.within_us

    def _kept(self, held: Sequence[int], horizon: int) -> bytes | None:
        """A row exactly at the horizon may be that near, so what is exactly so far behind it stays."""
        still = held[bisect_left(held, horizon - self.within_us) :]
        if not still:
            return None
        return timers.kept(still[0] + self.within_us + 1, msgspec.msgpack.encode(still))


def _chosen(found: windowed.Ordered, going: Sequence[int]) -> list[int]:
    """Of rows with the same key and time, of which the first would go, the one with the smallest bytes."""
    same = np.zeros(len(found.time) + 1, bool)
    same[1:-1] = (found.key[1:] == found.key[:-1]) & (found.time[1:] == found.time[:-1])
    chosen = []
    for n in going:
        end = n + 1
        while same[end]:
            end += 1
        chosen.append(n if end == n + 1 else n + _smallest(found.rows.slice(n, end - n)))
    return chosen


def _smallest(rows: pa.Table) -> int:
    encoded = [msgspec.msgpack.encode(list(row.values())) for row in rows.to_pylist()]
    return encoded.index(min(encoded))
