"""Renumbering: the columns of Spark's plans by number, where an operator replaces a part of the plan.

Operators use names, plans numbers: two columns may have the same name, and the rest of the plan still refers
to the number. So an operator gets a part of the plan under unique names, its results get the old names, and
the column that replaces each number is noted. No number is used again, since Spark takes two columns with one
number for the same relation and gives one of them another number.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.pipeline.spark import catalyst

__all__ = ["Names", "Renumbering", "conjuncts", "is_plain", "number", "output", "used"]

PLAIN = re.compile(r"[A-Za-z]\w*")


class Names:
    """Gives unique names.

    They depend only on the order of the calls, so that a restart finds its state again.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = {name.lower() for name in taken}

    def new(self, wanted: str, otherwise: str = "column") -> str:
        """The wanted name, or one like it."""
        base = wanted if PLAIN.fullmatch(wanted) else otherwise
        name, times = base, 1
        while name.lower() in self._taken:
            times += 1
            name = f"{base}_{times}"
        self._taken.add(name.lower())
        return name


class Renumbering:
    """The columns that have replaced those in a plan."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self._now: dict[int, Any] = {}
        self._bridge = catalyst.of(rows.sparkSession, "org.apache.spark.sql.classic.ExpressionUtils")

    def expression(self, before: Any) -> Any:
        """An expression of the old plan, with the new columns."""
        if is_plain(before):
            return self._now.get(number(before), before)
        children = catalyst.items(before.children())
        if not children:
            return before
        return before.withNewChildren(
            catalyst.seq(self._rows, [self.expression(child) for child in children])
        )

    def column(self, before: Any) -> Column:
        """The same for a select."""
        return self.as_column(self.expression(before))

    def as_column(self, expression: Any) -> Column:
        """An expression with the new columns, for a select."""
        return ClassicColumn(self._bridge.column(expression))

    def note(self, rows: DataFrame, before: Sequence[Any]) -> DataFrame:
        """Notes that the columns of a frame replace the old ones, in this order."""
        for old, new in zip(before, catalyst.items(catalyst.plan(rows).output()), strict=True):
            self._now[number(old)] = new
        return rows

    def rename_back(self, rows: DataFrame, before: Mapping[str, Any]) -> DataFrame:
        """The results of an operator under the old names. ``before``: the old columns, by our names."""
        renamed = [F.col(f"`{name}`").alias(column.name()) for name, column in before.items()]
        return self.note(rows.select(*renamed), list(before.values()))

    def where(self, rows: DataFrame, conditions: Iterable[Any]) -> DataFrame:
        """The rows that satisfy conditions."""
        for condition in conditions:
            rows = rows.where(self.column(condition))
        return rows


def number(attribute: Any) -> int:
    """The number of a column in a plan."""
    expression_id: int = attribute.exprId().id()
    return expression_id


def output(node: Any) -> list[Any]:
    """The columns of a part of a plan, each once."""
    return list({number(column): column for column in catalyst.items(node.output())}.values())


def used(expressions: Iterable[Any]) -> set[int]:
    """The columns that expressions use."""
    return {
        number(column)
        for expression in expressions
        for column in catalyst.items(expression.references().toSeq())
    }


def is_plain(expression: Any) -> bool:
    """Whether an expression is just a column."""
    return bool(expression.nodeName() == "AttributeReference")


def conjuncts(condition: Any) -> list[Any]:
    """The parts of a condition that must all be true."""
    if condition.nodeName() != "And":
        return [condition]
    return [part for side in catalyst.items(condition.children()) for part in conjuncts(side)]
