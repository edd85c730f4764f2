"""Rows without duplicates: a row is dropped if an emitted row with its key is near to it in time.

The first row that arrives is emitted; within one batch, the one with the smallest time, and of equal times
the one with the smallest bytes. The time of an emitted row is kept as long as a row so near to it may still
come.

    k KEY           → TIME TIMES        the times of the emitted rows, in order
    t TIME DIGEST   → KEY               the time at which the first of them is forgotten
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.decoders import from_msgpack
from headwater.pipeline.operator import event_rows
from headwater.pipeline.operator.event_rows import EventRows
from headwater.pipeline.operator.logic import Applied
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.windows.event_logic import EventLogic

__all__ = ["Distinct"]


class Distinct(EventLogic, frozen=True, kw_only=True):
    """Unchanged rows, each once. State: a time for each emitted row."""

    within_us: int
    kind: str = "distinct"

    def schema(self, rows: StructType) -> StructType:
        event_rows.check_time(self.kind, rows, self.time)
        return rows

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        names = [name for name in rows.column_names if name != "_key"]
        events = event_rows.sort_events(rows, names, self.time)
        times = events.time.tolist()
        bounds = np.searchsorted(events.key, np.arange(len(events.keys) + 1)).tolist()
        fresh = dict(zip(events.keys, pairwise(bounds), strict=True))
        emitted: list[int] = []

        def step(key: bytes, old: bytes | None) -> bytes | None:
            held = from_msgpack(old[8:], list[int]) if old is not None else []
            for n in range(*fresh.get(key, (0, 0))):
                if not self._is_near(times[n], held):
                    emitted.append(n)
                    insort(held, times[n])
            return self._kept(held, moment.horizon)

        changes, open_us = self.update(state, moment, fresh, step)
        chosen = pa.array(_smallest_of_equal(events, emitted), pa.int64())
        return Applied(events.rows.take(chosen), Delta.of(changes, state), open_us)

    def _is_near(self, time: int, held: Sequence[int]) -> bool:
        place = bisect_left(held, time - self.within_us)
        return place < len(held) and held[place] <= time + self.within_us

    def _kept(self, held: Sequence[int], horizon: int) -> bytes | None:
        """The times that a row at the horizon or later may be near to."""
        times = held[bisect_left(held, horizon - self.within_us) :]
        if not times:
            return None
        return timers.kept(times[0] + self.within_us + 1, msgspec.msgpack.encode(times))


def _smallest_of_equal(events: EventRows, emitted: Sequence[int]) -> list[int]:
    """Each emitted row, or of several with its key and time the one with the smallest bytes."""
    same = np.zeros(len(events.time) + 1, bool)
    same[1:-1] = (events.key[1:] == events.key[:-1]) & (events.time[1:] == events.time[:-1])
    chosen = []
    for n in emitted:
        end = n + 1
        while same[end]:
            end += 1
        chosen.append(n if end == n + 1 else n + _smallest(events.rows.slice(n, end - n)))
    return chosen


def _smallest(rows: pa.Table) -> int:
    encoded = [msgspec.msgpack.encode(list(row.values())) for row in rows.to_pylist()]
    return encoded.index(min(encoded))
