"""Row methods: what methods of DataFrames and tables, and our operators, make of columns that are known."""

import ast
from collections.abc import Mapping, Sequence
from types import ModuleType
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
FILTERS = {"filter", "where"}
"""Methods whose condition may name columns that an earlier step has left out: Spark finds them there."""
OTHERS = {"crossJoin", "intersect", "join", "subtract", "union", "unionAll", "unionByName"}
"""Methods that take other rows."""
CHANGING = {
    *("drop", "dropna", "fillna", "na", "replace", "sample", "select", "selectExpr", "to", "toDF"),
    *("withColumn", "withColumnRenamed", "withColumns", "withColumnsRenamed", "withWatermark"),
    *("exceptAll", "intersectAll", "mapInArrow", "mapInPandas", "unpivot", "melt"),
}
"""Methods after which rows are rows too, with other columns."""
AGGREGATING = {"agg", "avg", "count", "max", "mean", "min", "sum"}
MAY_NAME = {"agg", "select"}
"""Methods in which an expression may name a column that another one in the same call makes."""
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
        if isinstance(rows, Grouped):
            if method == "agg" and rows.columns is not None and rows.rows.columns is not None:
                self._check_expressions(rows.rows, call, method, rows.columns)
            return self._aggregated(rows, call, method)
        if method in OF_COLUMNS and rows.columns is not None and not (rows.reduced and method in FILTERS):
            self._check_expressions(rows, call, method, {})
        self._check(rows, call, method, others)
        if rows.table and method in {"group", "join"}:
            known = self._by_and_named(rows, call.args[:1], call) if method == "group" else None
            return Shape(known, table=True, reduced=True)
        if method in GROUPING:
            return Grouped(_grouped(self._named(rows, call, method)), rows)
        if method in CHANGING | OTHERS:
            reduced = rows.reduced or method != "withColumn"
            return rows._replace(columns=self._changed(rows, call, method), reduced=reduced)
        return rows if method in SAME else None

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
        if method in OTHERS and any(isinstance(other, Shape) and other.table for other in others):
            raise UsageError(
                f"{self._what}: a method of a DataFrame takes no table",
                got=shown,
                expected="a method of the table, or an operator, like hw.enrich(rows, …)",
            )
        if self._realtime and method in {"crossJoin", "join", "union", "unionByName"}:
            raise refusals.REALTIME_STEP.error(view=self._what, kind=method, got=shown)

    def _check_expressions(
        self, rows: Shape, call: ast.Call, method: str, further: Mapping[str, str]
    ) -> None:
        """Refuses ``F.sum("totl")`` among the arguments of a method, if the rows have no such column.

        ``further`` and names given in the call itself are columns too.
        """
        given = self._names_given(call, method)
        if given is None:
            return
        given |= {name.lower() for name in further}
        nodes = [node for argument in (*call.args, *call.keywords) for node in ast.walk(argument)]
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            function = self._source.spark_function(node)
            arguments = node.args[1:] if function == "date_trunc" else node.args
            name = text_of(arguments[0]) if function in OF_A_COLUMN and arguments else None
            if name and not set(name) & set(".`*") and name.lower() not in given and rows.missing(name):
                raise UsageError(
                    f"{self._what}: there is no column {name!r}",
                    got=self._source.shown(node),
                    hint=nearest(name, rows.columns or ()),
                )

    def _names_given(self, call: ast.Call, method: str) -> set[str] | None:
        """The names that expressions of a call give to columns, in small letters; None if there may be more.

        There may be if the call has rows of another query in it, or names of which nothing is known.
        """
        given: set[str] = set()
        for argument in (*call.args, *call.keywords):
            for node in ast.walk(argument):
                if isinstance(node, ast.Call):
                    function = self._source.spark_function(node)
                    named = node.func.attr if isinstance(node.func, ast.Attribute) and not function else ""
                    if named in OTHERS | CHANGING | SAME - {"alias"} | {"outer"}:
                        return None
                    if named in NAMING:
                        given.add(column_name(self._source, node).lower())
                    if function in {"expr", "broadcast"} and method in MAY_NAME:
                        return None
                if method in MAY_NAME and not self._is_plain(node):
                    return None
        return None if "" in given else given

    def _is_plain(self, node: ast.AST) -> bool:
        """Whether a part of an expression cannot name a column by itself, as what a variable holds can."""
        if isinstance(node, ast.Name):
            value = self._source.value(node)
            of_spark = str(getattr(value, "__module__", "")).startswith("pyspark.sql")
            return isinstance(value, ModuleType) or of_spark or self._source.rows.get(node.id) is not None
        return not isinstance(node, ast.Starred) and getattr(node, "arg", "") is not None

    def after_operator(self, name: str, call: ast.Call, rows: Shape) -> Rows:
        """What an operator of Headwater makes of the rows of its first input."""
        if name in SAME_ROWS:
            return Shape(_grouped(rows.columns), table=name == "valid", timed=True, reduced=True)
        if name == "count":
            column = next((text_of(word.value) for word in call.keywords if word.arg == "column"), "count")
            keys = self._keys(rows, call)
            known = None if keys is None or column is None else keys | {column: UNKNOWN}
            return Shape(known, timed=True, reduced=True)
        if name in {"sessions", "sliding"}:
            found = self._by_and_named(rows, call.args[1:2], call, but={"gap", "key", "size", "time"})
            known = None if found is None else found | {"window": WINDOW}
            return Shape(known, timed=True, reduced=True)
        if name == "group":
            known = self._by_and_named(rows, call.args[1:2], call)
            return Shape(known, table=True, timed=True, reduced=True)
        if name == "calendar":
            known = None if rows.columns is None else {**rows.columns, "window": WINDOW}
            return Shape(_grouped(known), timed=True, reduced=True)
        return Shape(None, table=name == "join", timed=True, reduced=True)

    # ---- columns -------------------------------------------------------------------------------------------

    def _changed(self, rows: Shape, call: ast.Call, method: str) -> dict[str, str] | None:
        """The columns after a method that changes them; None if they are not known."""
        known = None if rows.columns is None else dict(rows.columns)
        if method == "select":
            return self._named(rows, call, method)
        if known is None or call.keywords or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if method == "withColumn" and len(call.args) == 2:
            name = text_of(call.args[0])
            return None if name is None else _put(known, name, UNKNOWN)
        if method == "withColumnRenamed" and len(call.args) == 2:
            names = texts(ast.List([*call.args]))
            return None if names is None else _renamed(known, *names)
        if method == "drop":
            dropped = [self._dropped(argument) for argument in call.args]
            return None if "" in dropped else {n: k for n, k in known.items() if n.lower() not in dropped}
        is_union = method in {"union", "unionAll", "unionByName"} and len(call.args) == 1
        return dict.fromkeys(known, UNKNOWN) if is_union else None

    def _dropped(self, node: ast.expr) -> str:
        """The name of a column that ``drop`` leaves out, in small letters; empty if it is not known."""
        inner = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node
        is_text = node is inner or self._source.spark_function(node) in {"col", "column"}
        name = (text_of(inner) or "").lower() if is_text else ""
        return "" if set(name) & set(".`*") else name

    def _named(self, rows: Shape, call: ast.Call, method: str) -> dict[str, str] | None:
        """The columns that arguments name, after a check that the rows have them."""
        arguments: Sequence[ast.expr] = call.args
        if len(arguments) == 1 and isinstance(arguments[0], ast.List | ast.Tuple):
            arguments = arguments[0].elts
        given = self._names_given(call, method)
        found: dict[str, str] | None = {}
        for argument in arguments:
            text = text_of(argument)
            if text == "*" and found is not None:
                found = None if rows.columns is None else {**found, **rows.columns}
                continue
            name = column_name(self._source, argument)
            is_new = given is not None and text is not None and text.lower() not in given
            if text is not None and is_new and not set(text) & set(".`*") and rows.missing(text):
                raise UsageError(
                    f"{self._what}: there is no column {text!r}",
                    got=self._source.shown(argument),
                    hint=nearest(text, rows.columns or ()),
                )
            if not name or "*" in name or "`" in name:
                found = None
            elif found is not None:
                is_twice = name.lower() in {other.lower() for other in found}
                found = _put(found, name, UNKNOWN if is_twice else self._kind(rows, argument, name))
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
        text = text_of(argument)
        if isinstance(argument, ast.Call) and function in {"col", "column"} and argument.args:
            text = text_of(argument.args[0])
        return rows.kind(name) if text == name else UNKNOWN

    def _aggregated(self, rows: Grouped, call: ast.Call, method: str) -> Rows:
        if method == "pivot":
            return Grouped(None, rows.rows)
        if method not in AGGREGATING:
            return None
        if method == "count" and rows.columns is not None and not call.args:
            return Shape(rows.columns | {"count": AGGREGATE}, reduced=True)
        names = [column_name(self._source, argument) for argument in call.args]
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if method != "agg" or rows.columns is None or "" in names or starred or call.keywords:
            return Shape(None, reduced=True)
        return Shape(rows.columns | dict.fromkeys(names, AGGREGATE), reduced=True)

    def _keys(self, rows: Shape, call: ast.Call) -> dict[str, str] | None:
        named = [word.value for word in call.keywords if word.arg == "key"]
        names = texts([*call.args[1:2], *named][0]) if call.args[1:2] or named else None
        if names is None or any(set(name) & set(".`") for name in names):
            return None
        return _grouped({name: rows.kind(name) for name in names})

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
        if any(set(name) & set(".`") for name in names):
            return None
        aggregates = [word.arg for word in call.keywords if word.arg and word.arg not in but | {"by"}]
        keys = _grouped({name: rows.kind(name) for name in names}) or {}
        return keys | dict.fromkeys(aggregates, UNKNOWN)


def _put(columns: Mapping[str, str], name: str, kind: str) -> dict[str, str]:
    """Columns after one was added, or has replaced the one whose name differs in capital letters only."""
    if not any(column.lower() == name.lower() for column in columns):
        return {**columns, name: kind}
    return {
        name if n.lower() == name.lower() else n: kind if n.lower() == name.lower() else k
        for n, k in columns.items()
    }


def _renamed(columns: Mapping[str, str], old: str, new: str) -> dict[str, str] | None:
    """Columns after one got another name, which is nothing if there is no such column."""
    others = [name for name in columns if name.lower() != old.lower()]
    if new.lower() in {name.lower() for name in others}:
        return None
    return {new if name.lower() == old.lower() else name: kind for name, kind in columns.items()}


def _grouped(columns: Mapping[str, str] | None) -> dict[str, str] | None:
    """Columns by which rows are grouped: those that were aggregates are keys now."""
    if columns is None:
        return None
    return {name: UNKNOWN if kind == AGGREGATE else kind for name, kind in columns.items()}
