"""Rows as bytes: whatever their columns, they come back, and equal rows are equal bytes."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.arrow.row_bytes import listed, pack, stacked, unpack
from headwater.pipeline.state.key_prefix import owned, owner, value_start

hundred = settings(max_examples=100, deadline=None)
FAR_OFF = 1 << 60
"""Microseconds until a year that Python has no date for."""
VALUES = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(allow_nan=False).map(
        lambda real: real + 0.0
    ),  # one zero: Arrow takes both for equal
    pa.float32(): st.floats(allow_nan=False, width=32).map(lambda real: real + 0.0),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=9),
    pa.large_string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.date32(): st.dates(),
    pa.decimal128(38, 9): st.decimals(-(10**20), 10**20, places=9),
    pa.timestamp("us", "UTC"): st.integers(-FAR_OFF, FAR_OFF),
    pa.timestamp("us"): st.integers(-FAR_OFF, FAR_OFF),
    pa.duration("us"): st.integers(-FAR_OFF, FAR_OFF),
}
NAMES = st.sampled_from(["a", "b", "list", "of", "ü"])


def nested(inner):
    """Kinds made of kinds, each with its values."""
    several = st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda each: each[0])
    return st.one_of(
        inner.map(lambda each: (pa.list_(each[0]), st.lists(st.none() | each[1], max_size=3))),
        inner.map(lambda each: (pa.map_(pa.string(), each[0]), maps(each[1]))),
        several.map(
            lambda fields: (
                pa.struct([(name, each[0]) for name, each in fields]),
                st.fixed_dictionaries({name: st.none() | each[1] for name, each in fields}),
            )
        ),
    )


def maps(values):
    return st.dictionaries(st.text(max_size=3), st.none() | values, max_size=3).map(
        lambda found: [*found.items()]
    )


kinds = st.recursive(st.sampled_from([*VALUES.items()]), nested, max_leaves=4)


@st.composite
def tables(draw):
    """Rows of any columns, which may be in pieces, and begin in the middle of what Arrow holds."""
    chosen = draw(st.lists(kinds, min_size=1, max_size=5))
    count, skip, cut = draw(st.integers(0, 6)), draw(st.integers(0, 2)), draw(st.integers(0, 6))
    columns = [
        pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
        for kind, values in chosen
    ]
    table = pa.table(columns, names=[f"c{n}" for n in range(len(chosen))])
    return pa.concat_tables([table[:cut], table[cut:]])[skip:]


@hundred
@given(table=tables(), before=st.lists(st.binary(max_size=3), min_size=6, max_size=6))
def test_rows_come_back(table, before):
    data = pack(table).to_pylist()
    assert unpack(*stacked(data), table.schema).equals(table)
    prefixed = [skipped + each for skipped, each in zip(before, data, strict=False)]
    whole, begins = stacked([*prefixed, b"what follows"])
    skip = np.array([len(each) for each in before[: len(data)]], np.int64)
    assert unpack(whole, begins[:-1] + skip, table.schema).equals(table)


@hundred
@given(table=tables(), choose=st.randoms())
def test_a_row_has_the_same_bytes_at_any_place_and_only_equal_rows_have_them(table, choose):
    data = pack(table).to_pylist()
    order = choose.choices(range(table.num_rows), k=8) if data else []
    again = table.take(pa.array(order, pa.int64()))
    assert pack(again).to_pylist() == [data[n] for n in order]
    assert pack(unpack(*stacked(data), table.schema)).to_pylist() == data
    for n, each in enumerate(data):
        for m, other in enumerate(data[:n]):
            assert (each == other) == table[n : n + 1].equals(table[m : m + 1])


def test_what_lies_under_a_null_makes_no_difference():
    hidden = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.array([7, 8], pa.int64()).buffers()[1]]
    )
    inner = pa.StructArray.from_arrays(
        [pa.array([7, 8]), pa.array(["x", "y"])], ["n", "text"], mask=pa.array([True, False])
    )
    texts = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), *pa.array(["under", "it"]).buffers()[1:]]
    )
    plain = {
        "n": pa.array([None, 8]),
        "inner": pa.array([None, {"n": 8, "text": "y"}], inner.type),
        "text": pa.array([None, "it"]),
    }
    assert pack(pa.table({"n": hidden, "inner": inner, "text": texts})).equals(pack(pa.table(plain)))


def test_a_null_is_neither_nothing_nor_zero():
    rows = [[None, None, None], [0, "", []], [0, None, None], [None, "", None], [None, None, []]]
    columns = [
        pa.array(each, kind)
        for each, kind in zip(
            zip(*rows, strict=True), (pa.int8(), pa.string(), pa.list_(pa.int8())), strict=True
        )
    ]
    assert len(set(pack(pa.table(columns, names=["n", "text", "many"])).to_pylist())) == len(rows)


def test_numbers_that_are_none_and_both_zeros_come_back_as_they_are():
    table = pa.table({"real": [float("nan"), 0.0, -0.0], "reals": [[float("nan")], [-0.0], [0.0]]})
    found = unpack(*stacked(pack(table).to_pylist()), table.schema)
    assert str(found.to_pylist()) == str(table.to_pylist())


def test_decimals_in_lists_keep_their_digits():
    kind = pa.list_(pa.decimal128(20, 2))
    table = pa.table({"prices": pa.array([[Decimal("1.00"), None, Decimal("-123456789012345678.90")]], kind)})
    assert unpack(*stacked(pack(table).to_pylist()), table.schema).equals(table)


def test_times_that_python_has_no_date_for_come_back_from_lists_too():
    late = pa.array([[FAR_OFF, None]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us", "UTC")))
    table = pa.table({"at": late})
    assert unpack(*stacked(pack(table).to_pylist()), table.schema).equals(table)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.map_(pa.string(), pa.date32())], ids=str)
def test_no_rows_at_all(kind):
    none = pa.schema([("it", kind)]).empty_table()
    assert pack(none).to_pylist() == []
    assert unpack(b"", np.zeros(0, np.int64), none.schema).equals(none)


@hundred
@given(
    lists=st.lists(st.tuples(st.binary(max_size=3), st.lists(st.binary(max_size=4), max_size=3)), max_size=4)
)
def test_the_items_of_lists_are_found_after_any_bytes_before_them(lists):
    item = np.dtype([("n", "u1"), ("length", "<u4")])
    values = [
        skipped
        + len(items).to_bytes(4, "little")
        + b"".join(bytes([n]) + len(each).to_bytes(4, "little") for n, each in enumerate(items))
        + b"".join(items)
        for skipped, items in lists
    ]
    data, places = stacked(values)
    skip = np.array([len(skipped) for skipped, _ in lists], np.int64)
    counts, found, begins = listed(data, places + skip, item)
    assert counts.tolist() == [len(items) for _, items in lists]
    assert found["n"].tolist() == [n for _, items in lists for n in range(len(items))]
    spans = zip(begins.tolist(), found["length"].tolist(), strict=True)
    assert [data[at : at + length] for at, length in spans] == [each for _, items in lists for each in items]


@hundred
@given(st.lists(st.binary(max_size=9)))
def test_a_value_says_whose_it_is(keys):
    for key, begin in zip(keys, owned(pa.array(keys, pa.binary())), strict=True):
        assert owner(begin + b"value") == key
        assert (begin + b"value")[value_start(begin + b"value") :] == b"value"
