"""Exact sums, from which every value that was added can be subtracted again.

A sum of whole numbers is a whole number, a sum of decimals a whole number of their digits. A sum of doubles
is kept as several doubles with exactly this sum: the first is the sum rounded once, the next the remainder
rounded, and so on. So the order of values, the cut into batches, and values added and subtracted before do
not change a bit of it. Infinities and NaN are counted instead, since they cannot be subtracted.
"""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import DecimalType, DoubleType, FloatType

from headwater.pipeline.arrow.row_bytes import fixed
from headwater.pipeline.operator.aggregate import WIDE, Aggregate

__all__ = ["NOTHING", "Total", "add", "kept", "loaded", "partial", "totals"]

Numbers = npt.NDArray[np.int64]

SAFE = 1 << 62
LARGEST = sys.float_info.max


class Total(msgspec.Struct, frozen=True):
    """The number of values of a group, and their sum."""

    count: int = 0
    whole: int = 0
    parts: tuple[float, ...] = ()
    """Doubles whose exact sum is the sum."""
    special: tuple[int, int, int] = (0, 0, 0)
    """The number of values that are infinity, minus infinity and NaN."""


NOTHING = Total()


def totals(aggregate: Aggregate, column: pa.Array, weights: Numbers, starts: Numbers) -> list[Total]:
    """The change of the total of each group.

    Rows are sorted by group; ``starts`` has the first row of each.
    """
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    counted = np.where(valid, weights, 0)
    counts = np.add.reduceat(counted, starts).tolist()
    if aggregate.function == "count":
        return [Total(count) for count in counts]
    if _is_float(aggregate):
        return _float_totals(column, counted, starts, counts)
    values = _whole(column)
    if values is not None:
        values[~valid] = 0
        largest = max(int(values.max()), -int(values.min()))
        if largest * int(np.abs(weights).sum()) < SAFE:
            sums = np.add.reduceat(values * weights, starts).tolist()
            return [Total(count, whole) for count, whole in zip(counts, sums, strict=True)]
    scale = aggregate.kind.scale if isinstance(aggregate.kind, DecimalType) else 0
    digits = [
        0 if value is None else int(value.scaleb(scale, WIDE) if scale else value)
        for value in column.to_pylist()
    ]
    products = [value * weight for value, weight in zip(digits, weights.tolist(), strict=True)]
    ends = [*starts.tolist()[1:], len(products)]
    return [
        Total(count, sum(products[start:end]))
        for count, start, end in zip(counts, starts.tolist(), ends, strict=True)
    ]


def add(before: Total, change: Total) -> Total:
    """The sum of both."""
    parts = before.parts
    if change.parts:
        parts = _parts([*parts, *change.parts]) if parts else change.parts
    special = before.special
    if change.special != NOTHING.special:
        one, two = before.special, change.special
        special = (one[0] + two[0], one[1] + two[1], one[2] + two[2])
    return Total(before.count + change.count, before.whole + change.whole, parts, special)


def partial(aggregate: Aggregate, total: Total) -> Any:
    """The partial of the aggregate for a total."""
    if aggregate.function == "count":
        return total.count
    if total.count <= 0:
        return None
    value = [_rounded(total)] if _is_float(aggregate) else total.whole
    return [total.count, value] if aggregate.function == "avg" else value


def kept(total: Total) -> Sequence[Any]:
    """A total as the state has it; msgpack cannot encode whole numbers of more than 64 bits."""
    whole = total.whole if abs(total.whole) < SAFE else str(total.whole)
    if total.parts or total.special != NOTHING.special:
        return total.count, whole, total.parts, total.special
    return total.count, whole


def loaded(fields: Sequence[Any]) -> Total:
    """The inverse of ``kept``."""
    count, whole, *rest = fields
    parts, special = rest or ((), NOTHING.special)
    return Total(count, int(whole), tuple(parts), tuple(special))


def _float_totals(column: pa.Array, counted: Numbers, starts: Numbers, counts: list[int]) -> list[Total]:
    numbers = fixed(column.cast(pa.float64())).view("<f8")[:, 0].copy()
    numbers[counted == 0] = 0.0
    finite = np.isfinite(numbers)
    special: list[tuple[int, int, int]] = [(0, 0, 0)] * len(starts)
    if not finite.all():
        kinds = (np.isposinf(numbers), np.isneginf(numbers), np.isnan(numbers))
        by_kind = [np.add.reduceat(np.where(kind, counted, 0), starts).tolist() for kind in kinds]
        special = list(zip(*by_kind, strict=True))
        numbers[~finite] = 0.0
    signed = (numbers * np.sign(counted)).tolist()
    times = np.abs(counted)
    if times.max(initial=0) > 1:
        signed = np.repeat(signed, times).tolist()
        begin = (np.cumsum(times) - times)[starts].tolist()
    else:
        begin = starts.tolist()
    slices = zip(begin, [*begin[1:], len(signed)], strict=True)
    parts = [_parts(signed[start:end]) for start, end in slices]
    return [Total(*fields) for fields in zip(counts, [0] * len(counts), parts, special, strict=True)]


def _parts(values: list[float]) -> tuple[float, ...]:
    """The fewest doubles with exactly the same sum; they depend only on the sum."""
    parts: list[float] = []
    try:
        while (part := math.fsum(values)) != 0.0:
            parts.append(part)
            values = [*values, -part]
    except OverflowError:
        return _large_parts(sum(map(Fraction, values), Fraction()), parts)
    return tuple(parts)


def _large_parts(rest: Fraction, parts: list[float]) -> tuple[float, ...]:
    """The same if an intermediate or final sum is too large for a double."""
    while rest:
        part = float(max(-Fraction(LARGEST), min(rest, Fraction(LARGEST))))
        parts.append(part)
        rest -= Fraction(part)
    return tuple(parts)


def _rounded(total: Total) -> float:
    has_inf, has_minus_inf, has_nan = (count > 0 for count in total.special)
    if has_nan or (has_inf and has_minus_inf):
        return math.nan
    if has_inf or has_minus_inf:
        return math.inf if has_inf else -math.inf
    if not total.parts:
        return 0.0
    first = total.parts[0]
    if abs(first) < LARGEST:
        return first
    try:
        return float(sum(map(Fraction, total.parts)))
    except OverflowError:
        return math.copysign(math.inf, first)


def _whole(column: pa.Array) -> Any:
    """Whole numbers, or the digits of decimals, as 64 bits; None if they do not fit."""
    if not pa.types.is_decimal(column.type):
        return column.fill_null(0).cast(pa.int64()).to_numpy().copy()
    words = fixed(column).view("<i8")
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    fits = words[:, 1] == (words[:, 0] >> 63)
    return words[:, 0].copy() if fits[valid].all() else None


def _is_float(aggregate: Aggregate) -> bool:
    return isinstance(aggregate.kind, FloatType | DoubleType)
