"""The live join: each change on either side is emitted as the changes that it makes in the result.

There are two ways to join, with the same result:

    by key  (``join_by_key.py``)   both inputs are tables, directly or after select and where only.
                                   Faster: the changes of the tables are joined, and each row is stored once
    by row  (``join_by_row.py``)   all other inputs, such as a stream, another join, or the result of a
                                   Python function. Rows have weights, and equal rows are counted

``join_pairs.py`` has the common part: from the rows that a batch changes to the pairs that it emits.
"""

from collections.abc import Iterable

from pyspark.sql import DataFrame

from headwater.errors import UsageError
from headwater.pipeline.operator import apply
from headwater.pipeline.operator.event_rows import check_no_windows
from headwater.pipeline.operator.two_inputs import On, all_present, columns_on, pair
from headwater.pipeline.tables.join_by_key import join_by_key
from headwater.pipeline.tables.join_by_row import RowJoin
from headwater.pipeline.tables.table_origin import find_origin
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["KINDS", "join"]

KINDS = ("inner", "left", "right", "full")


def join(left: DataFrame, right: DataFrame, on: On, how: str) -> DataFrame:
    """The live join of two DataFrames."""
    if how not in KINDS:
        raise UsageError("join: unknown how=", got=repr(how), expected=", ".join(KINDS))
    pairs = columns_on("join", left.schema, right.schema, on)
    shared = tuple(here for here, there in pairs.items() if here == there)
    for frame in (left, right):
        check_no_windows("join", frame)
    _check_columns(left, right, (*shared, WEIGHT))
    origins = find_origin(left), find_origin(right)
    if origins[0] is not None and origins[1] is not None:
        return join_by_key((origins[0], origins[1]), pairs, how, shared)
    # Rows without a key have no partner, and would all go to one shard: only an outer join needs them.
    if how in ("inner", "right"):
        left = left.where(all_present(pairs))
    if how in ("inner", "left"):
        right = right.where(all_present(pairs.values()))
    both, key = pair("join", left, right, on)
    return apply.run(RowJoin(key=key, how=how, shared=shared), both)


def _check_columns(left: DataFrame, right: DataFrame, shared: Iterable[str]) -> None:
    twice = [name for name in right.columns if name in left.columns and name not in shared]
    if twice:
        raise UsageError(
            "join: both inputs have a column of the same name",
            got=", ".join(twice),
            hint=f'rename it in one of them before: .withColumnRenamed("{twice[0]}", …)',
        )
