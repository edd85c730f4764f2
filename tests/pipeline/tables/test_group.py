"""Aggregates that take back: whatever comes and goes, in any cut, each group's row is what its rows come to as they are."""

import math
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType, DoubleType, LongType, StringType, StructType

from headwater.declare import operators as hw
from headwater.pipeline.operator.aggregate import AggregateCall
from headwater.pipeline.operator.shell import FOREVER
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.tables import group as module
from headwater.pipeline.tables.group import Group
from headwater.pipeline.time.watermark import NEVER, Moment
from support.memorystate import Memory

MOMENT = Moment(FOREVER, NEVER, FOREVER)
KIND = StructType().add("k", StringType()).add("n", LongType()).add("x", DoubleType()).add("d", DecimalType(20, 2)).add("s", StringType())  # fmt: skip
ARROW = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("d", pa.decimal128(20, 2)), ("s", pa.string()), ("_weight", pa.int32()), ("_key", pa.string())])  # fmt: skip
AGGREGATES = {
    "rows": AggregateCall("count", None),
    "ns": AggregateCall("count", "n"),
    "n_sum": AggregateCall("sum", "n"),
    "n_avg": AggregateCall("avg", "n"),
    "n_min": AggregateCall("min", "n"),
    "n_max": AggregateCall("max", "n"),
    "x_sum": AggregateCall("sum", "x"),
    "x_avg": AggregateCall("avg", "x"),
    "x_min": AggregateCall("min", "x"),
    "x_max": AggregateCall("max", "x"),
    "d_sum": AggregateCall("sum", "d"),
    "d_max": AggregateCall("max", "d"),
    "s_min": AggregateCall("min", "s"),
    "s_max": AggregateCall("max", "s"),
    "newest": hw.newest_of("s", order="n", limit=3),
    "pairs": hw.newest_of(["n", "s"], order=["x", "n"], limit=2),
}
LOGIC = Group(key=("k",), aggregates=tuple(module._aggregate(*each, KIND) for each in AGGREGATES.items()))
hundred = settings(max_examples=100, deadline=None)

numbers = st.none() | st.integers(-3, 3) | st.sampled_from([1 << 57, -(1 << 58)])
doubles = st.none() | st.sampled_from([0.1, 0.2, 0.3, -0.1, 1e16, 1.0, 0.0, 1e308, -1e308, math.inf, -math.inf, math.nan])  # fmt: skip
decimals = st.none() | st.decimals("-9.99", "9.99", places=2) | st.just(Decimal("123456789012345678.90"))
texts = st.none() | st.sampled_from(["", "a", "b", "ab", "a\x00", "ä", "long " * 100])
keys = st.sampled_from(["a", "b", "[null]", None, "key " * 80])
rows = st.tuples(keys, numbers, doubles, decimals, texts)
changes = st.lists(st.tuples(rows, st.booleans()), max_size=30)


def table(weighted) -> pa.Table:
    listed = [(*row, weight, "[null]" if row[0] is None else row[0]) for row, weight in weighted]
    columns = list(zip(*listed, strict=True)) or [[]] * len(ARROW)
    return pa.table(
        [pa.array(column, each.type) for column, each in zip(columns, ARROW, strict=True)], schema=ARROW
    )


