"""The entries of ``hw.match`` and ``hw.unmatched``: they check their arguments and apply the operators."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline.interval.bound import Bound
from headwater.pipeline.interval.match import HOW, Match
from headwater.pipeline.interval.unmatched import Unmatched
from headwater.pipeline.operator import apply, building, event_rows, two_inputs
from headwater.pipeline.operator.two_inputs import On
from headwater.pipeline.wire.wire import GONE, UNTIL, WEIGHT

__all__ = ["match", "unmatched"]

BUCKET_US_MIN = 1_000_000
Lengths = tuple[str | None, str | None, str | None]
"""The arguments within, before and after."""


def match(
    left: DataFrame, right: DataFrame, on: On, time: str | Sequence[str], lengths: Lengths, *, how: str
) -> DataFrame:
    """``hw.match``."""
    if how not in HOW:
        raise UsageError("match: unknown how=", got=repr(how), expected=", ".join(HOW))
    bound = _bound("match", lengths)
    times = _times("match", left, right, time)
    both, key = two_inputs.pair("match", left, right, on)
    equal = two_inputs.columns_on("match", left.schema, right.schema, on)
    _check_names(left.schema, right.schema, {here for here, there in equal.items() if here == there})
    # A pair is emitted when its later row arrives; the earlier row is older by the bound at most.
    delay = _text(max(bound.before_us, bound.after_us)) if how == "inner" else ""
    logic = Match(key=key, on=tuple(equal.items()), time=times, bound=bound, how=how, output_delay=delay)
    rows = apply.run(logic, both)
    return _with_event_times(rows, left, right, times) if how == "inner" else rows


def unmatched(
    left: DataFrame, right: DataFrame, on: On, time: str | Sequence[str], lengths: Lengths
) -> DataFrame:
    """``hw.unmatched``."""
    bound = _bound("unmatched", lengths)
    times = _times("unmatched", left, right, time)
    both, key = two_inputs.pair("unmatched", left, right, on)
    delay = _text(bound.after_us + building.horizon_us())
    rows = apply.run(Unmatched(key=key, time=times, bound=bound, output_delay=delay), both)
    return _with_event_times(rows, left, left, (times[0], times[0]))


def _bound(what: str, lengths: Lengths) -> Bound:
    within, before, after = lengths
    if (within is None) == (before is None and after is None):
        raise UsageError(
            f"{what}: give either within=, or one or both of before= and after=",
            got=", ".join(
                f"{name}={text!r}"
                for name, text in (("within", within), ("before", before), ("after", after))
                if text is not None
            )
            or "none of them",
            expected="for example within='10 minutes'",
        )
    names = {"before": before, "after": after} if within is None else {"before": within, "after": within}
    before_us, after_us = (
        0 if text is None else event_rows.length_us(what, name if within is None else "within", text)
        for name, text in names.items()
    )
    return Bound(before_us, after_us, max(before_us + after_us, BUCKET_US_MIN))


def _times(what: str, left: DataFrame, right: DataFrame, time: str | Sequence[str]) -> tuple[str, str]:
    names = (time, time) if isinstance(time, str) else tuple(time)
    if len(names) != len(("left", "right")):
        raise UsageError(
            f"{what}: time= is wrong",
            got=", ".join(names),
            expected="one column that both inputs have, or a pair: (left column, right column)",
        )
    for side, rows, name in (("left", left, names[0]), ("right", right, names[1])):
        if any(hidden in rows.columns for hidden in (WEIGHT, GONE, UNTIL)):
            raise UsageError(
                f"{what}: the {side} input is not a stream: its rows may still change",
                expected="two streams",
                hint="hw.join joins tables, and hw.enrich a stream with a table",
            )
        event_rows.check_event_time(what, rows, name)
    if left.isStreaming != right.isStreaming:
        static = "right" if left.isStreaming else "left"
        raise UsageError(f"{what}: the {static} input is not a stream", expected="two streams")
    return names[0], names[1]


def _check_names(left: StructType, right: StructType, shared: set[str]) -> None:
    twice = [name for name in right.names if name in left.names and name not in shared]
    if twice:
        raise UsageError(
            "match: both inputs have a column of the same name",
            got=", ".join(twice),
            hint=f'rename it in one of them before: .withColumnRenamed("{twice[0]}", …)',
        )


def _with_event_times(
    rows: DataFrame, left: DataFrame, right: DataFrame, times: tuple[str, str]
) -> DataFrame:
    """The rows with both times marked as event times, so that Spark's windows may follow."""
    for side, name in zip((left, right), times, strict=True):
        mark = side.schema[name].metadata
        if mark:
            rows = rows.withMetadata(name, mark)
    return rows


def _text(length_us: int) -> str:
    return f"{-(-length_us // 1000)} milliseconds" if length_us else ""
