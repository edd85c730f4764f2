"""Small queries that are both: frames of Spark with operators of ours, and plain Python over lists of rows."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw

__all__ = [
    "TABLES",
    "Binary",
    "Code",
    "Compare",
    "Explode",
    "Field",
    "Group",
    "Join",
    "Lambda",
    "Mixed",
    "Number",
    "Query",
    "Row",
    "Select",
    "Source",
    "Union",
    "View",
    "Where",
    "state",
]

Row = dict[str, Any]
History = dict[str, list[Row]]
TABLES = {"users", "orders"}
ERA = "era"
"""Of a record of a stream: whether it came before the change (1) or after it (2)."""


# ---- expressions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    name: str

    def column(self) -> Column:
        return F.col(self.name)

    def value(self, row: Row) -> Any:
        return row[self.name]


@dataclass(frozen=True)
class Number:
    number: int

    def column(self) -> Column:
        return F.lit(self.number)

    def value(self, row: Row) -> int:  # noqa: ARG002
        return self.number


@dataclass(frozen=True)
class Binary:
    sign: str
    left: "Expression"
    right: "Expression"

    def column(self) -> Column:
        return _signed(self.sign, self.left.column(), self.right.column())

    def value(self, row: Row) -> Any:
        return _signed(self.sign, self.left.value(row), self.right.value(row))


@dataclass(frozen=True)
class Code:
    """A Python function with a number in its closure."""

    pandas: bool
    number: int
    of: "Expression"

    def column(self) -> Column:
        number = self.number

        def series(values: pd.Series) -> pd.Series:
            return values // number + number

        def value(each):  # with hints Spark would look for Arrow's types in them
            return each // number + number

        return (F.pandas_udf(series, "bigint") if self.pandas else F.udf(value, "bigint"))(self.of.column())

    def value(self, row: Row) -> Any:
        return self.of.value(row) // self.number + self.number


@dataclass(frozen=True)
class Lambda:
    number: int
    of: "Expression"

    def column(self) -> Column:
        return F.transform(F.array(self.of.column()), lambda x: x * self.number + x)[0]

    def value(self, row: Row) -> Any:
        return self.of.value(row) * self.number + self.of.value(row)


Expression = Field | Number | Binary | Code | Lambda


@dataclass(frozen=True)
class Compare:
    """A condition of a filter."""

    sign: str
    left: Expression
    right: Expression

    def column(self) -> Column:
        return _signed(self.sign, self.left.column(), self.right.column())

    def value(self, row: Row) -> Any:
        return _signed(self.sign, self.left.value(row), self.right.value(row))


SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "%": lambda a, b: a % b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
}


def _signed(sign: str, left: Any, right: Any) -> Any:
    return SIGNS[sign](left, right)


# ---- queries -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    name: str

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        return inputs[self.name]

    def rows(self, history: History) -> Iterator[Row]:
        return iter(history[self.name])


@dataclass(frozen=True)
class Where:
    of: "Query"
    condition: Compare

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        return self.of.frame(inputs).where(self.condition.column())

    def rows(self, history: History) -> Iterator[Row]:
        return (row for row in self.of.rows(history) if self.condition.value(row))


@dataclass(frozen=True)
class Mixed:
    """A filter of a stream that was changed; None where there was none. Only Python knows it."""

    of: "Query"
    before: Compare | None
    after: Compare | None

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        raise NotImplementedError

    def rows(self, history: History) -> Iterator[Row]:
        for row in self.of.rows(history):
            condition = self.before if row[ERA] == 1 else self.after
            if condition is None or condition.value(row):
                yield row


@dataclass(frozen=True)
class Select:
    of: "Query"
    columns: tuple[tuple[str, Expression], ...]
    steps: int = 1
    """In how many selects it is written."""

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        rows = self.of.frame(inputs)
        if self.steps == 1:
            return rows.select(*(each.column().alias(name) for name, each in self.columns))
        made = rows.select("*", *(each.column().alias(f"{name}_made") for name, each in self.columns))
        return made.select(*(F.col(f"{name}_made").alias(name) for name, _ in self.columns))

    def rows(self, history: History) -> Iterator[Row]:
        for row in self.of.rows(history):
            hidden = {ERA: row[ERA]} if ERA in row else {}
            yield hidden | {name: each.value(row) for name, each in self.columns}


@dataclass(frozen=True)
class Explode:
    of: "Query"
    separator: str

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        return self.of.frame(inputs).select("*", F.explode(F.split("text", self.separator)).alias("word"))

    def rows(self, history: History) -> Iterator[Row]:
        for row in self.of.rows(history):
            for word in row["text"].split(self.separator):
                yield row | {"word": word}


@dataclass(frozen=True)
class Union:
    left: "Query"
    right: "Query"

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        return self.left.frame(inputs).unionByName(self.right.frame(inputs))

    def rows(self, history: History) -> Iterator[Row]:
        yield from self.left.rows(history)
        yield from self.right.rows(history)


@dataclass(frozen=True)
class Join:
    """On their column ``on``, which is all that both have in common."""

    left: "Query"
    right: "Query"

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        return hw.join(self.left.frame(inputs), self.right.frame(inputs), on="on")

    def rows(self, history: History) -> Iterator[Row]:
        others = list(self.right.rows(history))
        for row in self.left.rows(history):
            for other in others:
                if row["on"] == other["on"]:
                    yield {name: value for name, value in (row | other).items() if name != ERA}


@dataclass(frozen=True)
class Group:
    """By hw.group, or by Spark."""

    of: "Query"
    by: tuple[str, ...]
    aggregates: tuple[tuple[str, str, str], ...]
    """Name, function and column."""
    ours: bool

    def frame(self, inputs: dict[str, DataFrame]) -> DataFrame:
        rows = self.of.frame(inputs)
        made = {name: getattr(F, function)(column) for name, function, column in self.aggregates}
        if self.ours:
            return hw.group(rows, self.by, **made)
        return rows.groupBy(*self.by).agg(*(column.alias(name) for name, column in made.items()))

    def rows(self, history: History) -> Iterator[Row]:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.of.rows(history):
            groups.setdefault(tuple(row[name] for name in self.by), []).append(row)
        for key, found in groups.items():
            made = {
                name: FUNCTIONS[function]([row[column] for row in found])
                for name, function, column in self.aggregates
            }
            yield dict(zip(self.by, key, strict=True)) | made


FUNCTIONS: dict[str, Callable[[list[Any]], Any]] = {"count": len, "sum": sum, "min": min, "max": max}
Query = Source | Where | Mixed | Select | Explode | Union | Join | Group


PARAMETERS: dict[tuple[str, ...], Callable[[Any], Callable[..., DataFrame]]] = {
    ("users",): lambda made: lambda users: made({"users": users}),
    ("orders", "users"): lambda made: lambda orders, users: made({"orders": orders, "users": users}),
    ("clicks",): lambda made: lambda clicks: made({"clicks": clicks}),
    ("clicks", "users"): lambda made: lambda clicks, users: made({"clicks": clicks, "users": users}),
    ("clicks", "seens"): lambda made: lambda clicks, seens: made({"clicks": clicks, "seens": seens}),
}
"""A view knows its inputs by the names of its parameters."""


@dataclass(frozen=True)
class View:
    query: Query
    key: tuple[str, ...]
    texts: bool = False
    """Whether its key is text."""

    def declare(self, app: hw.App, name: str) -> None:
        function = PARAMETERS[tuple(sorted(set(sources(self.query))))]
        app.view(key=list(self.key), name=name)(function(self.query.frame))

    def rows(self, history: History) -> dict[tuple[Any, ...], Row]:
        """Its rows by their keys."""
        rows = ({n: v for n, v in row.items() if n != ERA} for row in self.query.rows(history))
        return {tuple(row[name] for name in self.key): row for row in rows}


def below(query: Query) -> list[Query]:
    match query:
        case Source():
            return []
        case Union() | Join():
            return [query.left, query.right]
        case _:
            return [query.of]


def sources(query: Query) -> list[str]:
    """What it reads, in this order."""
    if isinstance(query, Source):
        return [query.name]
    return [name for each in below(query) for name in sources(each)]


def weighted(query: Query) -> bool:
    """Whether its rows are taken out again."""
    match query:
        case Source():
            return query.name in TABLES
        case Group():
            return query.ours
        case _:
            return any(map(weighted, below(query)))


# ---- state ---------------------------------------------------------------------------------------------


def state(view: View, history: History) -> list[Any]:
    """What a view keeps after a history, whatever filters leave out of rows that stay.

    That is: the input of operators, the aggregates of Spark that are used, and the keys.
    """
    query = free(view.query)
    kept = [sources(query), *_kept(query, history, set(_used(view.query)))]
    keys = Counter(tuple(row[name] for name in view.key) for row in query.rows(history))
    return [*kept, keys if weighted(query) else set(keys)]


def _used(query: Query) -> Iterator[str]:
    """The columns that are used by the selects and filters at the top of a query."""
    if isinstance(query, Select | Where):
        made = [each for _, each in query.columns] if isinstance(query, Select) else [query.condition]
        for each in made:
            yield from _fields(each)
        yield from _used(query.of)


def _fields(each: Any) -> Iterator[str]:
    if isinstance(each, Field):
        yield each.name
    for part in vars(each).values() if hasattr(each, "__dict__") else ():
        if hasattr(part, "column"):
            yield from _fields(part)


def free(query: Query) -> Query:
    """The query without filters of rows that stay."""
    if isinstance(query, Source):
        return query
    if isinstance(query, Union | Join):
        return replace(query, left=free(query.left), right=free(query.right))
    return (
        free(query.of)
        if isinstance(query, Where) and not weighted(query.of)
        else replace(query, of=free(query.of))
    )


def _kept(query: Query, history: History, used: set[str]) -> Iterator[Any]:
    for each in below(query):
        yield from _kept(each, history, used)
    match query:
        case Join():
            yield [_bag(each, history) for each in below(query)]
        case Group() if query.ours:
            yield query.by, query.aggregates, _bag(query.of, history)
        case Group():  # in this order, under no name, each once
            rows = list(query.of.rows(history))
            wanted = [(function, column) for name, function, column in query.aggregates if name in used]
            keys = [tuple(row[name] for name in query.by) for row in rows]
            kept = [(f, tuple(zip(keys, (row[c] for row in rows), strict=True))) for f, c in wanted]
            yield keys, list(dict.fromkeys(kept))


def _bag(query: Query, history: History) -> Counter[Any]:
    return Counter(tuple(sorted((n, v) for n, v in row.items() if n != ERA)) for row in query.rows(history))
