"""Function source: the syntax tree of a view's function, and what the names in it are."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from headwater.declare.query.shape import Shape

__all__ = ["FunctionSource", "bound_names", "column_name", "text_of", "texts"]

OF_ROWS = {"columns", "dtypes", "isStreaming", "schema", "sparkSession"}
"""Attributes of DataFrames that are no columns."""


class FunctionSource:
    """The source of one function.

    ``body`` is empty if it cannot be read, as in an interactive session, or if another function was
    decorated: what a decorator adds is not in its source.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.body: list[ast.stmt] = []
        self.rows: Mapping[str, object] = {}
        """The rows that names are, kept by who follows them."""
        self._local: set[str] = set()
        if not isinstance(function, FunctionType) or inspect.unwrap(function) is not function:
            return
        self._function = function
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError, TypeError):
            return
        if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef):
            self.body = tree.body[0].body
            self._local = {name for statement in self.body for name in bound_names(statement)}

    def shown(self, node: ast.AST) -> str:
        """An expression and its line, for a person."""
        line = self._function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
        text = " ".join(ast.unparse(node).split())
        return f"{text if len(text) <= 60 else f'{text[:57]}…'} in line {line}"

    def value(self, node: ast.AST) -> Any:
        """The object that a name or a dotted name of the module is; None if that is not known."""
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
        if not isinstance(node, ast.Name):
            return None
        code, cells = self._function.__code__, self._function.__closure__ or ()
        closure = dict(zip(code.co_freevars, cells, strict=True))
        if node.id in closure and node.id not in self._local:
            try:
                return closure[node.id].cell_contents
            except ValueError:
                return None
        is_local = node.id in code.co_varnames or node.id in self._local
        return None if is_local else self._function.__globals__.get(node.id)

    def spark_function(self, node: ast.AST) -> str:
        """The name of the function of pyspark.sql.functions that is called here."""
        if not isinstance(node, ast.Call):
            return ""
        found = self.value(node.func)
        of_spark = str(getattr(found, "__module__", "")).startswith("pyspark.sql")
        return str(getattr(found, "__name__", "")) if of_spark else ""

    def operator(self, node: ast.Call) -> str:
        """The name of the operator of Headwater that is called here."""
        found = self.value(node.func)
        ours = getattr(found, "__module__", "") == "headwater.declare.operators"
        return str(getattr(found, "__name__", "")) if ours else ""

    def is_python_function(self, node: ast.AST) -> bool:
        """Whether a name is a function in Python that Spark runs for rows."""
        return hasattr(self.value(node), "evalType")

    def is_column(self, node: ast.AST) -> bool:
        """Whether methods are called on what a function of Spark returns: ``F.sum("total").alias("t")``."""
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Call) and self.spark_function(node):
                return True
            node = node.func if isinstance(node, ast.Call) else node.value
        return False

    def column_of_rows(self, node: ast.Attribute | ast.Subscript) -> str:
        """The column that ``orders.total`` or ``orders["total"]`` is; empty unless ``orders`` are rows."""
        rows = self.rows.get(node.value.id) if isinstance(node.value, ast.Name) else None
        name = node.attr if isinstance(node, ast.Attribute) else text_of(node.slice) or ""
        if not isinstance(rows, Shape) or rows.columns is None or rows.missing(name):
            return ""
        return "" if name in OF_ROWS or set(name) & set(".`*") else name


def bound_names(node: ast.AST) -> set[str]:
    """All names that a statement gives to something, also in functions inside it."""
    names: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.partition(".")[0])
    return names


def text_of(node: ast.AST | None) -> str | None:
    """The text that an expression is; None for any other expression."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def texts(node: ast.AST | None) -> list[str] | None:
    """The texts that an expression is: one, or a list of them; None if one of them is not known."""
    if isinstance(node, ast.List | ast.Tuple):
        found = [text_of(item) for item in node.elts]
        return None if None in found else [text for text in found if text is not None]
    text = text_of(node)
    return None if text is None else [text]


def column_name(source: FunctionSource, node: ast.AST) -> str:
    """The name that a column has in a result: its own or its alias; empty if it is not known."""
    if isinstance(node, ast.Call):
        return _name_of_call(source, node)
    if isinstance(node, ast.Subscript | ast.Attribute):
        return source.column_of_rows(node)
    return (text_of(node) or "").rpartition(".")[2]


def _name_of_call(source: FunctionSource, call: ast.Call) -> str:
    function = source.spark_function(call)
    if function in {"col", "column"} and call.args:
        return (text_of(call.args[0]) or "").rpartition(".")[2]
    if function in {"window", "session_window"}:
        return function
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if (method == "alias" or (method == "name" and source.is_column(call))) and len(call.args) == 1:
        return text_of(call.args[0]) or ""
    return (
        column_name(source, call.func.value)
        if method == "cast" and isinstance(call.func, ast.Attribute)
        else ""
    )
