"""Aggregates: what they come to depends on the values alone, not on their order or on how they were cut."""

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.errors import UsageError
from headwater.pipeline.operator.aggregate import FUNCTIONS, AggregateCall, resolve

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    "tiny": (ByteType(), st.integers(-128, 127)),
    "long": (LongType(), st.integers(-(2**62), 2**62)),
    "float": (FloatType(), st.floats(width=32, allow_infinity=False, allow_nan=False)),
    "double": (DoubleType(), st.floats(-1e300, 1e300)),
    "money": (DecimalType(10, 2), st.decimals(-99999, 99999, places=2)),
    "huge": (DecimalType(38, 4), st.integers(-(10**32), 10**32).map(lambda n: Decimal(n).scaleb(-4))),
    "text": (StringType(), st.text(max_size=3)),
    "raw": (BinaryType(), st.binary(max_size=3)),
    "flag": (BooleanType(), st.booleans()),
    "day": (DateType(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    "at": (TimestampType(), st.integers(-(10**15), 10**15).map(lambda n: EPOCH + timedelta(microseconds=n))),
}
NUMBERS = ("tiny", "long", "float", "double", "money", "huge")
SCHEMA = StructType()
for _name, (_kind, _) in KINDS.items():
    SCHEMA.add(_name, _kind)
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
ASKED = {"n": AggregateCall("count", None)} | {
    f"{function}_{column}": AggregateCall(function, column)
    for function in FUNCTIONS
    for column in KINDS
    if function not in ("sum", "avg") or column in NUMBERS
}
ALL = resolve("test", ASKED, SCHEMA)


def table(rows: list[tuple]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(KINDS, row, strict=True)) for row in rows], schema=ARROW)


def partial(timed: list[tuple[int, tuple]]):
    """The partials of one group, stored and loaded again as state would."""
    timed = sorted(timed, key=lambda each: each[0])
    times = np.array([at for at, _ in timed], dtype=np.int64)
    (found,) = ALL.partials(table([row for _, row in timed]), np.zeros(len(timed), np.int64), times, 1)
    assert ALL.loaded(msgspec.msgpack.decode(msgspec.msgpack.encode(ALL.stored([found])))) == [found]
    return found


def values(found: list) -> dict:
    return {name: column.to_pylist()[0] for name, column in ALL.columns([found]).items()}


def half_up(number: Decimal, places: int) -> Decimal:
    import decimal

    with decimal.localcontext() as context:
        context.prec = 90
        return number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def model(timed: list[tuple[int, tuple]]) -> dict:
    """What the aggregates are, in the simplest words."""
    import decimal

    said: dict = {"n": len(timed)}
    for name, (function, column) in ASKED.items():
        if column is None:
            continue
        place = list(KINDS).index(column)
        there = [(at, row[place]) for at, row in timed if row[place] is not None]
        plain = [value for _, value in there]
        exact = column in ("money", "huge")
        with decimal.localcontext() as context:
            context.prec = 90
            if function == "count":
                said[name] = len(plain)
            elif not plain:
                said[name] = None
            elif function == "sum":
                said[name] = math.fsum(plain) if column in ("float", "double") else sum(plain)
            elif function == "avg" and exact:
                said[name] = half_up(sum(plain) / len(plain), {"money": 6, "huge": 8}[column])
            elif function == "avg":
                total = math.fsum(plain) if column in ("float", "double") else sum(plain)
                said[name] = total / len(plain)
            elif function == "first":
                said[name] = min(there)[1]
            elif function == "last":
                said[name] = max(there)[1]
            else:
                said[name] = {"min": min, "max": max}[function](plain)
    return said


