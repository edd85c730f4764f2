"""Aggregate: count, sum, avg, min, max, first and last of a column, named by text like ``sum(price)``.

Each is a **partial** for every group of rows; two partials make one, and at the end a partial makes a value. So state holds no rows. Nulls
count for nothing, and a group without any value gives null, as in SQL. A partial depends on nothing but the values:
neither their order nor how they were cut into batches changes a bit of it, sums of doubles included.

    count        how many
    sum          whole numbers: the sum; doubles: floats that add up to it exactly, the first of them the sum rounded once
    avg          count and sum
    min, max     the value
    first, last  time and value; of several at that time the smallest for first, the greatest for last

Partials are plain values that msgpack keeps: times are microseconds, dates days, decimals their digits as whole numbers.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from operator import gt, lt
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.errors import UsageError

__all__ = ["WIDE", "Aggregate", "Aggregates", "Partial", "parsed"]

Partial = list[Any]
"""The partials of a group, one for each aggregate; None where there was no value."""

FORM = re.compile(r"\s*(\w+)\s*\(\s*([^()]+?)\s*\)\s*")
FUNCTIONS = ("avg", "count", "first", "last", "max", "min", "sum")
NUMBERS = (IntegralType, FloatType, DoubleType, DecimalType)
TIMES = (TimestampType, TimestampNTZType)
ORDERED = (*NUMBERS, *TIMES, StringType, BinaryType, BooleanType, DateType)
PRECISION_MAX = 38
WIDE = Context(prec=100)
"""Arithmetic that rounds no decimal of Spark's."""


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate: the column it makes, its function, and the column that it is of with its kind; none for ``count(*)``."""

    name: str
    function: str
    column: str | None
    kind: DataType

    @property
    def result(self) -> DataType:
        """The kind of its value: as Spark's own function has it."""
        kind = self.kind
        match self.function:
            case "count":
                return LongType()
            case "sum":
                if isinstance(kind, DecimalType):
                    return DecimalType(min(kind.precision + 10, PRECISION_MAX), kind.scale)
                return LongType() if isinstance(kind, IntegralType) else DoubleType()
            case "avg":
                if isinstance(kind, DecimalType):
                    return DecimalType(
                        min(kind.precision + 4, PRECISION_MAX), min(kind.scale + 4, PRECISION_MAX)
                    )
                return DoubleType()
            case _:
                return kind

    @property
    def merge(self) -> Callable[[Any, Any], Any]:
        """Makes one partial of two."""
        if self.function == "count":
            return lambda one, two: one + two
        of = _function(self)
        if self.function == "avg":
            return lambda one, two: [one[0] + two[0], _added(of, one[1], two[1])]
        if self.function == "sum":
            return lambda one, two: _added(of, one, two)
        if self.function in ("first", "last"):
            before = lt if self.function == "first" else gt
            return lambda one, two: (
                [one[0], of([one[1], two[1]])] if one[0] == two[0] else one if before(one[0], two[0]) else two
            )
        return lambda one, two: of([one, two])

    def partials(self, rows: pa.Table, group: Any, time: Any, groups: int) -> list[Any]:
        """The partial of each group. Rows are in the order of their group, and of their time within it."""
        if self.column is None:
            return _counts(group, groups)
        column = rows.column(self.column)
        if column.null_count:
            valid = pc.is_valid(column).to_numpy()
            column, group, time = column.drop_null(), group[valid], time[valid]
        if self.function == "count":
            return _counts(group, groups)
        bounds = np.searchsorted(group, np.arange(groups + 1))
        if self.function in ("first", "last"):
            edge = time[bounds[group]] if self.function == "first" else time[bounds[group + 1] - 1]
            there = time == edge
            column, group, time = column.filter(pa.array(there)), group[there], time[there]
            bounds = np.searchsorted(group, np.arange(groups + 1))
        values, of, stretches = _plain(column, self.kind), _function(self), pairwise(bounds.tolist())
        if self.function in ("first", "last"):
            times = time.tolist()
            return [[times[a], of(values[a:b])] if a < b else None for a, b in stretches]
        if self.function == "avg":
            return [[b - a, of(values[a:b])] if a < b else None for a, b in stretches]
        return [of(values[a:b]) if a < b else None for a, b in stretches]

    def values(self, partials: Sequence[Any]) -> pa.Array:
        """What partials come to in the end."""
        match self.function:
            case "sum" if _is_float(self.kind):
                partials = [None if each is None else each[0] for each in partials]
            case "avg":
                partials = [None if each is None else self._average(*each) for each in partials]
            case "first" | "last":
                partials = [None if each is None else each[1] for each in partials]
        try:
            return _array(partials, self.result)
        except (OverflowError, pa.ArrowInvalid) as error:
            raise UsageError(
                f"{self.name}: {self.function}({self.column}) is too large for {self.result.simpleString()}",
                hint="cast the column to a wider type",
            ) from error

    def _average(self, count: int, total: Any) -> Any:
        if _is_float(self.kind):
            return total[0] / count
        if not isinstance(self.kind, DecimalType):
            return total / count
        shifted = abs(total) * 10 ** (self.result.scale - self.kind.scale)
        rounded = (2 * shifted + count) // (2 * count)  # half up, away from zero, as Spark rounds
        return rounded if total >= 0 else -rounded


