"""Origin: the changes of a table behind rows that selects and filters have made of it.

What a select says of a row that comes in, it says of the same row when it goes out: so it may as well be applied to the changes, before anybody keeps the rows. A change
that a filter leaves out is one of a row that is not there.
"""

from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from headwater.pipeline import catalyst, once, operator
from headwater.pipeline.current import DELETED, ID, OFFSET, OWN, PARTITION
from headwater.pipeline.operator import Table
from headwater.pipeline.wire import WEIGHT

__all__ = ["KEPT", "Origin", "origin"]

KEPT = once.KEPT
"""Whether there is a row: the change is no delete, and every filter lets it through."""
PLACE = (ID, PARTITION, OFFSET)


class Origin(NamedTuple):
    """Changes: the columns of the rows, `PLACE` and `KEPT`."""

    changes: DataFrame
    columns: list[str]
    key: tuple[str, ...]
    """Which of the columns are those whose text is the id; none when they are not all there."""


def origin(rows: DataFrame) -> Origin | None:
    """Where the rows of a stream come from; None when it is no table, or more has been done with it."""
    if not rows.isStreaming:
        return None
    plan = catalyst.plan(rows)
    steps = once.steps(plan)
    for table in operator.tables():
        at = _place(steps, table)
        taken = {*PLACE, KEPT} & set(rows.columns)
        if at is not None and not taken and all(map(once.is_repeatable, steps[:at])):
            return _origin(rows, table, steps[:at], plan)
    return None


def _place(steps: list[Any], table: Table) -> int | None:
    whole = catalyst.plan(table.rows)
    return next((at for at, step in enumerate(steps) if step.equals(whole)), None)


def _origin(rows: DataFrame, table: Table, steps: list[Any], plan: Any) -> Origin:
    expressions = catalyst.of(rows.sparkSession, once.EXPRESSIONS)
    ids = {each.name(): each.exprId() for each in catalyst.items(catalyst.plan(table.rows).output())}
    below = _named(table.changes, ids)
    of_change = {each.name(): each for each in catalyst.items(below.output()) if each.name() in OWN}
    made, kept = once.stacked(rows, below, steps, expressions.Not(of_change[DELETED]))
    shown = [each for each in catalyst.items(plan.output()) if each.name() != WEIGHT]
    listed = [*shown, *(of_change[name] for name in PLACE), kept]
    names = {each.exprId(): each.name() for each in shown}
    key = tuple(names.get(ids[name], "") for name in table.key)
    return Origin(
        catalyst.frame(rows, made.copy(catalyst.seq(rows, listed), made)),
        [each.name() for each in shown],
        key if all(key) else (),
    )


def _named(changes: DataFrame, ids: dict[str, Any]) -> Any:
    """The changes, whose columns are those of the rows, with a weight for selects of all columns to hand on."""
    expressions = catalyst.of(changes.sparkSession, once.EXPRESSIONS)
    nothing, no_metadata = (
        catalyst.seq(changes, []),
        catalyst.of(changes.sparkSession, "scala.Option").empty(),
    )

    def named(value: Any, name: str) -> Any:
        return expressions.Alias(value, name, ids[name], nothing, no_metadata, nothing)

    made = catalyst.plan(changes.selectExpr("1"))
    weight = named(made.projectList().head().child(), WEIGHT)
    columns = catalyst.items(made.child().output())
    listed = [named(each, each.name()) if each.name() in ids else each for each in columns]
    return made.copy(catalyst.seq(changes, [*listed, weight]), made.child())
