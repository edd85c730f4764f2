"""Operators over two inputs as a plain batch: joins of Spark's.

Those that delay rows emit the rows that the view's watermark has passed.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.duration import duration_us
from headwater.pipeline.asof import table_changes
from headwater.pipeline.batch.plain import tables
from headwater.pipeline.batch.plain.moment import At
from headwater.pipeline.batch.plain.tables import micros
from headwater.pipeline.wire.wire import quoted

__all__ = ["enrich", "join", "match", "unmatched"]

On = str | Sequence[str] | Mapping[str, str]
KINDS = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer"}
RIGHT = "_plain_right_"
"""The prefix of columns of the right input while both inputs are in one frame."""


def join(left: DataFrame, right: DataFrame, *, on: On, how: str = "inner") -> DataFrame:
    return _joined(left, right, _pairs(on), how, [])


def match(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    time: str | Sequence[str],
    within: str | None = None,
    before: str | None = None,
    after: str | None = None,
    how: str = "inner",
) -> DataFrame:
    near = _near(time, within or before, within or after)
    return _joined(left, right, _pairs(on), how, [near])


def unmatched(
    at: At,
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    time: str | Sequence[str],
    within: str | None = None,
    before: str | None = None,
    after: str | None = None,
) -> DataFrame:
    """The rows without a partner that can have none any more, and those that lack a time or a key."""
    pairs = _pairs(on)
    near = [*_equal(pairs), _near(time, within or before, within or after)]
    alone = left.join(_renamed(right), _all(near), "left_anti")
    passed = at.passed_us("unmatched")
    if passed is None:
        return alone
    moment = micros(F.col(quoted(_times(time)[0])))
    over = moment < passed - at.horizon_us - _length(within or after)
    return alone.where(over | _lone(pairs, moment))


def enrich(
    at: At,
    stream: DataFrame,
    table: DataFrame,
    on: On,
    *,
    as_of: str = "",
    valid: str = "",
    missing: str = "keep",
    wait: str = "",
    final: str = "",
    correct: str = "",  # noqa: ARG001  how long a row is corrected: here all versions are known
    version: str = "version",
) -> DataFrame:
    """Each event with the version that was valid at its time."""
    if not as_of:
        raise at.impossible("enrich without as_of", "its result depends on when an event was processed")
    pairs = _pairs(on)
    offered = table_changes.offered(table)
    changes = offered.changes() if offered is not None and set(pairs.values()) == set(offered.key) else table
    versions = tables.spans(changes, list(pairs.values()), valid)
    moment = micros(F.col(quoted(as_of)))
    since, until = (F.col(f"{RIGHT}{name}") for name in (tables.FROM, tables.TO))
    holds = (moment >= since) & (until.isNull() | (moment < until))
    how = "inner" if missing == "drop" else "left_outer"
    both = stream.join(_renamed(versions), _all([*_equal(pairs), holds]), how)
    held = final or (wait if missing == "wait" else "")
    passed = at.passed_us("enrich") if held else None
    if passed is not None:
        out = (moment + duration_us(held) < passed) | _lone(pairs, moment)
        both = both.where(out if final else out | F.col(f"{RIGHT}{tables.VERSION}").isNotNull())
    same = {there for here, there in pairs.items() if here == there}
    own = [name for name in tables.columns(changes) if name not in same]
    return both.select(
        *(F.col(quoted(name)) for name in stream.columns),
        *(F.col(quoted(RIGHT + name)).alias(name) for name in own),
        F.col(f"{RIGHT}{tables.VERSION}").alias(version),
    )


# ---- parts ---------------------------------------------------------------------------------------------


def _joined(
    left: DataFrame, right: DataFrame, pairs: Mapping[str, str], how: str, more: Sequence[Column]
) -> DataFrame:
    """The columns of the left, and those of the right without key columns of the same name."""
    both = left.join(_renamed(right), _all([*_equal(pairs), *more]), KINDS[how])
    same = {here for here, there in pairs.items() if here == there}
    here = [
        F.coalesce(F.col(quoted(name)), F.col(quoted(RIGHT + name))).alias(name)
        if name in same
        else F.col(quoted(name))
        for name in left.columns
    ]
    there = [F.col(quoted(RIGHT + name)).alias(name) for name in right.columns if name not in same]
    return both.select(*here, *there)


def _renamed(rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(quoted(name)).alias(RIGHT + name) for name in rows.columns))


def _pairs(on: On) -> dict[str, str]:
    if isinstance(on, Mapping):
        return dict(on)
    return {name: name for name in ([on] if isinstance(on, str) else on)}


def _equal(pairs: Mapping[str, str]) -> list[Column]:
    return [F.col(quoted(here)) == F.col(quoted(RIGHT + there)) for here, there in pairs.items()]


def _near(time: str | Sequence[str], before: str | None, after: str | None) -> Column:
    here, there = _times(time)
    apart = micros(F.col(quoted(RIGHT + there))) - micros(F.col(quoted(here)))
    return apart.between(-_length(before), _length(after))


def _times(time: str | Sequence[str]) -> tuple[str, str]:
    return (time, time) if isinstance(time, str) else (time[0], time[1])


def _length(text: str | None) -> int:
    return duration_us(text) if text else 0


def _lone(pairs: Mapping[str, str], moment: Column) -> Column:
    """Whether an event never has a partner: it lacks its time, or a column that it is joined on."""
    lone = moment.isNull()
    for here in pairs:
        lone = lone | F.col(quoted(here)).isNull()
    return lone


def _all(conditions: Sequence[Column]) -> Column:
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = whole & condition
    return whole
