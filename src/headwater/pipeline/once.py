"""Once: a union of two frames that are made of the same one reads it once.

Spark reads a topic again for each part of a union. When both parts are selects and filters of one frame, each of its rows is looked at once
and goes on as a row of the one part, of the other, of both or of none (Spark's ``Expand``). What a filter leaves out must not be
computed behind it either, since that might fail: it stays null. Joins of tables stack such steps on the changes of a table in the same way
(``origin.py``).
"""

from typing import Any

from pyspark.sql import DataFrame

from headwater.pipeline import catalyst

__all__ = ["is_repeatable", "stacked", "steps", "union"]

EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
KEPT = "_kept"
"""Whether a row is one of its part."""
STEPS = {"Project", "Filter", "SubqueryAlias", "View"}
LEAVES = {"AttributeReference", "Literal", "NamedLambdaVariable"}
"""What an expression may be made of: no subqueries, no clocks."""
ELSEWHERE = {"PythonUDF", "PythonUDAF", "ScalarSubquery", "Exists", "ListQuery", "InSubquery"}
"""What is not computed from its row alone, or not by the JVM."""


def union(left: DataFrame, right: DataFrame) -> DataFrame:
    """Both frames as one, in no order. They have the same columns."""
    plain = left.union(right)
    plans = catalyst.plan(left), catalyst.plan(right)
    found = [steps(plan) for plan in plans]
    common = next(
        ((n, m) for n, one in enumerate(found[0]) for m, two in enumerate(found[1]) if one.equals(two)), None
    )
    if common is None:
        return plain
    chains = [each[:at] for each, at in zip(found, common, strict=True)]
    if not all(is_repeatable(node) for chain in chains for node in chain):
        return plain
    below = found[0][common[0]]
    kept = []
    for chain in chains:
        below, flag = stacked(left, below, chain)
        kept.append(flag)
    return _expanded(plain, below, [catalyst.items(plan.output()) for plan in plans], kept)


def steps(node: Any) -> list[Any]:
    """The selects and filters at the top of a plan, and what they are made of."""
    found = [node]
    while found[-1].nodeName() in STEPS:
        found.append(found[-1].child())
    return found


def is_repeatable(node: Any) -> bool:
    """Whether it makes no difference how often, and for which rows, the expressions of a step are computed."""

    def is_strange(part: Any) -> bool:
        leaf = part.children().isEmpty() and part.nodeName() not in LEAVES
        return leaf or part.nodeName() in ELSEWHERE

    return all(
        each.deterministic() and not catalyst.within(each, is_strange)
        for each in catalyst.items(node.expressions())
    )


def stacked(rows: DataFrame, below: Any, chain: list[Any], condition: Any = None) -> tuple[Any, Any]:
    """The steps of one part on top of a plan, beside all columns that it has; and whether a row is in the part, for which a condition may be given."""
    expressions = catalyst.of(rows.sparkSession, EXPRESSIONS)
    made, alias = _flagged(rows, below, condition)
    for node in reversed(chain):
        if node.nodeName() == "Filter":
            # no And: what its right side has twice may be computed before the left is looked at
            fits = expressions.If(
                alias.toAttribute(),
                expressions.EqualNullSafe(node.condition(), _true(rows)),
                expressions.Literal.FalseLiteral(),
            )
            made, alias = _flagged(rows, made, fits)
        elif node.nodeName() == "Project":
            there = {each.exprId() for each in catalyst.items(node.output())}
            listed = [
                _guarded(rows, each, alias.toAttribute()) for each in catalyst.items(node.projectList())
            ]
            others = [each for each in catalyst.items(made.output()) if each.exprId() not in there]
            made = made.copy(catalyst.seq(rows, [*listed, *others]), made)
    return made, alias.toAttribute()


def _flagged(rows: DataFrame, below: Any, condition: Any) -> tuple[Any, Any]:
    """A plan with one more column, which is the condition, or true."""
    made = catalyst.plan(catalyst.frame(rows, below).selectExpr("*", f"true AS {KEPT}"))
    alias = made.projectList().last()
    if condition is not None:
        alias = alias.withNewChildren(catalyst.seq(rows, [condition]))
    return made.copy(catalyst.seq(rows, [*catalyst.items(below.output()), alias]), below), alias


def _guarded(rows: DataFrame, each: Any, flag: Any) -> Any:
    """A column that is computed only for rows of its part."""
    if each.nodeName() != "Alias":
        return each
    expressions = catalyst.of(rows.sparkSession, EXPRESSIONS)
    nothing = expressions.Literal(None, each.dataType())
    return each.withNewChildren(catalyst.seq(rows, [expressions.If(flag, each.child(), nothing)]))


def _expanded(plain: DataFrame, below: Any, parts: list[list[Any]], kept: list[Any]) -> DataFrame:
    """A row for each part that a row is in."""
    some = catalyst.of(plain.sparkSession, EXPRESSIONS).Or(*kept)
    logical = catalyst.of(plain.sparkSession, "org.apache.spark.sql.catalyst.plans.logical")
    out = [each.newInstance().withNullability(True) for each in catalyst.items(catalyst.plan(plain).output())]
    made = logical.Expand(
        catalyst.seq(
            plain, [catalyst.seq(plain, [*part, flag]) for part, flag in zip(parts, kept, strict=True)]
        ),
        catalyst.seq(plain, [*out, kept[0].newInstance()]),
        logical.Filter(some, below),
    )
    return catalyst.frame(plain, made).where(KEPT).drop(KEPT)


def _true(rows: DataFrame) -> Any:
    return catalyst.of(rows.sparkSession, EXPRESSIONS).Literal.TrueLiteral()
