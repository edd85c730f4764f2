"""Rows as bytes and back, whatever their columns."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline import rowblock

SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("small", pa.int32()),
        ("yes", pa.bool_()),
        ("text", pa.string()),
        ("real", pa.float64()),
        ("money", pa.decimal128(18, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("many", pa.list_(pa.int64())),
        ("inner", pa.struct([("a", pa.string()), ("at", pa.timestamp("us", "UTC"))])),
    ]
)
times = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
values = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-(2**31), 2**31 - 1),
    "yes": st.booleans(),
    "text": st.text(max_size=5),
    "real": st.floats(allow_nan=False),
    "money": st.integers(-(10**6), 10**6).map(lambda cents: Decimal(cents) / 100),
    "at": times,
    "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "raw": st.binary(max_size=5),
    "many": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "inner": st.fixed_dictionaries({"a": st.none() | st.text(max_size=3), "at": st.none() | times}),
}
rows = st.lists(st.fixed_dictionaries({name: st.none() | each for name, each in values.items()}), max_size=8)


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(0, 3), st.randoms())
def test_rows_come_back_in_any_order_and_from_any_slice(found, skip, choose):
    table = pa.Table.from_pylist(found, schema=SCHEMA).slice(skip)
    data, bounds = rowblock.pack(table)
    assert rowblock.starts(data) == bounds[:-1].tolist()
    assert rowblock.unpack(data, bounds[:-1], SCHEMA).equals(table)
    order = choose.sample(range(table.num_rows), table.num_rows)
    picked = rowblock.unpack(data, [int(bounds[n]) for n in order], SCHEMA)
    assert picked.to_pylist() == [table.to_pylist()[n] for n in order]


def test_equal_rows_are_equal_bytes_whatever_lies_under_their_nulls():
    hidden = pa.array([7, 8]).filter(pa.array([True, True]))
    masked = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x02"), hidden.buffers()[1]])
    plain = pa.array([None, 8], pa.int64())
    assert rowblock.pack(pa.table({"n": masked})).data == rowblock.pack(pa.table({"n": plain})).data


def test_rows_without_text_and_no_rows_at_all():
    table = pa.table({"n": [1, 2]})
    assert rowblock.unpack(*rowblock.pack(table)[:1], [0, 13], table.schema).equals(table)
    assert rowblock.pack(SCHEMA.empty_table()).rows() == []
