"""Aggregates: count, sum, avg, min, max, first and last of a column.

An aggregate of a group is kept as a **partial**. Two partials merge into one, and a partial gives a value. So
state holds no rows. Nulls are ignored, and a group without values gives null, as in SQL. A partial depends
only on the values: neither their order nor the cut into batches changes a bit of it, not even in sums of
doubles.

    count        the number of values
    sum          whole numbers: the sum; doubles: floats with exactly this sum, the first is the sum rounded
    avg          count and sum
    min, max     the value
    first, last  time and value; of several values at that time, first takes the smallest, last the greatest

Partials are values that msgpack can encode: times as microseconds, dates as days, decimals as whole numbers
of their digits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from operator import gt, lt
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
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

__all__ = ["FUNCTIONS", "ORDERED", "WIDE", "Aggregate", "AggregateCall", "Aggregates", "Partial", "resolve"]

Partial = list[Any]
"""The partials of a group, one for each aggregate; None if it had no value."""
Numbers = npt.NDArray[np.int64]

FUNCTIONS = ("avg", "count", "first", "last", "max", "min", "sum")
NUMBERS = (IntegralType, FloatType, DoubleType, DecimalType)
TIMES = (TimestampType, TimestampNTZType)
ORDERED = (*NUMBERS, *TIMES, StringType, BinaryType, BooleanType, DateType)
PRECISION_MAX = 38
WIDE = Context(prec=100)
"""Arithmetic that is exact for all of Spark's decimals."""


class AggregateCall(NamedTuple):
    """An aggregate as a query names it: a function of a column; None for ``count(*)``."""

    function: str
    column: str | None

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate: the name of its result, its function, and its column, None for ``count(*)``.

    Its text is stored in definitions of views, so names of classes and fields stay (`Spec.definition`).
    """

    name: str
    function: str
    column: str | None
    kind: DataType

    @property
    def result(self) -> DataType:
        """The type of its value, the same as that of Spark's own function."""
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
        """The function that merges two partials."""
        if self.function == "count":
            return lambda one, two: one + two
        reduce = _reducer(self)
        if self.function == "avg":
            return lambda one, two: [one[0] + two[0], _add(reduce, one[1], two[1])]
        if self.function == "sum":
            return lambda one, two: _add(reduce, one, two)
        if self.function in ("first", "last"):
            wins = lt if self.function == "first" else gt
            return lambda one, two: (
                [one[0], reduce([one[1], two[1]])]
                if one[0] == two[0]
                else one
                if wins(one[0], two[0])
                else two
            )
        return lambda one, two: reduce([one, two])

    def partials(self, rows: pa.Table, group: Numbers, time: Numbers, groups: int) -> list[Any]:
        """The partial of each group. Rows are sorted by group, and by time within a group."""
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
            at_edge = time == edge
            column, group, time = column.filter(pa.array(at_edge)), group[at_edge], time[at_edge]
            bounds = np.searchsorted(group, np.arange(groups + 1))
        values, reduce = _plain(column, self.kind), _reducer(self)
        slices = list(pairwise(bounds.tolist()))
        if self.function in ("first", "last"):
            times = time.tolist()
            return [[times[a], reduce(values[a:b])] if a < b else None for a, b in slices]
        if self.function == "avg":
            return [[b - a, reduce(values[a:b])] if a < b else None for a, b in slices]
        return [reduce(values[a:b]) if a < b else None for a, b in slices]

    def values(self, partials: Sequence[Any]) -> pa.Array:
        """The final value of each partial."""
        values = partials
        match self.function:
            case "sum" if _is_float(self.kind):
                values = [None if partial is None else partial[0] for partial in partials]
            case "avg":
                values = [None if partial is None else self._average(*partial) for partial in partials]
            case "first" | "last":
                values = [None if partial is None else partial[1] for partial in partials]
        try:
            return _array(values, self.result)
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
        """The columns that they aggregate."""
        return [one.column for one in self.each if one.column is not None]

    def partials(self, rows: pa.Table, group: Numbers, time: Numbers, groups: int) -> list[Partial]:
        """The partials of each group. Rows are sorted by group (0, 1, 2, …), and by time within a group."""
        columns = [one.partials(rows, group, time, groups) for one in self.each]
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(groups)]

    def merger(self) -> Callable[[Partial, Partial], Partial]:
        """The function that merges the partials of two groups."""
        merges = [one.merge for one in self.each]

        def merge(one: Partial, two: Partial) -> Partial:
            return [
                a if b is None else b if a is None else merge(a, b)
                for merge, a, b in zip(merges, one, two, strict=True)
            ]

        return merge

    def columns(self, partials: Sequence[Partial]) -> dict[str, pa.Array]:
        """The values of the groups, by the names of the aggregates."""
        return {one.name: one.values([partial[n] for partial in partials]) for n, one in enumerate(self.each)}

    def stored(self, partials: Sequence[Partial]) -> Sequence[Partial]:
        """Partials in the form that the state has."""
        wide = [_is_wide(one) for one in self.each]
        if not any(wide):
            return partials
        return [[_stored(a) if w else a for w, a in zip(wide, partial, strict=True)] for partial in partials]

    def loaded(self, partials: Sequence[Partial]) -> Sequence[Partial]:
        """The inverse of ``stored``."""
        wide = [_is_wide(one) for one in self.each]
        if not any(wide):
            return partials
        return [[_loaded(a) if w else a for w, a in zip(wide, partial, strict=True)] for partial in partials]


