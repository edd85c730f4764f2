"""Merging without Spark: every kind of sketch, and bytes that are none."""

import random
import struct

import datasketches
import pytest

from headwater.errors import UsageError
from headwater.sketches import merge

LG = 12


def hll(values) -> bytes:
    sketch = datasketches.hll_sketch(LG, datasketches.HLL_8)
    for value in values:
        sketch.update(value)
    return sketch.serialize_updatable()


def theta(values) -> bytes:
    sketch = datasketches.update_theta_sketch(LG)
    for value in values:
        sketch.update(value)
    return sketch.compact().serialize()


def kll(values) -> bytes:
    sketch = datasketches.kll_doubles_sketch(200)
    for value in values:
        sketch.update(value)
    return sketch.serialize()


def frequent(values) -> bytes:
    sketch = datasketches.frequent_strings_sketch(8)
    for value in values:
        sketch.update(value)
    return sketch.serialize()


def merged(sketches, how="union"):
    first, *others = sketches
    merging = merge.begin(first, how)
    for each in others:
        merge.add(merging, each)
    return merging


@pytest.mark.parametrize("make", [hll, theta])
def test_distinct_values_of_overlapping_sets_are_counted_once(make):
    parts = [[f"u{n}" for n in range(start, start + 8_000)] for start in range(0, 40_000, 4_000)]
    found = merged([make(part) for part in parts])
    assert found.estimate(None) == pytest.approx(44_000, rel=4 * merge.error_of_hll(LG))
    assert 0 < found.error <= merge.error_of_hll(LG)


def test_small_sets_are_exact():
    found = merged([theta(f"u{n}" for n in range(100)), theta(f"u{n}" for n in range(50, 150))])
    assert (found.estimate(None), found.error) == (150, 0)


def test_an_intersection_is_what_all_rows_have():
    parts = [theta(f"u{n}" for n in range(start, 30_000)) for start in (0, 5_000, 10_000)]
    found = merged(parts, "intersection")
    assert found.estimate(None) == pytest.approx(20_000, rel=4 * found.error)
    with pytest.raises(UsageError, match=r"distinct sketches have no intersection.*hw\.sketch\.members"):
        merge.begin(hll(["a"]), "intersection")


def test_percentiles_are_as_near_as_stated_and_named_as_in_the_row():
    values = [random.Random(7).random() for _ in range(10)] + [n / 50_000 for n in range(50_000)]
    found = merged([kll(values[part::20]) for part in range(20)])
    estimate = found.estimate({"p5": 0, "p50": 0, "p99_9": 0})
    assert list(estimate) == ["p5", "p50", "p99_9"]
    for name, rank in (("p5", 0.05), ("p50", 0.5), ("p99_9", 0.999)):
        assert estimate[name] == pytest.approx(rank, abs=2 * found.error)
    assert list(found.estimate(None)) == ["p50", "p90", "p99"]
    assert merge.begin(kll([])).estimate(None) == {"p50": None, "p90": None, "p99": None}


def test_frequent_values_add_up():
    parts = [["a"] * 5 + ["b"] * 3 + [f"x{part}"] for part in range(10)]
    found = merged([frequent(part) for part in parts])
    assert found.estimate([1, 2]) == [{"item": "a", "count": 50}, {"item": "b", "count": 30}]
    assert found.error == pytest.approx(3.5 / 256)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (hll(["a"]), theta(["a"]), "different kinds cannot be merged; got distinct and members"),
        (hll(["a"]), b"nonsense", "this is not a sketch; got 8 bytes; expected distinct"),
        (hll(["a"]), b"", "this is not a sketch; got 0 bytes"),
        (kll([1.0] * 1000), kll([1.0] * 1000)[:40], "this sketch is damaged"),
        (hll(range(50_000)), hll(range(50_000))[:100], "this sketch is damaged"),
        (theta(range(50_000)), theta(range(50_000))[:100], "this sketch is damaged"),
        (frequent(["abc"] * 9), frequent(["abc"] * 9)[:-1], "this sketch is damaged"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(first, second, message):
    merging = merge.begin(first)
    with pytest.raises(UsageError, match=message):
        merge.add(merging, second)


def bloom(words: int, bits: int = 0, hashes: int = 3, version: int = 2) -> bytes:
    return struct.pack(">iiii", version, hashes, 0, words) + bits.to_bytes(8 * words)


def test_filters_are_united_bit_by_bit():
    found = merged([bloom(2, 1), bloom(2, 2 << 64), bloom(2, 1)])
    assert found.error == (2 / 128) ** 3
    assert not merge.has(found, "a")
    full = merge.begin(bloom(2, (1 << 128) - 1))
    assert merge.has(full, "a")
    assert (full.error, full.estimate(None) > 100) == (1, True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bloom(4), "different sizes cannot be merged"),
        (bloom(2, hashes=4), "different sizes cannot be merged"),
        (bloom(2)[:-1], "different sizes cannot be merged"),
    ],
)
def test_filters_of_different_sizes_are_refused(data, message):
    with pytest.raises(UsageError, match=message):
        merge.add(merge.begin(bloom(2)), data)


@pytest.mark.parametrize("data", [bloom(2)[:4], bloom(2)[:-1], bloom(0), bloom(2, hashes=0), bloom(2) + b"x"])
def test_what_is_not_a_filter_is_refused(data):
    with pytest.raises(UsageError, match="this is not a Bloom filter"):
        merge.begin(data)


def test_only_a_filter_knows_single_values():
    with pytest.raises(UsageError, match=r"distinct sketches cannot look up values"):
        merge.has(merge.begin(hll(["a"])), "a")


@pytest.mark.parametrize(("rank", "name"), [(0.5, "p50"), (0.999, "p99_9"), (0, "p0"), (0.07, "p7")])
def test_names_of_percentiles(rank, name):
    assert merge.rank_name(rank) == name
