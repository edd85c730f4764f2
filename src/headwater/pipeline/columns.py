"""Columns: those of Spark's plans, by number, where a part of the plan is replaced by what an operator makes.

An operator goes by names, a plan by numbers: two columns may have one name, and what is above goes on asking for the number. So a part of a plan is given
to an operator under names that are not used twice, what comes out gets the old names, and which column has taken the place of which number is noted. A number
is never given again, since Spark takes two columns with one number for the same relation and gives one of them another.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.pipeline import catalyst

__all__ = ["Moved", "Names", "conjuncts", "is_plain", "number", "output", "used"]

PLAIN = re.compile(r"[A-Za-z]\w*")


class Names:
    """Names that are given once. They depend on nothing but the order in which they are asked for, so that a restart finds its state again."""

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


class Moved:
    """Which columns have taken the place of those in a plan."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self._now: dict[int, Any] = {}
        self._bridge = catalyst.of(rows.sparkSession, "org.apache.spark.sql.classic.ExpressionUtils")

    def expression(self, before: Any) -> Any:
        """An expression of the plan as it was, of the columns that there are now."""
        if is_plain(before):
            return self._now.get(number(before), before)
        children = catalyst.items(before.children())
        if not children:
            return before
        return before.withNewChildren(catalyst.seq(self._rows, [self.expression(each) for each in children]))

    def column(self, before: Any) -> Column:
        """The same for a select."""
        return self.made(self.expression(before))

    def made(self, expression: Any) -> Column:
        """An expression of the columns that there are now, for a select."""
        return ClassicColumn(self._bridge.column(expression))

    def to(self, rows: DataFrame, before: Sequence[Any]) -> DataFrame:
        """Notes that the columns of a frame are those from before, one by one."""
        for old, new in zip(before, catalyst.items(catalyst.plan(rows).output()), strict=True):
            self._now[number(old)] = new
        return rows

    def back(self, made: DataFrame, before: Mapping[str, Any]) -> DataFrame:
        """What an operator made under names of ours, {name: column}, under those from before."""
        named = [F.col(f"`{name}`").alias(each.name()) for name, each in before.items()]
        return self.to(made.select(*named), list(before.values()))

    def where(self, rows: DataFrame, conditions: Iterable[Any]) -> DataFrame:
        """The rows for which conditions hold."""
        for each in conditions:
            rows = rows.where(self.column(each))
        return rows


def number(attribute: Any) -> int:
    """What a column is known by in a plan."""
    found: int = attribute.exprId().id()
    return found


def output(node: Any) -> list[Any]:
    """The columns of a part of a plan, each once."""
    return list({number(each): each for each in catalyst.items(node.output())}.values())


def used(expressions: Iterable[Any]) -> set[int]:
    """The columns that expressions ask for."""
    return {
        number(each) for expression in expressions for each in catalyst.items(expression.references().toSeq())
    }


def is_plain(expression: Any) -> bool:
    """Whether an expression is a column, and nothing is made of it."""
    return bool(expression.nodeName() == "AttributeReference")


def conjuncts(condition: Any) -> list[Any]:
    """The parts of a condition that hold all together."""
    if condition.nodeName() != "And":
        return [condition]
    return [part for side in catalyst.items(condition.children()) for part in conjuncts(side)]
