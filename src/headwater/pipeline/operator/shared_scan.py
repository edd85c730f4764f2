"""A union of two frames that derive from the same one and read it only once.

Spark reads a topic again for each part of a union. If both parts are selects and filters of one frame, each
row of it is read once and becomes a row of the first part, of the second, of both or of none (Spark's
``Expand``). Expressions after a filter are not computed for rows that it leaves out, since they might fail
there: these columns are null. Joins of tables stack selects and filters on the changes of a table in the same
way (``pipeline/tables/table_origin.py``).
"""

from typing import Any

from pyspark.sql import DataFrame

from headwater.pipeline.spark import catalyst

__all__ = ["KEPT", "is_repeatable", "stack_steps", "steps", "union"]

KEPT = "_kept"
"""The column that says whether a row belongs to its part."""
STEPS = {"Project", "Filter", "SubqueryAlias", "View"}
LEAVES = {"AttributeReference", "Literal", "NamedLambdaVariable"}
"""Expressions without children that may be computed repeatedly: no clocks."""
NOT_REPEATABLE = {"PythonUDF", "PythonUDAF", "ScalarSubquery", "Exists", "ListQuery", "InSubquery"}
"""Expressions that need more than their row, or are not computed by the JVM."""


def union(left: DataFrame, right: DataFrame) -> DataFrame:
    """Both frames as one, in no order. They have the same columns."""
    plain = left.union(right)
    plans = catalyst.plan(left), catalyst.plan(right)
    left_steps, right_steps = (steps(plan) for plan in plans)
    common = next(
        ((n, m) for n, one in enumerate(left_steps) for m, two in enumerate(right_steps) if one.equals(two)),
        None,
    )
    if common is None:
        return plain
    parts = [left_steps[: common[0]], right_steps[: common[1]]]
    if not all(is_repeatable(node) for part in parts for node in part):
        return plain
    below = left_steps[common[0]]
    kept = []
    for part in parts:
        below, flag = stack_steps(left, below, part)
        kept.append(flag)
    return _expand(plain, below, [catalyst.items(plan.output()) for plan in plans], kept)


def steps(node: Any) -> list[Any]:
    """The selects and filters at the top of a plan, from the top, and the first node below them."""
    nodes = [node]
    while nodes[-1].nodeName() in STEPS:
        nodes.append(nodes[-1].child())
    return nodes


def is_repeatable(node: Any) -> bool:
    """Whether the expressions of a step may be computed any number of times, and for any rows."""

    def is_forbidden(part: Any) -> bool:
        leaf = part.children().isEmpty() and part.nodeName() not in LEAVES
        return leaf or part.nodeName() in NOT_REPEATABLE

    return all(
        expression.deterministic() and not catalyst.within(expression, is_forbidden)
        for expression in catalyst.items(node.expressions())
    )


def stack_steps(rows: DataFrame, below: Any, part: list[Any], condition: Any = None) -> tuple[Any, Any]:
    """The steps of one part on top of a plan, and the flag that says whether a row belongs to the part.

    The columns of the plan remain.

    The flag is first the condition, or true, and each filter narrows it.
    """
    expressions = catalyst.package(rows.sparkSession)
    plan, alias = _with_flag(rows, below, condition)
    for node in reversed(part):
        if node.nodeName() == "Filter":
            # Not And: Spark may compute a common part of its right side before it looks at the left side.
            fits = expressions.If(
                alias.toAttribute(),
                expressions.EqualNullSafe(node.condition(), _true(rows)),
                expressions.Literal.FalseLiteral(),
            )
            plan, alias = _with_flag(rows, plan, fits)
        elif node.nodeName() == "Project":
            ids = {column.exprId() for column in catalyst.items(node.output())}
            selected = [
                _guard(rows, column, alias.toAttribute()) for column in catalyst.items(node.projectList())
            ]
            others = [column for column in catalyst.items(plan.output()) if column.exprId() not in ids]
            plan = plan.copy(catalyst.seq(rows, [*selected, *others]), plan)
    return plan, alias.toAttribute()


def _with_flag(rows: DataFrame, below: Any, condition: Any) -> tuple[Any, Any]:
    """A plan with one more column: the condition, or true."""
    plan = catalyst.plan(catalyst.frame(rows, below).selectExpr("*", f"true AS {KEPT}"))
    alias = plan.projectList().last()
    if condition is not None:
        alias = alias.withNewChildren(catalyst.seq(rows, [condition]))
    return plan.copy(catalyst.seq(rows, [*catalyst.items(below.output()), alias]), below), alias


def _guard(rows: DataFrame, column: Any, flag: Any) -> Any:
    """A column that is computed only for rows of its part."""
    if column.nodeName() != "Alias":
        return column
    expressions = catalyst.package(rows.sparkSession)
    null = expressions.Literal(None, column.dataType())
    return column.withNewChildren(catalyst.seq(rows, [expressions.If(flag, column.child(), null)]))


def _expand(plain: DataFrame, below: Any, parts: list[list[Any]], kept: list[Any]) -> DataFrame:
    """One row for each part that a row belongs to."""
    any_part = catalyst.package(plain.sparkSession).Or(*kept)
    logical = catalyst.package(plain.sparkSession, "org.apache.spark.sql.catalyst.plans.logical")
    columns = catalyst.items(catalyst.plan(plain).output())
    out = [column.newInstance().withNullability(True) for column in columns]
    projections = [catalyst.seq(plain, [*part, flag]) for part, flag in zip(parts, kept, strict=True)]
    expand = logical.Expand(
        catalyst.seq(plain, projections),
        catalyst.seq(plain, [*out, kept[0].newInstance()]),
        logical.Filter(any_part, below),
    )
    return catalyst.frame(plain, expand).where(KEPT).drop(KEPT)


def _true(rows: DataFrame) -> Any:
    return catalyst.package(rows.sparkSession).Literal.TrueLiteral()
