"""Sketches: small summaries of many values, as aggregates for ``groupBy(…).agg(…)``.

    orders.groupBy(F.window("at", "1 minute"), "site").agg(hw.sketch.distinct("user_id").alias("users"))

Each gives a struct: ``estimate`` is the number or numbers, ``error`` their error, and ``sketch`` the bytes
from which rows can be merged later (``GET /views/NAME?merge=users``, `headwater.merge`). With the argument
``error=`` you choose the greatest error. The row has the actual one, which may be smaller, since sizes come
in steps. Nulls do not count.
"""

import math

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from headwater.errors import UsageError
from headwater.sketches import merge

__all__ = ["bloom", "distinct", "frequent", "members", "percentiles"]

HLL_LG = range(4, 22)
THETA_LG = range(4, merge.THETA_LG_MAX + 1)
KLL_K = range(8, 65_536)
FREQUENT_LG = range(5, 18)
FULL = 0.75
"""The share of its slots that a table of frequent values can fill."""
BLOOM_BITS_MAX = 4_000_000
"""Half a megabyte: a larger one would not fit into a record, in which it is text."""
BLOOM_HEADER_BYTES = 16


def distinct(column: str | Column, *, error: float = 0.02) -> Column:
    """The number of different values (HLL).

    ``error`` is the relative standard error: two of three estimates are nearer.
    """
    lg = _size("distinct", error, {lg: merge.error_of_hll(lg) for lg in HLL_LG})
    sketch = F.hll_sketch_agg(_text(column), F.lit(lg))
    return _row(F.hll_sketch_estimate(sketch), F.lit(merge.error_of_hll(lg)), sketch)


def members(column: str | Column, *, error: float = 0.02) -> Column:
    """The number of different values (theta).

    Up to ten times as large as ``distinct``, but the sets can be intersected.
    """
    lg = _size("members", error, {lg: merge.error_of_theta(lg) for lg in THETA_LG})
    sketch = F.theta_sketch_agg(_text(column), F.lit(lg))
    return _row(F.theta_sketch_estimate(sketch), F.lit(merge.error_of_theta(lg)), sketch)


def percentiles(
    column: str | Column, ranks: tuple[float, ...] = merge.RANKS, *, error: float = 0.015
) -> Column:
    """The values at these ranks (KLL), as ``p50``, ``p90``, ``p99``.

    ``error`` bounds the error of a rank in 99 of 100 cases.
    """
    wrong = [rank for rank in ranks if not 0 <= rank <= 1]
    if wrong or not ranks:
        raise UsageError(
            "hw.sketch.percentiles: ranks= is wrong",
            got=repr(ranks),
            expected="one or more numbers from 0 to 1",
        )
    k = _size("percentiles", error, {k: merge.error_of_kll(k) for k in KLL_K})
    sketch = F.kll_sketch_agg_double(_column(column).cast("double"), F.lit(k))
    has_values = F.kll_sketch_get_n_double(sketch) > 0
    values = [
        F.when(has_values, F.kll_sketch_get_quantile_double(sketch, F.lit(float(rank)))).alias(
            merge.rank_name(rank)
        )
        for rank in ranks
    ]
    return _row(F.struct(*values), F.lit(merge.error_of_kll(k)), sketch)


def frequent(column: str | Column, k: int = merge.TOP, *, error: float = 0.01) -> Column:
    """The k most frequent values, as text, with their counts; only values that are certainly among them.

    ``error`` is the share of all rows by which a count may be too great.
    """
    lg = _size("frequent", error, {lg: merge.error_of_frequent(lg) for lg in FREQUENT_LG})
    tracked = int((1 << lg) * FULL)
    if not 0 < k < tracked:
        raise UsageError(
            "hw.sketch.frequent: k= is wrong", got=str(k), expected=f"1 to {tracked - 1} with this error"
        )
    accumulated = F.call_function("approx_top_k_accumulate", _text(column), F.lit(tracked))
    # One more, since Spark counts nulls too.
    most = F.call_function("approx_top_k_estimate", accumulated, F.lit(k + 1))
    top = F.slice(F.filter(most, lambda entry: entry["item"].isNotNull()), 1, k)
    return _row(top, F.lit(merge.error_of_frequent(lg)), accumulated["sketch"])


def bloom(column: str | Column, capacity: int, *, error: float = 0.01) -> Column:
    """The set of values (a Bloom filter for up to ``capacity`` of them), by their text.

    ``estimate`` is the approximate number of values, and ``error`` the share of other values that are taken
    for one of them: as requested at ``capacity`` values, smaller with fewer, greater with more.
    """
    from headwater.pipeline.build import plan_edits

    if not 0 < error < 1 or capacity < 1:
        got = f"capacity {capacity}, error {error}"
        raise UsageError(
            "hw.sketch.bloom: its size is wrong",
            got=got,
            expected="a capacity of 1 or more, and an error between 0 and 1",
        )
    bits = math.ceil(-capacity * math.log(error) / math.log(2) ** 2 / 64) * 64
    if bits > BLOOM_BITS_MAX:
        raise UsageError(
            "hw.sketch.bloom: the filter is too large for a record",
            got=f"{bits:,} bits",
            expected=f"at most {BLOOM_BITS_MAX:,}",
            hint="group by more columns, or allow a greater error",
        )
    hashes = max(1, round(bits / capacity * math.log(2)))
    sketch = plan_edits.bloom(_text(column), capacity, bits)
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
    """The smallest size whose error is small enough."""
    smallest = next((size for size, stated in errors.items() if stated <= error), None)
    if smallest is None:
        least = min(errors.values())
        raise UsageError(
            f"hw.sketch.{name}: error= is too small", got=str(error), expected=f"at least {least:.5f}"
        )
    return smallest