class Aggregates(msgspec.Struct, frozen=True):
    """All aggregates of an operator."""

    each: tuple[Aggregate, ...] = ()

    def fields(self) -> list[StructField]:
        return [StructField(one.name, one.result) for one in self.each]

    def inputs(self) -> list[str]:
        """The columns that they are of."""
        return [one.column for one in self.each if one.column is not None]

    def partials(self, rows: pa.Table, group: Any, time: Any, groups: int) -> list[Partial]:
        """The partials of each group. Rows are in the order of their group (0, 1, 2, …), and of their time within it."""
        columns = [one.partials(rows, group, time, groups) for one in self.each]
        return [list(each) for each in zip(*columns, strict=True)] if columns else [[] for _ in range(groups)]

    def merger(self) -> Callable[[Partial, Partial], Partial]:
        """What makes one group's partials of two's."""
        merges = [one.merge for one in self.each]

        def merge(one: Partial, two: Partial) -> Partial:
            return [
                a if b is None else b if a is None else merge(a, b)
                for merge, a, b in zip(merges, one, two, strict=True)
            ]

        return merge

    def columns(self, partials: Sequence[Partial]) -> dict[str, pa.Array]:
        """What each group's partials come to, by the names of the aggregates."""
        return {one.name: one.values([each[n] for each in partials]) for n, one in enumerate(self.each)}

    def stored(self, partials: Sequence[Partial]) -> Sequence[Partial]:
        """Partials as state keeps them."""
        wide = [_is_wide(one) for one in self.each]
        if not any(wide):
            return partials
        return [[_stored(a) if w else a for w, a in zip(wide, each, strict=True)] for each in partials]

    def loaded(self, partials: Sequence[Partial]) -> Sequence[Partial]:
        wide = [_is_wide(one) for one in self.each]
        if not any(wide):
            return partials
        return [[_loaded(a) if w else a for w, a in zip(wide, each, strict=True)] for each in partials]


def parsed(operator: str, named: Mapping[str, str], rows: StructType) -> Aggregates:
    """Aggregates by the names of their columns. UsageError says what is wrong with the first bad one."""
    kinds = {field.name: field.dataType for field in rows.fields}
    return Aggregates(tuple(_parsed(operator, name, text, kinds) for name, text in named.items()))


def _parsed(operator: str, name: str, text: str, kinds: Mapping[str, DataType]) -> Aggregate:
    found = FORM.fullmatch(text) if isinstance(text, str) else None
    what = f"{operator}: {name} is no aggregate"
    if found is None:
        raise UsageError(
            what, got=repr(text), expected="a function of a column, like 'sum(price)' or 'count(*)'"
        )
    function, column = found[1].lower(), found[2]
    if function not in FUNCTIONS:
        raise UsageError(what, got=text, expected=", ".join(FUNCTIONS), hint=_nearest(function, FUNCTIONS))
    if column == "*":
        if function != "count":
            raise UsageError(what, got=text, expected=f"{function} of a column", hint="only count takes *")
        return Aggregate(name, function, None, LongType())
    if column not in kinds:
        hint = _nearest(column, kinds)
        raise UsageError(
            f"{operator}: {name} is of no column of its input", got=text, expected=", ".join(kinds), hint=hint
        )
    kind = kinds[column]
    wanted = {"count": DataType, "sum": NUMBERS, "avg": NUMBERS}.get(function, ORDERED)
    if not isinstance(kind, wanted):
        expected = "a number" if wanted is NUMBERS else "a number, text, boolean, date, timestamp or binary"
        got = f"{column} {kind.simpleString()}"
        raise UsageError(f"{operator}: {name} is no {function} that there can be", got=got, expected=expected)
    return Aggregate(name, function, column, kind)


