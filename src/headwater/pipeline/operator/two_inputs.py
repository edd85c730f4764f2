"""The two inputs of an operator as rows of one frame, so that rows with equal keys meet in one shard.

Each row has ``_left`` or ``_right``, a struct with the columns of its input; the other one is null. ``_on1``,
``_on2``, … are the values that it is joined on, and ``_weight`` is 1 for an inserted row and -1 for a
retracted one.
"""

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline.arrow.flatten import LEFT, RIGHT
from headwater.pipeline.operator import shared_scan, weights
from headwater.pipeline.wire.wire import WEIGHT, quoted

__all__ = ["LEFT", "RIGHT", "On", "all_present", "columns_on", "pair", "sides"]

On = str | Sequence[str] | Mapping[str, str]
"""Columns that both inputs have, or {column of the left: column of the right}."""


def pair(what: str, left: DataFrame, right: DataFrame, on: On) -> tuple[DataFrame, tuple[str, ...]]:
    """Both inputs as rows of one frame, and the names of its key columns.

    ``what`` names the operator in errors.
    """
    left, right = weights.carry_weights(what, left), weights.carry_weights(what, right)
    for rows in (left, right):
        weights.check_insert_only(what, rows)
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

    both = shared_scan.union(side(left, LEFT, list(pairs)), side(right, RIGHT, list(pairs.values())))
    return both, key


def sides(kinds: Mapping[str, StructType], name: str) -> list[Column]:
    """The columns ``_left`` and ``_right`` for rows of the side ``name``."""
    structs = {
        side: F.struct(*(F.col(quoted(column)) for column in kind.names))
        if side == name
        else F.lit(None).cast(kind)
        for side, kind in kinds.items()
    }
    return [value.alias(side) for side, value in structs.items()]


def columns_on(what: str, left: StructType, right: StructType, on: On) -> dict[str, str]:
    """The columns that rows are joined on, as {column of the left: column of the right}."""
    if isinstance(on, Mapping):
        pairs = dict(on)
    else:
        pairs = {name: name for name in ((on,) if isinstance(on, str) else on)}
    if not pairs:
        raise UsageError(
            f"{what}: on= names no column", expected="columns of both inputs, or {left column: right column}"
        )
    for left_name, right_name in pairs.items():
        for name, kind, side in ((left_name, left, "left"), (right_name, right, "right")):
            if name not in kind.names:
                columns = ", ".join(column for column in kind.names if not column.startswith("_"))
                raise UsageError(f"{what}: on={name!r} is not a column of the {side} input", expected=columns)
        if left[left_name].dataType != right[right_name].dataType:
            types = (left[left_name].dataType.simpleString(), right[right_name].dataType.simpleString())
            raise UsageError(
                f"{what}: columns {left_name!r} and {right_name!r} have different types",
                got=" and ".join(types),
                hint="cast one of them to the type of the other",
            )
    return pairs


def all_present(columns: Iterable[str]) -> str:
    """A condition in SQL: none of these columns is null."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in columns)


def _row(kind: StructType) -> StructType:
    return StructType([field for field in kind.fields if field.name != WEIGHT])
