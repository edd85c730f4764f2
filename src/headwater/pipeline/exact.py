"""Exact: sums from which everything can be taken back that was ever added.

A whole number is kept as it is, a decimal as its digits. A sum of doubles is kept as doubles that add up to it without any error, the first of
them the sum rounded once, the next what that leaves, and so on: neither order nor batches nor what has come and gone change a bit of it. Infinities and
NaN are counted instead, since nothing can be taken back from them.
"""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import DecimalType, DoubleType, FloatType

from headwater.pipeline.aggregate import WIDE, Aggregate
from headwater.pipeline.rowbytes import fixed

__all__ = ["NOTHING", "Total", "added", "kept", "loaded", "partial", "totals"]

SAFE = 1 << 62
LARGEST = sys.float_info.max


class Total(msgspec.Struct, frozen=True):
    """The values of a group that are there: how many, and their sum."""

    count: int = 0
    whole: int = 0
    parts: tuple[float, ...] = ()
    """Doubles that add up to the sum."""
    strange: tuple[int, int, int] = (0, 0, 0)
    """How many are infinite, less than that, and not a number."""


NOTHING = Total()


def totals(one: Aggregate, column: pa.Array, weights: Any, bounds: Any) -> list[Total]:
    """What the rows of each group add. Rows are in the order of their groups, which begin at ``bounds``."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    counted = np.where(valid, weights, 0)
    counts = np.add.reduceat(counted, bounds).tolist()
    if one.function == "count":
        return [Total(each) for each in counts]
    if _is_float(one):
        return _floats(column, counted, bounds, counts)
    values = _whole(column)
    if values is not None:
        values[~valid] = 0
        most = max(int(values.max()), -int(values.min()))
        if most * int(np.abs(weights).sum()) < SAFE:
            sums = np.add.reduceat(values * weights, bounds).tolist()
            return [Total(count, whole) for count, whole in zip(counts, sums, strict=True)]
    scale = one.kind.scale if isinstance(one.kind, DecimalType) else 0
    digits = [
        0 if each is None else int(each.scaleb(scale, WIDE) if scale else each) for each in column.to_pylist()
    ]
    products = [value * weight for value, weight in zip(digits, weights.tolist(), strict=True)]
    ends = [*bounds.tolist()[1:], len(products)]
    return [
        Total(count, sum(products[start:end]))
        for count, start, end in zip(counts, bounds.tolist(), ends, strict=True)
    ]


def added(before: Total, more: Total) -> Total:
    """Both together."""
    parts = before.parts
    if more.parts:
        parts = _parts([*parts, *more.parts]) if parts else more.parts
    strange = before.strange
    if more.strange != NOTHING.strange:
        strange = tuple(a + b for a, b in zip(strange, more.strange, strict=True))  # type: ignore[assignment]
    return Total(before.count + more.count, before.whole + more.whole, parts, strange)


def partial(one: Aggregate, total: Total) -> Any:
    """A total as the aggregate reads it."""
    if one.function == "count":
        return total.count
    if total.count <= 0:
        return None
    value = [_rounded(total)] if _is_float(one) else total.whole
    return [total.count, value] if one.function == "avg" else value


def kept(total: Total) -> Sequence[Any]:
    """As state keeps it; msgpack has no whole numbers of more than 64 bits."""
    whole = total.whole if abs(total.whole) < SAFE else str(total.whole)
    if total.parts or total.strange != NOTHING.strange:
        return total.count, whole, total.parts, total.strange
    return total.count, whole


def loaded(found: Sequence[Any]) -> Total:
    """What was kept."""
    count, whole, *rest = found
    parts, strange = rest or ((), NOTHING.strange)
    return Total(count, int(whole), tuple(parts), tuple(strange))


def _floats(column: pa.Array, counted: Any, bounds: Any, counts: list[int]) -> list[Total]:
    numbers = fixed(column.cast(pa.float64())).view("<f8")[:, 0].copy()
    numbers[counted == 0] = 0.0
    finite = np.isfinite(numbers)
    strange: list[tuple[int, int, int]] = [(0, 0, 0)] * len(bounds)
    if not finite.all():
        kinds = (np.isposinf(numbers), np.isneginf(numbers), np.isnan(numbers))
        found = [np.add.reduceat(np.where(kind, counted, 0), bounds).tolist() for kind in kinds]
        strange = list(zip(*found, strict=True))
        numbers[~finite] = 0.0
    signed = (numbers * np.sign(counted)).tolist()
    times = np.abs(counted)
    if times.max(initial=0) > 1:
        ends = np.cumsum(times)
        signed = np.repeat(signed, times).tolist()
        starts = ends - times
        begin = starts[bounds].tolist()
    else:
        begin = bounds.tolist()
    stretches = zip(begin, [*begin[1:], len(signed)], strict=True)
    parts = [_parts(signed[start:end]) for start, end in stretches]
    return [Total(*each) for each in zip(counts, [0] * len(counts), parts, strange, strict=True)]


def _parts(values: list[float]) -> tuple[float, ...]:
    """Doubles that add up to exactly the same, as few as can be; they depend on nothing but the sum."""
    parts: list[float] = []
    try:
        while (part := math.fsum(values)) != 0.0:
            parts.append(part)
            values = [*values, -part]
    except OverflowError:
        return _huge(sum(map(Fraction, values), Fraction()), parts)
    return tuple(parts)


def _huge(rest: Fraction, parts: list[float]) -> tuple[float, ...]:
    """The same where a sum on the way, or in the end, is too large for a double."""
    while rest:
        part = float(max(-Fraction(LARGEST), min(rest, Fraction(LARGEST))))
        parts.append(part)
        rest -= Fraction(part)
    return tuple(parts)


def _rounded(total: Total) -> float:
    more, less, none = (each > 0 for each in total.strange)
    if none or (more and less):
        return math.nan
    if more or less:
        return math.inf if more else -math.inf
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
    """Whole numbers, or the digits of decimals, as 64 bits; None when they do not fit."""
    if not pa.types.is_decimal(column.type):
        return column.fill_null(0).cast(pa.int64()).to_numpy().copy()
    words = fixed(column).view("<i8")
    there = column.is_valid().to_numpy(zero_copy_only=False)
    fits = words[:, 1] == (words[:, 0] >> 63)
    return words[:, 0].copy() if fits[there].all() else None


def _is_float(one: Aggregate) -> bool:
    return isinstance(one.kind, FloatType | DoubleType)
