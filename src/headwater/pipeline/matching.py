"""Matching: two DataFrames and a time bound as the input of an operator that joins them (``matched.py``, ``unmatched.py``)."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline import operator, pair, windowed
from headwater.pipeline.matched import HOW, Matched
from headwater.pipeline.pair import On
from headwater.pipeline.unmatched import Unmatched
from headwater.pipeline.wire import GONE, UNTIL, WEIGHT
from headwater.pipeline.within import Bound

__all__ = ["match", "unmatched"]

BUCKET_US_MIN = 1_000_000
Lengths = tuple[str | None, str | None, str | None]
"""Within, before and after."""


def match(
    left: DataFrame, right: DataFrame, on: On, time: str | Sequence[str], lengths: Lengths, *, how: str
) -> DataFrame:
    """``hw.match``."""
    if how not in HOW:
        raise UsageError("match: how is wrong", got=repr(how), expected=", ".join(HOW))
    bound = _bound("match", lengths)
    times = _times("match", left, right, time)
    both, key = pair.paired("match", left, right, on)
    equal = pair.columns_on("match", left.schema, right.schema, on)
    _check_names(left.schema, right.schema, {here for here, there in equal.items() if here == there})
    # Of a pair one row may be from as long before the watermark as the other one came after it.
    behind = _text(max(bound.before_us, bound.after_us)) if how == "inner" else ""
    logic = Matched(key=key, on=tuple(equal.items()), time=times, bound=bound, how=how, behind=behind)
    rows = operator.run(logic, both)
    return _marked(rows, left, right, times) if how == "inner" else rows


def unmatched(
    left: DataFrame, right: DataFrame, on: On, time: str | Sequence[str], lengths: Lengths
) -> DataFrame:
    """``hw.unmatched``."""
    bound = _bound("unmatched", lengths)
    times = _times("unmatched", left, right, time)
    both, key = pair.paired("unmatched", left, right, on)
    behind = _text(bound.after_us + operator.horizon_us())
    rows = operator.run(Unmatched(key=key, time=times, bound=bound, behind=behind), both)
    return _marked(rows, left, left, (times[0], times[0]))


def _bound(what: str, lengths: Lengths) -> Bound:
    within, before, after = lengths
    if (within is None) == (before is None and after is None):
        raise UsageError(
            f"{what}: the bound is either within, or before and after, or one of these",
            expected="within='10 minutes', or after='10 minutes'",
        )
    names = {"before": before, "after": after} if within is None else {"before": within, "after": within}
    before_us, after_us = (
        0 if text is None else windowed.length_us(what, name if within is None else "within", text)
        for name, text in names.items()
    )
    return Bound(before_us, after_us, max(before_us + after_us, BUCKET_US_MIN))


def _times(what: str, left: DataFrame, right: DataFrame, time: str | Sequence[str]) -> tuple[str, str]:
    names = (time, time) if isinstance(time, str) else tuple(time)
    if len(names) != len(("left", "right")):
        raise UsageError(f"{what}: time is one column, or that of the left and that of the right", got=", ".join(names))  # fmt: skip
    for side, rows, name in (("left", left, names[0]), ("right", right, names[1])):
        hidden = [each for each in (WEIGHT, GONE, UNTIL) if each in rows.columns]
        if hidden:
            raise UsageError(
                f"{what}: rows of the {side} input may still be taken back",
                expected="two streams",
                hint="tables are joined with hw.join, and a stream with a table by hw.enrich",
            )
        windowed.check_event_time(what, rows, name)
    if left.isStreaming != right.isStreaming:
        raise UsageError(f"{what}: one input is a stream and the other one is not", expected="two streams")
    return names[0], names[1]


def _check_names(left: StructType, right: StructType, shared: set[str]) -> None:
    twice = [name for name in right.names if name in left.names and name not in shared]
    if twice:
        raise UsageError(
            f"match: both inputs have a column {', '.join(map(repr, twice))}",
            hint="rename one with a select",
        )


def _marked(rows: DataFrame, left: DataFrame, right: DataFrame, times: tuple[str, str]) -> DataFrame:
    """The event times are still event times: Spark's windows may follow."""
    for side, name in zip((left, right), times, strict=True):
        mark = side.schema[name].metadata
        if mark:
            rows = rows.withMetadata(name, mark)
    return rows


def _text(length_us: int) -> str:
    return f"{-(-length_us // 1000)} milliseconds" if length_us else ""