rows_of = st.lists(
    st.tuples(st.integers(0, 3), st.tuples(*(st.none() | values for _, values in KINDS.values()))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(timed=rows_of, cuts=st.integers(0, 99), seed=st.integers(0, 99))
def test_any_order_and_any_cut_give_what_the_words_say(timed, cuts, seed):
    timed = [each for each in timed if abs(each[1][1] or 0) < 2**59]
    if not timed:
        return
    whole = partial(timed)
    assert values(whole) == model(timed)

    shuffled = random.Random(seed).sample(timed, len(timed))
    cut = cuts % len(timed)
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
    merge, merged = ALL.merger(), partial(parts[0])
    for part in parts[1:]:
        merged = merge(merged, partial(part))
    assert msgspec.msgpack.encode(ALL.stored([merged])) == msgspec.msgpack.encode(ALL.stored([whole]))


@pytest.mark.parametrize(
    ("numbers", "total", "low", "high"),
    [
        ([1e100, 1.0, -1e100], 1.0, -1e100, 1e100),
        ([0.1] * 10, 1.0, 0.1, 0.1),
        ([1e308, 1e308, -1e308], 1e308, -1e308, 1e308),
        ([1e308, 1e308], math.inf, 1e308, 1e308),
        ([math.inf, 1.0], math.inf, 1.0, math.inf),
        ([math.inf, -math.inf], math.nan, -math.inf, math.inf),
        ([math.nan, 1.0], math.nan, 1.0, math.nan),
        ([-0.0, 0.0], 0.0, 0.0, 0.0),
    ],
)
def test_doubles_that_are_hard_to_add(numbers, total, low, high):
    doubles = resolve(
        "test",
        {"s": AggregateCall("sum", "x"), "a": AggregateCall("min", "x"), "z": AggregateCall("max", "x")},
        StructType().add("x", DoubleType()),
    )
    for order in (numbers, numbers[::-1]):
        zeros = np.zeros(len(order), np.int64)
        (found,) = doubles.partials(pa.table({"x": pa.array(order)}), zeros, zeros, 1)
        got = [column.to_pylist()[0] for column in doubles.columns([found]).values()]
        assert list(map(repr, got)) == list(map(repr, [total, low, high]))


def test_groups_without_a_value_give_null_and_count_nothing():
    some = resolve(
        "test",
        {"n": AggregateCall("count", "x"), "s": AggregateCall("sum", "x"), "f": AggregateCall("first", "x")},
        StructType().add("x", IntegerType()),
    )
    rows = pa.table({"x": pa.array([None, 1, 2, None], pa.int32())})
    found = some.partials(rows, np.array([0, 1, 1, 2]), np.arange(4), 3)
    columns = {name: column.to_pylist() for name, column in some.columns(found).items()}
    assert columns == {"n": [0, 2, 0], "s": [None, 3, None], "f": [None, 1, None]}
    merge = some.merger()
    assert merge(found[0], found[1]) == merge(found[1], found[2]) == found[1]


def test_results_have_the_types_that_spark_gives_them():
    found = {field.name: field.dataType.simpleString() for field in ALL.fields()}
    assert found["n"] == found["count_text"] == found["sum_tiny"] == found["sum_long"] == "bigint"
    assert found["sum_float"] == found["avg_long"] == found["avg_float"] == "double"
    assert (found["sum_money"], found["avg_money"]) == ("decimal(20,2)", "decimal(14,6)")
    assert (found["sum_huge"], found["avg_huge"]) == ("decimal(38,4)", "decimal(38,8)")
    assert (found["min_float"], found["max_tiny"], found["first_at"]) == ("float", "tinyint", "timestamp")


@pytest.mark.parametrize("column", ["long", "huge"])
def test_a_sum_that_is_too_large_is_named(column):
    (one,) = resolve("test", {"total": AggregateCall("sum", column)}, SCHEMA).each
    with pytest.raises(UsageError, match=rf"total: sum\({column}\) is too large"):
        one.values([10**40])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            AggregateCall("sum", "text"),
            "x: sum cannot be applied to column 'text'; got string; expected a number",
        ),
        (AggregateCall("avg", "flag"), "avg cannot be applied to column 'flag'"),
        (AggregateCall("min", "list"), "column 'list'; got array<int>"),
    ],
)
def test_an_aggregate_of_another_type_is_refused_with_what_is_wrong(asked, said):
    kind = StructType([*SCHEMA.fields, StructField("list", ArrayType(IntegerType()))])
    with pytest.raises(UsageError, match=said):
        resolve("sessions", {"x": asked}, kind)
