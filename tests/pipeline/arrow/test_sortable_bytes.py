"""Ordered bytes are in the order of the values."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.arrow.sortable_bytes import orderly

KINDS = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.date32(): st.dates(),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
}


def key(value):
    """As Spark orders: nulls first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_ordered_bytes_are_in_the_order_of_the_values(kind, descending, data):
    pairs = st.tuples(st.none() | KINDS[kind], st.none() | st.sampled_from(["", "a", "a\x00", "ab", "b"]))
    rows = data.draw(st.lists(pairs, max_size=8))
    columns = [pa.array([row[0] for row in rows], kind), pa.array([row[1] for row in rows], pa.string())]
    found = orderly(columns, len(rows), descending=descending).to_pylist()
    wanted = sorted(rows, key=lambda row: (key(row[0]), key(row[1])), reverse=descending)
    assert str([row for _, row in sorted(zip(found, rows, strict=True), key=lambda each: each[0])]) == str(
        wanted
    ) or any(isinstance(row[0], float) and row[0] == 0 for row in rows)


def test_decimals_and_zeros():
    found = orderly(
        [pa.array([Decimal("-1.00"), Decimal("0.01"), Decimal("-0.01")], pa.decimal128(5, 2))], 3
    ).to_pylist()
    assert sorted(range(3), key=found.__getitem__) == [0, 2, 1]
    assert len(set(orderly([pa.array([0.0, -0.0])], 2).to_pylist())) == 1
