"""Packing, against the encoder of single records and the hash of single keys."""

import random
import subprocess
import sys

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.bulk import packing
from headwater.client.bulk.packing import column, hashes, pack, pack_partitions, split_by_partition
from headwater.client.partitioner import murmur2
from headwater.record import Record, encode_batch, lz4_frame, open_batch

AT_MS = 1_790_000_000_123
texts = st.one_of(
    st.none(), st.binary(max_size=20), st.sampled_from([bytes(63), bytes(64), bytes(8192), b"x" * 70_000])
)
records = st.lists(st.tuples(texts, texts), max_size=60)


def columns(rows):
    return column([key for key, _ in rows]), column([value for _, value in rows])


def opened(parts):
    return [(each.key, each.value) for part in parts for each in open_batch(part.batch(7, 3, 11, AT_MS))]


@given(records)
def test_what_is_packed_is_what_is_read(rows):
    assert opened(pack(*columns(rows))) == rows


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_a_batch_that_is_not_compressed_has_the_bytes_that_single_records_make(rows):
    (part,) = pack(*columns(rows))
    single = [Record(key, value, timestamp=AT_MS) for key, value in rows]
    plain = encode_batch(single, producer_id=7, producer_epoch=3, base_sequence=11, attributes=0x10)
    if not part.compressed:
        assert part.batch(7, 3, 11, AT_MS) == plain


@given(records, st.integers(1, 5))
def test_a_slice_of_columns_is_packed_alone(rows, start):
    keys, values = columns(rows)
    assert opened(pack(keys[start:], values[start:])) == rows[start:]
    assert hashes(keys[start:]).tolist() == hashes(column([key for key, _ in rows][start:])).tolist()


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_the_hash_of_a_column_is_that_of_its_keys(keys):
    assert hashes(column(keys)).tolist() == [murmur2(key) for key in keys]


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=60), st.integers(1, 9))
def test_keys_are_spread_as_java_does_and_keep_their_order(rows, count):
    found = {
        partition: opened(pack(keys, values))
        for partition, keys, values in split_by_partition(*columns(rows), count, count - 1)
    }
    wanted: dict[int, list] = {}
    for key, value in rows:
        wanted.setdefault(count - 1 if key is None else murmur2(key) % count, []).append((key, value))
    assert found == wanted


def test_what_is_packed_in_parts_has_the_records_of_each_partition_in_their_order():
    rows = [
        (b"%d" % (n % 999), None if n % 7 == 0 else b"value %d" % n)
        for n in range(packing.PARALLEL_RECORDS_MIN + 1)
    ]
    found: dict[int, list] = {}
    for number, parts in pack_partitions(*columns(rows), 3, 0):
        found.setdefault(number, []).extend(opened(parts))

    assert found == {
        number: opened(pack(*some)) for number, *some in split_by_partition(*columns(rows), 3, 0)
    }
    assert set(found) == {0, 1, 2}


def test_no_batch_is_larger_than_brokers_take_unless_a_record_is():
    rows = [
        (b"key", b"v" * size) for size in [packing.BATCH_BYTES - 100, 500, 10, packing.BATCH_BYTES * 2, 3, 4]
    ]
    parts = list(pack(*columns(rows)))
    assert [part.records for part in parts] == [1, 2, 1, 2]
    assert opened(parts) == rows


def test_there_are_no_more_records_in_a_batch_than_it_may_have():
    rows = [(None, b"")] * (packing.BATCH_RECORDS + 5)
    assert [part.records for part in pack(*columns(rows))] == [packing.BATCH_RECORDS, 5]


@given(st.binary(max_size=100), st.integers(0, 60_000))
def test_blocks_of_lz4_are_independent_since_java_reads_no_others(text, times):
    data = text * times
    frame = lz4_frame(data)
    assert frame[4] & 0x20
    assert bytes(cramjam.lz4.decompress(frame)) == data


def test_columns_of_other_kinds_of_bytes_become_columns():
    for each in (
        pa.array([b"a", None], pa.binary()),
        pa.array(["a", None]),
        pa.chunked_array([[b"a"], [None]], pa.binary()),
        [b"a", None],
    ):
        assert column(each).equals(pa.array([b"a", None], pa.large_binary()))


def test_what_writes_does_not_load_pandas():
    """It would be a third of the memory of a capture."""
    code = """
import sys
from headwater.client.bulk.packing import column, pack, split_by_partition
keys, values = column([b"a", None, b"b"]), column([None, b"1", b"2"])
assert sum(part.records for _, *some in split_by_partition(keys, values, 4, 0) for part in pack(*some)) == 3
import headwater.client.bulk.choose
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("size", "announced"), [(1, 0x40), (1 << 16, 0x40), ((1 << 16) + 1, 0x70)])
def test_a_small_frame_announces_small_blocks_since_readers_allocate_what_it_announces(size, announced):
    data = random.Random(size).randbytes(size)
    frame = lz4_frame(data)
    assert frame[5] == announced
    assert bytes(cramjam.lz4.decompress(frame)) == data
