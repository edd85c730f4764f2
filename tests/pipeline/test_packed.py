"""Rows as bytes: what goes in comes out, equal rows have equal bytes, and ordered bytes are in the order of the values."""

import datetime as dt
import math
from decimal import Decimal
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline import entries
from headwater.pipeline.layout import ENTRIES, layout, shard_of
from headwater.pipeline.orderly import orderly
from headwater.pipeline.packed import packed, unpacked
from headwater.pipeline.state import Place, Shard
from memorystate import Memory

INNER = pa.struct([("start", pa.timestamp("us", "UTC")), ("name", pa.string())])
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
NESTED = {
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(-9, 9), max_size=3),
    INNER: st.fixed_dictionaries({"start": st.none() | st.datetimes(timezones=st.just(dt.UTC)), "name": st.none() | st.text(max_size=3)}),
}  # fmt: skip
hundred = settings(max_examples=100, deadline=None)


@st.composite
def tables(draw):
    every = KINDS | NESTED
    kinds = draw(st.lists(st.sampled_from(list(every)), min_size=1, max_size=10))
    rows = draw(st.integers(0, 6))
    columns = [draw(st.lists(st.none() | every[kind], min_size=rows, max_size=rows)) for kind in kinds]
    names = [f"c{n}" for n in range(len(kinds))]
    return pa.table([pa.array(*each) for each in zip(columns, kinds, strict=True)], names=names)


@hundred
@given(table=tables(), before=st.binary(max_size=3))
def test_rows_come_out_as_they_went_in(table, before):
    found = packed(table.columns, table.num_rows)
    assert found.to_pylist() == packed(pa.concat_tables([table[:1], table]).columns, table.num_rows + len(table[:1])).to_pylist()[len(table[:1]) :]  # fmt: skip
    standing = pa.array([before + each for each in found.to_pylist()], pa.large_binary())
    again = unpacked(standing, len(before), table.schema)
    assert str(again.to_pylist()) == str(table.to_pylist())
    assert packed(again.columns, again.num_rows).equals(found)


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


@hundred
@given(keys=st.lists(st.sampled_from(["", "a", "ab", "ä", "key " * 100, "key " * 101]), min_size=1, max_size=5), shards=st.integers(1, 5))  # fmt: skip
def test_an_entry_belongs_to_the_shard_of_its_key(keys, shards):
    raw = [each.encode() for each in keys]
    begins = entries.begins(pa.array(raw, pa.binary())).to_pylist()
    for begin, own in zip(begins, raw, strict=True):
        for tail in (b"", b"\xff", b"\xff" * 290):
            entry = begin + b"l" + tail
            value = entries.value_of(entry, 2, None, own)
            assert len(entry) <= 511
            assert layout(ENTRIES).owner(entry, value) == own
            assert shard_of(layout(ENTRIES).owner(entry, value), shards) == crc32(own) % shards
    assert len(set(begins)) == len(set(raw))


def test_stretches_of_a_shard_are_those_of_its_entries(tmp_path):
    values = {b"k%03d" % n: b"%d" % n for n in range(100)} | {b"x" * 600: b"odd"}
    place = Place(str(tmp_path / "files"), str(tmp_path / "copies"))
    chain = Shard(place, 0, ()).extended(1, "a", values)
    later = {b"k005": None, b"k006": b"new", b"k007": None, b"x" * 600: None}
    chain = Shard(place, 0, chain).extended(2, "b", later)
    wanted = [
        (b"k000", b"k010", 99),
        (b"k004", b"k020", 3),
        (b"k050", b"k050", 9),
        (b"z", b"zz", 1),
        (b"a", b"b", 5),
    ]
    shard, memory = Shard(place, 0, chain), Memory(values)
    memory.take(later)
    assert shard.stretches(wanted) == memory.stretches(wanted)
    assert dict(shard.items()) == dict(memory)
    assert msgspec.msgpack.decode(entries.closed(entries.Held(3))) == [3, None, None]