def _nearest(word: str, words: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, list(words), 1, 0.4)
    return f"did you mean {near[0]}?" if near else ""


# ---- functions over plain values -----------------------------------------------------------------------


def _function(aggregate: Aggregate) -> Callable[[list[Any]], Any]:
    """What makes one of some values, of which there is at least one."""
    if aggregate.function in ("sum", "avg"):
        return _exact if _is_float(aggregate.kind) else sum
    if _is_float(aggregate.kind):
        return _smallest if aggregate.function in ("min", "first") else _greatest
    return min if aggregate.function in ("min", "first") else max


def _added(of: Callable[[list[Any]], Any], one: Any, two: Any) -> Any:
    return of([*one, *two]) if of is _exact else one + two


def _exact(values: list[float]) -> list[float]:
    """The sum of floats as floats: the first is the sum, rounded; the second what that leaves, rounded; until nothing is left."""
    parts: list[float] = []
    try:
        while (part := math.fsum(values)) != 0.0:
            if not math.isfinite(part):
                return [part]
            parts.append(part)
            values = [*values, -part]
    except ValueError:  # both infinities
        return [math.nan]
    except OverflowError:
        return _huge(values)
    return parts or [0.0]


def _huge(values: list[float]) -> list[float]:
    """The same where a sum on the way is too large for a float."""
    total = sum(map(Fraction, values), Fraction())
    try:
        return [float(total)]
    except OverflowError:
        return [math.inf if total > 0 else -math.inf]


def _smallest(values: list[float]) -> float:
    """NaN is greater than all numbers, as in Spark."""
    return min((each for each in values if each == each), default=math.nan)  # noqa: PLR0124


def _greatest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _counts(group: Any, groups: int) -> list[int]:
    counted: list[int] = np.bincount(group, minlength=groups).tolist()
    return counted


# ---- values as they are in Arrow and in partials -------------------------------------------------------


def _plain(column: pa.ChunkedArray, kind: DataType) -> list[Any]:
    """A column without nulls as plain values."""
    plain: list[Any]
    if _is_float(kind):
        plain = (column.cast(pa.float64()).to_numpy() + 0.0).tolist()  # of two zeros one: they are equal
    elif isinstance(kind, (IntegralType, *TIMES)):
        plain = column.cast(pa.int64()).to_numpy().tolist()
    elif isinstance(kind, DateType):
        plain = column.cast(pa.int32()).to_numpy().tolist()
    elif isinstance(kind, DecimalType):
        plain = [int(each.scaleb(kind.scale, WIDE)) for each in column.to_pylist()]
    else:
        plain = column.to_pylist()
    return plain


def _array(values: Sequence[Any], kind: DataType) -> pa.Array:
    """Plain values as a column."""
    arrow = to_arrow_type(kind, timezone="UTC")
    if isinstance(kind, TIMES):
        return pa.array(values, pa.int64()).cast(arrow)
    if isinstance(kind, DateType):
        return pa.array(values, pa.int32()).cast(arrow)
    if isinstance(kind, DecimalType):
        digits = [None if each is None else Decimal(each).scaleb(-kind.scale, WIDE) for each in values]
        return pa.array(digits, arrow)
    return pa.array(values, arrow)


def _is_float(kind: DataType) -> bool:
    return isinstance(kind, FloatType | DoubleType)


def _is_wide(aggregate: Aggregate) -> bool:
    """Whether its partials may be whole numbers of more than 64 bits, which msgpack does not have."""
    return isinstance(aggregate.kind, DecimalType) or (
        isinstance(aggregate.kind, LongType) and aggregate.function in ("sum", "avg")
    )


def _stored(value: Any) -> Any:
    if isinstance(value, list):
        return [_stored(each) for each in value]
    return str(value) if isinstance(value, int) and value.bit_length() > 63 else value


def _loaded(value: Any) -> Any:
    if isinstance(value, list):
        return [_loaded(each) for each in value]
    return int(value) if isinstance(value, str) else value
