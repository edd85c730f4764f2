"""Exact sums: of every width that Spark's decimals have, against Python's whole numbers."""

from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from headwater.pipeline.operator.aggregate import Aggregate
from headwater.pipeline.tables.exact_sums import NOTHING, add, kept, loaded, partial, totals

ROOMY = Context(prec=200)


@st.composite
def weighted_decimals(draw) -> tuple[int, int, list[tuple[int | None, int]]]:
    """A precision, a scale, and the digits of some decimals of that kind, each so often as its weight says."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    greatest = 10**precision - 1
    digits = st.none() | st.integers(-greatest, greatest) | st.sampled_from([greatest, -greatest, 1, -1])
    return precision, scale, draw(st.lists(st.tuples(digits, st.integers(-2, 3)), min_size=1, max_size=12))


def column(digits: list[int | None], precision: int, scale: int) -> pa.Array:
    values = [None if each is None else Decimal(each).scaleb(-scale, ROOMY) for each in digits]
    return pa.array(values, pa.decimal128(precision, scale))


@given(case=weighted_decimals(), cut=st.integers(0, 12))
def test_a_sum_of_decimals_is_exact_at_every_width_and_in_every_cut(case, cut):
    precision, scale, rows = case
    one = Aggregate("s", "sum", "x", DecimalType(precision, scale))
    total = NOTHING
    for part in filter(None, (rows[:cut], rows[cut:])):
        digits, weights = zip(*part, strict=True)
        (more,) = totals(one, column([*digits], precision, scale), np.array(weights), np.array([0]))
        total = loaded(kept(add(total, more)))
    assert total.whole == sum(digits * weight for digits, weight in rows if digits is not None)
    assert total.count == sum(weight for digits, weight in rows if digits is not None)


@given(digits=st.lists(st.integers(1 - 10**34, 10**34 - 1), min_size=1, max_size=9), scale=st.integers(0, 8))
def test_an_average_of_wide_decimals_is_rounded_once_as_spark_rounds(digits, scale):
    one = Aggregate("a", "avg", "x", DecimalType(34, scale))
    (total,) = totals(one, column(digits, 34, scale), np.ones(len(digits), int), np.array([0]))
    (found,) = one.values([partial(one, total)]).to_pylist()
    step = Fraction(1, 10**one.result.scale)
    average = Fraction(sum(digits), len(digits) * 10**scale)
    assert abs(Fraction(found) - average) <= step / 2
