"""Timeline: the versions of keys, each with the time from which it holds, and which of them held at a time.

Two kinds of input make a timeline, and in both any order of arrival gives the same one:

    changes    every row is a version. Of two that hold from the same time the later in the log counts (``_offset``), without offsets
               the one with the greater bytes. A delete (``_gone``) is a version with nothing in it
    rows       weighted rows of a table that has a row for each version: 1 puts a version in, -1 takes it out again. Of two that
               hold from the same time the one with the greater bytes counts

A version counts from its time on, that microsecond with it, until the next one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.late import ARRIVAL
from headwater.pipeline import packed
from headwater.pipeline.wire import GONE, WEIGHT

__all__ = [
    "FAR",
    "HIDDEN",
    "OFFSET",
    "Fresh",
    "Held",
    "Lines",
    "Pool",
    "changed_from",
    "fresh",
    "same_versions",
    "searched",
    "stacked",
]

OFFSET = "_offset"
HIDDEN = (GONE, OFFSET, ARRIVAL, WEIGHT)
"""What a row of changes may say besides its columns."""
FAR = 1 << 62
"""Never, as a time-out."""
TIMES = pa.timestamp("us", "UTC")
NO_OFFSET = -1

Fresh = tuple[int, int, int, bytes]
"""A version as it comes: the time from which it holds, its offset, its weight (0: gone), its row as bytes."""


class Held(msgspec.Struct, array_like=True):
    """The versions of a key in order."""

    valid: list[int] = []
    order: list[int] = []
    weight: list[int] = []
    rows: list[bytes] = []

    def entries(self) -> list[Fresh]:
        return list(zip(self.valid, self.order, self.weight, self.rows, strict=True))

    def with_changes(self, came: Sequence[Fresh]) -> "Held":
        """After some changes: of those with the same time one is left."""
        best = {each[0]: each for each in self.entries()}
        for each in came:
            known = best.get(each[0])
            if known is None or (each[1], each[3]) > (known[1], known[3]):
                best[each[0]] = each
        return _held([best[valid] for valid in sorted(best)])

    def with_rows(self, came: Sequence[Fresh]) -> "Held":
        """After rows came in and were taken out."""
        weights = {(valid, row): weight for valid, _, weight, row in self.entries()}
        for valid, _, weight, row in came:
            weights[valid, row] = weights.get((valid, row), 0) + weight
        left = sorted((valid, row, weight) for (valid, row), weight in weights.items() if weight)
        return _held([(valid, NO_OFFSET, weight, row) for valid, row, weight in left])

    def since(self, time_us: int) -> "Held":
        """What an event from a time on may meet: the version that held then, and all later ones. A delete is nothing to meet."""
        at = max(0, bisect_right(self.valid, time_us) - 1)
        if at < len(self.valid) and self.weight[at] <= 0 and self.valid[at] <= time_us:
            at += 1
        return self if at == 0 else _held(self.entries()[at:])

    def next_us(self) -> int:
        """The time from which on one of them is not needed any more."""
        if self.weight and self.weight[0] <= 0:
            return self.valid[0]
        return self.valid[1] if len(self.valid) > 1 else FAR


def _held(entries: Sequence[Fresh]) -> Held:
    return Held(*map(list, zip(*entries, strict=True))) if entries else Held()


def fresh(
    rows: pa.Table, keys: Sequence[bytes], valid: str, shown: Sequence[str], weights: Sequence[int] | None
) -> dict[bytes, list[Fresh]]:
    """The versions in some rows by their keys. Those without a time are left out. ``weights``: these are rows of a table."""
    times = rows.column(valid).cast(TIMES).cast(pa.int64())
    gone = None
    if weights is None and GONE in rows.column_names:
        gone = pc.fill_null(rows.column(GONE), False)
        if ARRIVAL in rows.column_names:
            times = pc.if_else(gone, pc.coalesce(times, rows.column(ARRIVAL).cast(pa.int64())), times)
    flags = gone.to_pylist() if gone is not None else [False] * rows.num_rows
    offsets = (
        pc.fill_null(rows.column(OFFSET), NO_OFFSET).to_pylist()
        if weights is None and OFFSET in rows.column_names
        else [NO_OFFSET] * rows.num_rows
    )
    each = weights if weights is not None else [0 if flag else 1 for flag in flags]
    data = packed.pack(rows.select(shown)).rows()
    found: dict[bytes, list[Fresh]] = {}
    for key, at, offset, weight, flag, row in zip(
        keys, times.to_pylist(), offsets, each, flags, data, strict=True
    ):
        if at is not None:
            found.setdefault(key, []).append((at, offset, weight, b"" if flag else row))
    return found


def changed_from(before: Held, after: Held) -> int | None:
    """The first time at which two timelines differ; None when they do not."""
    different = set(before.entries()).symmetric_difference(after.entries())
    return min((each[0] for each in different), default=None)


class Pool:
    """Versions by number."""

    def __init__(self) -> None:
        self.valid: list[int] = []
        self.order: list[int] = []
        self.rows: list[bytes] = []

    def add(self, held: Held) -> range:
        """Takes all versions of a timeline in."""
        first = len(self.rows)
        self.valid += held.valid
        self.order += held.order
        self.rows += held.rows
        return range(first, len(self.rows))


class Lines(NamedTuple):
    """Timelines one after the other: the times of their versions, the numbers of these in a pool (-1: gone), and where each begins."""

    times: Any
    numbers: Any
    bounds: Any


def stacked(timelines: Sequence[Held], pool: Pool) -> Lines:
    times: list[int] = []
    numbers: list[int] = []
    bounds = [0]
    for held in timelines:
        added = pool.add(held)
        if min(held.weight, default=1) > 0:
            times += held.valid
            numbers += added
        else:  # what was taken out before it came in is not there, what is gone is there, and nothing
            for number, valid, weight in zip(added, held.valid, held.weight, strict=True):
                if weight >= 0:
                    times.append(valid)
                    numbers.append(number if weight else -1)
        bounds.append(len(times))
    return Lines(np.array(times, np.int64), np.array(numbers, np.int64), np.array(bounds, np.int64))


def searched(lines: Lines, line: Any, time: Any) -> Any:
    """The number of the version that held at each time in each of these timelines; -1 for none.

    Binary searches side by side, each in its own stretch: as many steps as the longest timeline needs.
    """
    if not len(lines.times):
        return np.full(len(line), -1, np.int64)
    first = lines.bounds[line]
    low, high = first.copy(), lines.bounds[line + 1]
    longest = int((lines.bounds[1:] - lines.bounds[:-1]).max())
    last = len(lines.times) - 1
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        holds = (low < high) & (lines.times[np.minimum(middle, last)] <= time)
        high = np.where(holds, high, middle)
        low = np.where(holds, middle + 1, low)
    return np.where(low > first, lines.numbers[np.maximum(low - 1, 0)], -1)


def same_versions(pool: Pool, some: Any, others: Any) -> Any:
    """Whether two versions by number are one, for each pair. Pairs repeat: all events of a stretch of time have the same."""
    size = len(pool.rows) + 1
    pairs, places = np.unique((some + 1) * size + others + 1, return_inverse=True)
    answers = [_is_same(pool, *(n - 1 for n in divmod(pair, size))) for pair in pairs.tolist()]
    return np.array(answers, bool)[places]


def _is_same(pool: Pool, one: int, other: int) -> bool:
    if one < 0 or other < 0:
        return one == other
    return all(each[one] == each[other] for each in (pool.valid, pool.order, pool.rows))
