"""The changes of a table from which rows were made by selects and filters only.

A select gives the same columns for a row that is inserted and for the same row when it is retracted. So
selects and filters may as well be applied to the changes, before any row is stored. A change that a filter
leaves out is a deletion.
"""

from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from headwater.pipeline.operator import building, shared_scan
from headwater.pipeline.operator.building import Table
from headwater.pipeline.spark import catalyst
from headwater.pipeline.tables.changelog import DELETED, ID, OFFSET, OWN, PARTITION
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["KEPT", "Origin", "find_origin"]

KEPT = shared_scan.KEPT
"""Whether there is a row: the change is not a deletion, and the row passes every filter."""
PLACE = (ID, PARTITION, OFFSET)


class Origin(NamedTuple):
    """A frame of changes: the columns of the rows, `PLACE` and `KEPT`."""

    changes: DataFrame
    columns: list[str]
    key: tuple[str, ...]
    """The columns whose text is the id of a change; empty if a select has dropped one of them."""


def find_origin(rows: DataFrame) -> Origin | None:
    """The changes from which rows were made.

    None if they are not streaming rows of a table, or other steps than selects and filters follow it.
    """
    if not rows.isStreaming:
        return None
    plan = catalyst.plan(rows)
    steps = shared_scan.steps(plan)
    for table in building.tables():
        above = _steps_above(steps, table)
        taken = {*PLACE, KEPT} & set(rows.columns)
        if above is not None and not taken and all(map(shared_scan.is_repeatable, above)):
            return _origin(rows, table, above, plan)
    return None


def _steps_above(steps: list[Any], table: Table) -> list[Any] | None:
    """The steps above the rows of a table; None if these are not among the steps."""
    table_plan = catalyst.plan(table.rows)
    return next((steps[:at] for at, step in enumerate(steps) if step.equals(table_plan)), None)


def _origin(rows: DataFrame, table: Table, steps: list[Any], plan: Any) -> Origin:
    expressions = catalyst.package(rows.sparkSession)
    ids = {column.name(): column.exprId() for column in catalyst.items(catalyst.plan(table.rows).output())}
    below = _with_ids(table.changes, ids)
    own = {column.name(): column for column in catalyst.items(below.output()) if column.name() in OWN}
    stacked, kept = shared_scan.stack_steps(rows, below, steps, expressions.Not(own[DELETED]))
    shown = [column for column in catalyst.items(plan.output()) if column.name() != WEIGHT]
    columns = [*shown, *(own[name] for name in PLACE), kept]
    names = {column.exprId(): column.name() for column in shown}
    key = tuple(names.get(ids[name], "") for name in table.key)
    return Origin(
        catalyst.frame(rows, stacked.copy(catalyst.seq(rows, columns), stacked)),
        [column.name() for column in shown],
        key if all(key) else (),
    )


def _with_ids(changes: DataFrame, ids: dict[str, Any]) -> Any:
    """The changes with the column ids of the rows, and with a weight, since selects may name it."""
    expressions = catalyst.package(changes.sparkSession)
    no_qualifier, no_metadata = (
        catalyst.seq(changes, []),
        catalyst.of(changes.sparkSession, "scala.Option").empty(),
    )

    def with_id(value: Any, name: str) -> Any:
        return expressions.Alias(value, name, ids[name], no_qualifier, no_metadata, no_qualifier)

    project = catalyst.plan(changes.selectExpr("1"))
    weight = with_id(project.projectList().head().child(), WEIGHT)
    columns = [
        with_id(column, column.name()) if column.name() in ids else column
        for column in catalyst.items(project.child().output())
    ]
    return project.copy(catalyst.seq(changes, [*columns, weight]), project.child())
