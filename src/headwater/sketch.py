"""Sketches: small summaries of many values, as aggregate columns for ``groupBy(…).agg(…)``.

    orders.groupBy(F.window("at", "1 minute"), "site").agg(hw.sketch.distinct("user_id").alias("users"))

Each gives a struct: ``estimate``, the number or numbers; ``error``, how exact they are; ``sketch``, the bytes, so that rows can be
merged later (``GET /views/NAME?merge=users``, `headwater.merge`). ``error=`` asks for an exactness, and the row says which one
it got, since sizes come in steps. Nulls do not count.
"""

import math

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from headwater import merge
from headwater.errors import UsageError

__all__ = ["bloom", "distinct", "frequent", "members", "percentiles"]

HLL_LG = range(4, 22)
THETA_LG = range(4, merge.THETA_LG_MAX + 1)
KLL_K = range(8, 65_536)
FREQUENT_LG = range(5, 18)
FULL = 0.75
"""The share of its places that a table of frequent values fills."""
BLOOM_BITS_MAX = 4_000_000
"""Half a megabyte: more would not fit into a record, in which it is text."""
BLOOM_HEADER_BYTES = 16


def distinct(column: str | Column, *, error: float = 0.02) -> Column:
    """How many different values there are (HLL). ``error`` is the relative standard error: two of three answers are nearer."""
    lg = _size("distinct", error, {lg: merge.error_of_hll(lg) for lg in HLL_LG})
    sketch = F.hll_sketch_agg(_text(column), F.lit(lg))
    return _row(F.hll_sketch_estimate(sketch), F.lit(merge.error_of_hll(lg)), sketch)


def members(column: str | Column, *, error: float = 0.02) -> Column:
    """How many different values there are (theta): up to ten times the bytes of ``distinct``, but sets that can be intersected."""
    lg = _size("members", error, {lg: merge.error_of_theta(lg) for lg in THETA_LG})
    sketch = F.theta_sketch_agg(_text(column), F.lit(lg))
    return _row(F.theta_sketch_estimate(sketch), F.lit(merge.error_of_theta(lg)), sketch)


def percentiles(
    column: str | Column, ranks: tuple[float, ...] = merge.RANKS, *, error: float = 0.015
) -> Column:
    """The values at some ranks (KLL), as ``p50``, ``p90``, ``p99``. ``error`` is how far off their rank is, in 99 of 100 cases."""
    wrong = [rank for rank in ranks if not 0 <= rank <= 1]
    if wrong or not ranks:
        raise UsageError(
            "hw.sketch.percentiles: ranks are wrong", got=repr(ranks), expected="numbers from 0 to 1"
        )
    k = _size("percentiles", error, {k: merge.error_of_kll(k) for k in KLL_K})
    sketch = F.kll_sketch_agg_double(_column(column).cast("double"), F.lit(k))
    some = F.kll_sketch_get_n_double(sketch) > 0
    values = [
        F.when(some, F.kll_sketch_get_quantile_double(sketch, F.lit(float(rank)))).alias(
            merge.rank_name(rank)
        )
        for rank in ranks
    ]
    return _row(F.struct(*values), F.lit(merge.error_of_kll(k)), sketch)


def frequent(column: str | Column, k: int = merge.TOP, *, error: float = 0.01) -> Column:
    """The k most frequent values, as text, with counts; only those that surely are. ``error``: the share of all rows that a count may be too great by."""
    lg = _size("frequent", error, {lg: merge.error_of_frequent(lg) for lg in FREQUENT_LG})
    tracked = int((1 << lg) * FULL)
    if not 0 < k < tracked:
        raise UsageError(
            "hw.sketch.frequent: k is wrong", got=str(k), expected=f"1 to {tracked - 1} at this error"
        )
    found = F.call_function("approx_top_k_accumulate", _text(column), F.lit(tracked))
    # One more, since Spark counts nulls too.
    most = F.call_function("approx_top_k_estimate", found, F.lit(k + 1))
    shown = F.slice(F.filter(most, lambda each: each["item"].isNotNull()), 1, k)
    return _row(shown, F.lit(merge.error_of_frequent(lg)), found["sketch"])


def bloom(column: str | Column, capacity: int, *, error: float = 0.01) -> Column:
    """Which values there are (a Bloom filter for up to ``capacity`` of them): text, or what has the same text everywhere.

    ``estimate`` is about how many, and ``error`` how often a value is found that is not there: as asked for when there are
    ``capacity`` values, less before, more beyond.
    """
    from headwater.pipeline import plan

    if not 0 < error < 1 or capacity < 1:
        got = f"capacity {capacity}, error {error}"
        raise UsageError(
            "hw.sketch.bloom: size is wrong", got=got, expected="a capacity, and an error in between 0 and 1"
        )
    bits = math.ceil(-capacity * math.log(error) / math.log(2) ** 2 / 64) * 64
    if bits > BLOOM_BITS_MAX:
        raise UsageError(
            "hw.sketch.bloom: this is too large for a record",
            got=f"{bits} bits",
            expected=f"at most {BLOOM_BITS_MAX}",
            hint="group by more, or allow a greater error",
        )
    hashes = max(1, round(bits / capacity * math.log(2)))
    sketch = plan.bloom(_text(column), capacity, bits)
    ones = F.bitmap_count(F.substring(sketch, BLOOM_HEADER_BYTES + 1, bits // 8))
    fill = F.coalesce(ones, F.lit(0)) / bits
    free = F.greatest(1 - fill, F.lit(1 / bits))
    return _row(F.round(-bits / hashes * F.log(free)).cast("bigint"), F.pow(fill, F.lit(hashes)), sketch)


def _row(estimate: Column, error: Column, sketch: Column) -> Column:
    return F.struct(estimate.alias("estimate"), error.alias("error"), sketch.alias("sketch"))


def _column(column: str | Column) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _text(column: str | Column) -> Column:
    return _column(column).cast("string")


def _size(name: str, error: float, errors: dict[int, float]) -> int:
    """The smallest size that is as exact as asked for."""
    found = next((size for size, stated in errors.items() if stated <= error), None)
    if found is None:
        least = min(errors.values())
        raise UsageError(
            f"hw.sketch.{name}: error is wrong", got=str(error), expected=f"at least {least:.5f}"
        )
    return found