def order(value) -> tuple:
    """Nulls before all values, NaN after all numbers, zeros equal."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


def summed(values: list) -> float | None:
    if not values:
        return None
    strange = [value for value in values if not math.isfinite(value)]
    if strange:
        return sum(strange)
    try:
        return float(sum(map(Fraction, values)))
    except OverflowError:
        return math.inf if sum(map(Fraction, values)) > 0 else -math.inf


def newest(found: list, by, of, limit: int) -> list:
    return [of(row) for row in sorted(found, key=by, reverse=True)[:limit]]


def naive(there: Counter) -> dict:
    """The groups of a table as it is."""
    groups: dict = {}
    for row, times in there.items():
        groups.setdefault(row[0], []).extend([row] * times)
    out = {}
    for key, found in groups.items():
        n, x, d, s = ([row[at] for row in found if row[at] is not None] for at in (1, 2, 3, 4))
        total = summed(x)
        out[key] = {
            "k": key,
            "rows": len(found),
            "ns": len(n),
            "n_sum": sum(n) if n else None,
            "n_avg": sum(n) / len(n) if n else None,
            "n_min": min(n, default=None),
            "n_max": max(n, default=None),
            "x_sum": total,
            "x_avg": total / len(x) if x else None,
            "x_min": min(x, key=order, default=None),
            "x_max": max(x, key=order, default=None),
            "d_sum": sum(d) if d else None,
            "d_max": max(d, default=None),
            "s_min": min(s, key=order, default=None),
            "s_max": max(s, key=order, default=None),
            "newest": newest(found, lambda row: (order(row[1]), order(row[4])), lambda row: row[4], 3),
            "pairs": newest(
                found,
                lambda row: (order(row[2]), order(row[1]), order(row[1]), order(row[4])),
                lambda row: {"n": row[1], "s": row[4]},
                2,
            ),
        }
    return out


def seen(value):
    """Values that can be compared: zeros are equal, and what is not a number is equal to itself."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def shown(row: dict) -> dict:
    return {name: seen(value) for name, value in row.items() if name != "_weight"}


class Stage:
    """What the stage does around a logic, and the table that its rows make."""

    def __init__(self, logic, seed: int = 0) -> None:
        self.logic, self.random = logic, random.Random(seed)
        self.state, self.rows = Memory(), {}

    def take(self, part: list) -> pa.Table:
        applied = self.logic.apply(table(part), self.state, MOMENT)
        again = self.logic.apply(table(self.random.sample(part, len(part))), self.state, MOMENT)
        assert list(again.changes.items()) == list(applied.changes.items())
        assert str(again.rows.to_pylist()) == str(applied.rows.to_pylist())
        self.state.take(applied.changes)
        assert max(map(len, self.state), default=0) <= 511
        before = dict(self.rows)
        for row in applied.rows.to_pylist():
            if row["_weight"] < 0:
                assert self.rows.pop(row["k"]) == shown(row), "what is taken out is not what was there"
            else:
                assert row["k"] not in self.rows
                assert before.get(row["k"]) != shown(row), "nothing has changed"
                self.rows[row["k"]] = shown(row)
        return applied.rows


def weighted(steps):
    """Changes that make sense: only what is there goes away."""
    there: Counter = Counter()
    for row, comes in steps:
        weight = 1 if comes or not there[row] else -1
        there[row] += weight
        yield row, weight


def after(steps) -> Counter:
    there: Counter = Counter()
    for row, weight in steps:
        there[row] += weight
    return +there


@hundred
@given(steps=changes, cuts=st.lists(st.integers(0, 30), max_size=6), seed=st.integers(0, 9))
def test_each_group_is_what_its_rows_come_to_after_every_batch(steps, cuts, seed):
    steps = list(weighted(steps))
    stage = Stage(LOGIC, seed)
    bounds = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    for start, end in pairwise(bounds):
        stage.take(steps[start:end])
        assert stage.rows == {key: shown(row) for key, row in naive(after(steps[:end])).items()}
    whole = LOGIC.apply(table(steps), Nothing(), MOMENT)
    assert stage.state == whole.changes
    stage.take([(row, -times) for row, times in after(steps).items()])
    assert stage.state == {}
    assert stage.rows == {}


@hundred
@given(
    steps=st.lists(rows, max_size=30), cuts=st.lists(st.integers(0, 30), max_size=6), seed=st.integers(0, 9)
)
def test_of_rows_that_stay_only_the_first_ones_are_kept(steps, cuts, seed):
    steps = [(row, 1) for row in steps]
    logic = msgspec.structs.replace(LOGIC, stays=True)
    stage = Stage(logic, seed)
    bounds = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    for start, end in pairwise(bounds):
        stage.take(steps[start:end])
        assert stage.rows == {key: shown(row) for key, row in naive(after(steps[:end])).items()}
    assert stage.state == logic.apply(table(steps), Nothing(), MOMENT).changes
    assert len(stage.state) <= (1 + 7 + 3 + 2) * len(stage.rows)
