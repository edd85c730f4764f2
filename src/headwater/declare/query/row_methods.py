"""Row methods: what methods of DataFrames and tables, and our operators, make of columns that are known."""

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwater.declare.query import refusals
from headwater.declare.query.function_source import FunctionSource, column_name, text_of, texts
from headwater.declare.query.shape import AGGREGATE, UNKNOWN, WINDOW, Shape, nearest
from headwater.declare.table import INSTEAD
from headwater.errors import UsageError

__all__ = ["Grouped", "RowMethods", "Rows"]

SAME = {
    *("alias", "coalesce", "distinct", "dropDuplicates", "drop_duplicates", "filter", "hint", "observe"),
    *("persist", "repartition", "repartitionByRange", "where"),
}
"""Methods that leave the columns as they are."""
SORTING = {"orderBy", "sort"}
FIRST = {"limit", "offset", "tail"}
ACTIONS = {
    *(
        "collect",
        "count",
        "first",
        "foreach",
        "foreachPartition",
        "head",
        "isEmpty",
        "show",
        "take",
        "toArrow",
    ),
    *("toLocalIterator", "toPandas", "writeTo"),
}
"""Methods that would run a query at once, while its plan is being made."""
GROUPING = {"cube", "groupBy", "groupby", "rollup"}
OF_COLUMNS = {"agg", "filter", "group", "groupBy", "groupby", "select", "where", "withColumn"}
"""Methods whose arguments are expressions over the columns of their rows."""
NAMING = {"alias", "name"}
"""Methods of a column that give it a name."""
OF_A_COLUMN = {
    *("abs", "approx_count_distinct", "avg", "col", "collect_list", "collect_set", "column", "count"),
    *("count_distinct", "date_trunc", "first", "last", "lower", "max", "max_by", "mean", "min", "min_by"),
    *("round", "session_window", "stddev", "sum", "to_date", "upper", "variance", "window"),
}
"""Functions of Spark whose first argument, or second in ``date_trunc``, is a column by its name."""
SAME_ROWS = {"distinct", "latest", "unmatched", "valid"}
"""Operators whose rows have the columns of their first input."""


class Grouped(NamedTuple):
    """Rows that are grouped: the columns by which, or None."""

    columns: dict[str, str] | None
    rows: Shape


Rows = Shape | Grouped | None
"""What an expression is; None if it is not known."""


