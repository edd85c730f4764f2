"""Pair: two inputs of an operator as rows of one frame, so that those with the same key meet in one shard.

Each row has ``_left`` or ``_right``, a struct of its input's columns, the other being null; ``_on1``, ``_on2``, … are what it is joined
on, and ``_weight`` is 1 for a row that comes in and -1 for one that is taken out again.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline import once, weights
from headwater.pipeline.spread import LEFT, RIGHT
from headwater.pipeline.wire import WEIGHT, quoted

__all__ = ["LEFT", "RIGHT", "On", "columns_on", "paired", "sides"]

On = str | Sequence[str] | Mapping[str, str]
"""Columns that both inputs have, or {column of the left: column of the right}."""


def paired(what: str, left: DataFrame, right: DataFrame, on: On) -> tuple[DataFrame, tuple[str, ...]]:
    """Both inputs as rows of one frame, and the names of its key columns. ``what`` names the operator in errors."""
    left, right = weights.carried(what, left), weights.carried(what, right)
    for each in (left, right):
        weights.check_settled(what, each)
    pairs = columns_on(what, left.schema, right.schema, on)
    key = tuple(f"_on{number}" for number in range(1, len(pairs) + 1))
    kinds = {LEFT: _row(left.schema), RIGHT: _row(right.schema)}

    def side(frame: DataFrame, name: str, names: Sequence[str]) -> DataFrame:
        weight = F.col(WEIGHT) if WEIGHT in frame.columns else F.lit(1)
        return frame.select(
            *(F.col(quoted(column)).alias(to) for column, to in zip(names, key, strict=True)),
            *sides(kinds, name),
            weight.cast("int").alias(WEIGHT),
        )

    both = once.union(side(left, LEFT, list(pairs)), side(right, RIGHT, list(pairs.values())))
    return both, key


def sides(kinds: Mapping[str, StructType], name: str) -> list[Column]:
    """``_left`` and ``_right`` of rows that are one of them."""
    structs = {
        each: F.struct(*(F.col(quoted(column)) for column in kind.names))
        if each == name
        else F.lit(None).cast(kind)
        for each, kind in kinds.items()
    }
    return [value.alias(each) for each, value in structs.items()]


def columns_on(what: str, left: StructType, right: StructType, on: On) -> dict[str, str]:
    """What rows are joined on, as {column of the left: column of the right}."""
    if isinstance(on, Mapping):
        pairs = dict(on)
    else:
        pairs = {name: name for name in ((on,) if isinstance(on, str) else on)}
    if not pairs:
        raise UsageError(f"{what}: on is one or more columns of both inputs", got="none")
    for here, there in pairs.items():
        for name, kind, side in ((here, left, "left"), (there, right, "right")):
            if name not in kind.names:
                got = ", ".join(kind.names)
                raise UsageError(f"{what}: on {name!r} is no column of the {side} input", got=got)
        if left[here].dataType != right[there].dataType:
            raise UsageError(
                f"{what}: {here!r} and {there!r} are of different types",
                got=f"{left[here].dataType.simpleString()} and {right[there].dataType.simpleString()}",
                hint="cast one of them",
            )
    return pairs


def _row(kind: StructType) -> StructType:
    return StructType([field for field in kind.fields if field.name != WEIGHT])