def resolve(operator: str, calls: Mapping[str, AggregateCall], rows: StructType) -> Aggregates:
    """The aggregates with the types of their columns.

    UsageError for the first that does not fit its column.
    """
    kinds = {field.name: field.dataType for field in rows.fields}
    return Aggregates(tuple(_resolve(operator, name, call, kinds) for name, call in calls.items()))


def _resolve(operator: str, name: str, call: AggregateCall, kinds: Mapping[str, DataType]) -> Aggregate:
    function, column = call
    if column is None:
        return Aggregate(name, function, None, LongType())
    kind = kinds[column]
    wanted = {"count": DataType, "sum": NUMBERS, "avg": NUMBERS}.get(function, ORDERED)
    if not isinstance(kind, wanted):
        raise UsageError(
            f"{operator}: {name}: {function} cannot be applied to column {column!r}",
            got=kind.simpleString(),
            expected="a number" if wanted is NUMBERS else "number, text, boolean, date, timestamp or binary",
        )
    return Aggregate(name, function, column, kind)


# ---- functions over plain values -----------------------------------------------------------------------


def _reducer(aggregate: Aggregate) -> Callable[[list[Any]], Any]:
    """The function that reduces one or more values to one."""
    if aggregate.function in ("sum", "avg"):
        return _exact_sum if _is_float(aggregate.kind) else sum
    if _is_float(aggregate.kind):
        return _smallest if aggregate.function in ("min", "first") else _greatest
    return min if aggregate.function in ("min", "first") else max


def _add(reduce: Callable[[list[Any]], Any], one: Any, two: Any) -> Any:
    return reduce([*one, *two]) if reduce is _exact_sum else one + two


def _exact_sum(values: list[float]) -> list[float]:
    """The sum of floats as floats: the sum, rounded; then the remainder, rounded; until nothing remains."""
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
        return _exact_large_sum(values)
    return parts or [0.0]


def _exact_large_sum(values: list[float]) -> list[float]:
    """The sum of floats if an intermediate sum is too large for a float."""
    total = sum(map(Fraction, values), Fraction())
    try:
        return [float(total)]
    except OverflowError:
        return [math.inf if total > 0 else -math.inf]


def _smallest(values: list[float]) -> float:
    """NaN is greater than all numbers, as in Spark."""
    return min((value for value in values if value == value), default=math.nan)  # noqa: PLR0124


def _greatest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _counts(group: Numbers, groups: int) -> list[int]:
    counts: list[int] = np.bincount(group, minlength=groups).tolist()
    return counts


# ---- values in Arrow and in partials -------------------------------------------------------------------


def _plain(column: pa.ChunkedArray, kind: DataType) -> list[Any]:
    """A column without nulls as plain values."""
    plain: list[Any]
    if _is_float(kind):
        plain = (column.cast(pa.float64()).to_numpy() + 0.0).tolist()  # turns -0.0 into 0.0
    elif isinstance(kind, (IntegralType, *TIMES)):
        plain = column.cast(pa.int64()).to_numpy().tolist()
    elif isinstance(kind, DateType):
        plain = column.cast(pa.int32()).to_numpy().tolist()
    elif isinstance(kind, DecimalType):
        plain = [int(value.scaleb(kind.scale, WIDE)) for value in column.to_pylist()]
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
        decimals = [None if value is None else Decimal(value).scaleb(-kind.scale, WIDE) for value in values]
        return pa.array(decimals, arrow)
    return pa.array(values, arrow)


def _is_float(kind: DataType) -> bool:
    return isinstance(kind, FloatType | DoubleType)


def _is_wide(aggregate: Aggregate) -> bool:
    """Whether its partials may be whole numbers of more than 64 bits, which msgpack cannot encode."""
    return isinstance(aggregate.kind, DecimalType) or (
        isinstance(aggregate.kind, LongType) and aggregate.function in ("sum", "avg")
    )


def _stored(value: Any) -> Any:
    if isinstance(value, list):
        return [_stored(part) for part in value]
    return str(value) if isinstance(value, int) and value.bit_length() > 63 else value


def _loaded(value: Any) -> Any:
    if isinstance(value, list):
        return [_loaded(part) for part in value]
    return int(value) if isinstance(value, str) else value