class RowMethods:
    """Of one view, which ``what`` names in errors."""

    def __init__(self, what: str, source: FunctionSource, *, realtime: bool) -> None:
        self._what = what
        self._source = source
        self._realtime = realtime

    def after(self, rows: Shape | Grouped, call: ast.Call, method: str, others: Sequence[Rows]) -> Rows:
        """What a call of a method returns. UsageError, with the line, for one that cannot be right."""
        known = rows.rows if isinstance(rows, Grouped) else rows
        if method in OF_COLUMNS and known.columns is not None:
            self._check_expressions(known, call, rows.columns or {})
        if isinstance(rows, Grouped):
            return self._aggregated(rows, call, method)
        self._check(rows, call, method, others)
        if rows.table and method == "group":
            return Shape(self._by_and_named(rows, call.args[:1], call), table=True)
        if rows.table and method == "join":
            return Shape(None, table=True)
        if method in GROUPING:
            return Grouped(self._named(rows, call.args), rows)
        if method in SAME:
            return rows
        columns = self._changed(rows, call, method)
        return rows._replace(columns=columns)

    def _check(self, rows: Shape, call: ast.Call, method: str, others: Sequence[Rows]) -> None:
        shown = self._source.shown(call)
        if rows.table:
            if method in INSTEAD:
                raise UsageError(
                    f"{self._what}: a table has no {method}()", got=shown, expected=INSTEAD[method]
                )
            return
        if method in SORTING:
            raise refusals.STREAM_SORTED.error(view=self._what, got=shown)
        if method in FIRST:
            raise refusals.STREAM_LIMITED.error(view=self._what, got=shown)
        if method in ACTIONS:
            raise UsageError(
                f"{self._what} reads its rows with {method}(), and a view only says how they are computed",
                got=shown,
                expected="DataFrames in, one DataFrame out",
                hint="hw.count(rows, key) counts rows" if method == "count" else "",
            )
        if any(isinstance(other, Shape) and other.table for other in others):
            raise UsageError(
                f"{self._what}: a method of a DataFrame takes no table",
                got=shown,
                expected="a method of the table, or an operator, like hw.enrich(rows, …)",
            )
        if self._realtime and method in {"crossJoin", "join", "union", "unionByName"}:
            raise refusals.REALTIME_STEP.error(view=self._what, kind=method, got=shown)

    def _check_expressions(self, rows: Shape, call: ast.Call, further: Mapping[str, str]) -> None:
        """Refuses ``F.sum("totl")`` among the arguments of a method, if the rows have no such column.

        ``further`` and names given in the call itself are columns too.
        """
        nodes = [node for argument in (*call.args, *call.keywords) for node in ast.walk(argument)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        named = (node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr in NAMING)
        given = {column_name(self._source, node) for node in named} | set(further)
        for node in calls:
            function = self._source.spark_function(node)
            arguments = node.args[1:] if function == "date_trunc" else node.args
            name = text_of(arguments[0]) if function in OF_A_COLUMN and arguments else None
            if name and not set(name) & set(".`*") and name not in given and rows.missing(name):
                raise UsageError(
                    f"{self._what}: there is no column {name!r}",
                    got=self._source.shown(node),
                    hint=nearest(name, rows.columns or ()),
                )

    def after_operator(self, name: str, call: ast.Call, rows: Shape) -> Rows:
        """What an operator of Headwater makes of the rows of its first input."""
        if name in SAME_ROWS:
            return Shape(rows.columns, table=name == "valid", timed=True)
        if name == "count":
            column = next((text_of(word.value) for word in call.keywords if word.arg == "column"), "count")
            keys = self._keys(rows, call)
            known = None if keys is None or column is None else keys | {column: UNKNOWN}
            return Shape(known, timed=True)
        if name in {"sessions", "sliding"}:
            found = self._by_and_named(rows, call.args[1:2], call, but={"gap", "key", "size", "time"})
            return Shape(None if found is None else found | {"window": WINDOW}, timed=True)
        if name == "group":
            return Shape(self._by_and_named(rows, call.args[1:2], call), table=True, timed=True)
        if name == "calendar":
            return Shape(None if rows.columns is None else {**rows.columns, "window": WINDOW}, timed=True)
        return Shape(None, table=name == "join", timed=True)

    # ---- columns -------------------------------------------------------------------------------------------

    def _changed(self, rows: Shape, call: ast.Call, method: str) -> dict[str, str] | None:
        """The columns after a method that changes them; None if they are not known."""
        known = None if rows.columns is None else dict(rows.columns)
        if method == "select":
            return self._named(rows, call.args)
        if method == "withColumn" and known is not None and call.args:
            name = text_of(call.args[0])
            return None if name is None else known | {name: UNKNOWN}
        if method == "withColumnRenamed" and known is not None and len(call.args) == 2:
            names = texts(ast.List([*call.args]))
            return None if names is None else {names[1] if n == names[0] else n: k for n, k in known.items()}
        if method == "drop" and known is not None:
            dropped = [column_name(self._source, argument) for argument in call.args]
            return None if "" in dropped else {n: k for n, k in known.items() if n not in dropped}
        return known if method in {"union", "unionByName", "withWatermark", "withWatermarks"} else None

    def _named(self, rows: Shape, arguments: Sequence[ast.expr]) -> dict[str, str] | None:
        """The columns that arguments name, after a check that the rows have them."""
        if len(arguments) == 1 and isinstance(arguments[0], ast.List | ast.Tuple):
            arguments = arguments[0].elts
        found: dict[str, str] | None = {}
        for argument in arguments:
            if text_of(argument) == "*" and found is not None:
                found = None if rows.columns is None else {**found, **rows.columns}
                continue
            name = column_name(self._source, argument)
            text = text_of(argument)
            if text is not None and "." not in text and "`" not in text and rows.missing(text):
                raise UsageError(
                    f"{self._what}: there is no column {text!r}",
                    got=self._source.shown(argument),
                    hint=nearest(text, rows.columns or ()),
                )
            if not name or "*" in name or "`" in name:
                found = None
            elif found is not None:
                found[name] = self._kind(rows, argument, name)
        return found

    def _kind(self, rows: Shape, argument: ast.expr, name: str) -> str:
        function = self._source.spark_function(argument)
        if function in {"window", "session_window"}:
            return WINDOW
        inner = argument
        while (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr == "alias"
        ):
            inner = inner.func.value
        if self._source.spark_function(inner) in {"window", "session_window"}:
            return WINDOW
        return rows.kind(name) if text_of(argument) == name or function in {"col", "column"} else UNKNOWN

    def _aggregated(self, rows: Grouped, call: ast.Call, method: str) -> Shape:
        if method == "count" and rows.columns is not None and not call.args:
            return Shape(rows.columns | {"count": AGGREGATE})
        names = [column_name(self._source, argument) for argument in call.args]
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if method != "agg" or rows.columns is None or "" in names or starred or call.keywords:
            return Shape(None)
        return Shape(rows.columns | dict.fromkeys(names, AGGREGATE))

    def _keys(self, rows: Shape, call: ast.Call) -> dict[str, str] | None:
        named = [word.value for word in call.keywords if word.arg == "key"]
        names = texts([*call.args[1:2], *named][0]) if call.args[1:2] or named else None
        return None if names is None else {name: rows.kind(name) for name in names}

    def _by_and_named(
        self,
        rows: Shape,
        by: Sequence[ast.expr],
        call: ast.Call,
        but: frozenset[str] | set[str] = frozenset(),
    ) -> dict[str, str] | None:
        """The columns of a group: those by which, and the aggregates that keywords name."""
        given = [*by, *(word.value for word in call.keywords if word.arg in {"by", "key"})]
        names = texts(given[0]) if given else None
        if names is None or any(word.arg is None for word in call.keywords):
            return None
        aggregates = [word.arg for word in call.keywords if word.arg and word.arg not in but | {"by"}]
        return {name: rows.kind(name) for name in names} | dict.fromkeys(aggregates, UNKNOWN)
