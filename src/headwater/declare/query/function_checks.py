"""Checks of a view's function by its source: what would be wrong whatever the records are.

It follows rows from the parameters through assignments and method calls, as long as they are plain, and says
nothing of what it cannot follow: loops, helper functions, names that are computed.
"""

import ast
from collections.abc import Mapping
from difflib import get_close_matches
from types import ModuleType

from headwater.declare.query import refusals
from headwater.declare.query.function_source import FunctionSource, bound_names, text_of, texts
from headwater.declare.query.operator_checks import OperatorCall, check_arguments, check_call
from headwater.declare.query.row_methods import RowMethods, Rows
from headwater.declare.query.shape import Shape, nearest
from headwater.declare.query.sql_outline import Outline
from headwater.declare.query.unstable import UNSTABLE, unrepeatable
from headwater.declare.spec import View
from headwater.errors import UsageError

__all__ = ["shape_of_function"]

IN_PYTHON = {"applyInArrow", "applyInPandas", "foreach", "foreachPartition", "mapInArrow", "mapInPandas"}
"""Methods that run a function in Python."""
MODULES = {"headwater", "pyspark.sql.functions"}
"""Modules whose names are all known."""
TAKES_SQL = {"filter", "selectExpr", "where"}
"""Methods of rows whose text is SQL."""


def shape_of_function(view: View, inputs: Mapping[str, Shape]) -> Shape:
    """The rows of a function over inputs of these shapes. UsageError, with the line, for what is wrong."""
    if view.function is None:
        return Shape()
    return _Function(view, FunctionSource(view.function), inputs).shape()


class _Function:
    """One function, and the rows that its names are."""

    def __init__(self, view: View, source: FunctionSource, inputs: Mapping[str, Shape]) -> None:
        self._what = f"view {view.name!r}"
        self._realtime = view.latency == "realtime"
        self._source = source
        self._table = any(shape.table for shape in inputs.values())
        self._rows: dict[str, Rows] = dict(inputs)
        source.rows = self._rows
        changed = {name for statement in source.body for name in bound_names(statement)}
        self._inputs = {name: shape for name, shape in inputs.items() if name not in changed}
        self._frames = set(inputs) | {
            name for statement in source.body for name in self._from_rows(statement)
        }
        self._methods = RowMethods(self._what, source, realtime=self._realtime)

    def _from_rows(self, statement: ast.stmt) -> list[str]:
        """The name that a statement gives to what a chain of calls makes of an input."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
                return [name] if _root(value) in self._rows else []
        return []

    def shape(self) -> Shape:
        for statement in self._source.body:
            for node in ast.walk(statement):
                self._check(node)
        found: Rows = None
        for statement in self._source.body:
            found = self._run(statement)
            if isinstance(statement, ast.Return):
                break
        else:
            found = None
        return found if isinstance(found, Shape) and self._plain else Shape()

    @property
    def _plain(self) -> bool:
        """Whether the function returns in one place."""
        returns = [
            n for statement in self._source.body for n in ast.walk(statement) if isinstance(n, ast.Return)
        ]
        nested = (ast.FunctionDef, ast.Lambda)
        inner = any(isinstance(n, nested) for statement in self._source.body for n in ast.walk(statement))
        return len(returns) == 1 and not inner

    # ---- what is wrong wherever it is ----------------------------------------------------------------------

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._check_unstable(node)
            over = isinstance(node.func, ast.Attribute) and node.func.attr == "over" and len(node.args) == 1
            if over and self._source.is_column(node.func):
                refused = refusals.RANKING if self._table else refusals.STREAM_RANKED
                raise refused.error(view=self._what, got=self._source.shown(node))
        if isinstance(node, ast.Subscript):
            self._check_subscript(node)
        if isinstance(node, ast.Attribute):
            self._check_attribute(node)
        if self._realtime:
            self._check_python(node)

    def _check_subscript(self, node: ast.Subscript) -> None:
        """Refuses ``orders["contry"]`` for an input without such a column."""
        shape = self._inputs.get(node.value.id) if isinstance(node.value, ast.Name) else None
        name = text_of(node.slice)
        if shape is not None and name and not set(name) & set(".`*") and shape.missing(name):
            raise UsageError(
                f"{self._what}: there is no column {name!r}",
                got=self._source.shown(node),
                hint=nearest(name, shape.columns or ()),
            )

    def _check_attribute(self, node: ast.Attribute) -> None:
        """Refuses ``hw.distnct`` and ``F.summ``."""
        module = self._source.value(node.value)
        if not isinstance(module, ModuleType) or module.__name__ not in MODULES or hasattr(module, node.attr):
            return
        name = ast.unparse(node.value)
        near = get_close_matches(node.attr, module.__all__, n=1)
        raise UsageError(
            f"{self._what}: there is no {name}.{node.attr}",
            got=self._source.shown(node),
            hint=f"did you mean {name}.{near[0]}?" if near else "",
        )

    def _check_unstable(self, node: ast.Call) -> None:
        over_table = refusals.CLOCK if self._table else None
        function = self._source.spark_function(node)
        is_given = bool(node.args or node.keywords)
        if function in UNSTABLE and not (function == "unix_timestamp" and is_given):
            raise unrepeatable(self._what, function, self._source.shown(node), over_table)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if (method in TAKES_SQL and _root(node.func) in self._frames) or function == "expr":
            for argument in node.args:
                text = text_of(argument)
                outline = Outline(self._what, text) if text is not None else None
                for token, inside in outline.calls() if outline is not None else ():
                    name = token.lower
                    if name in UNSTABLE and (name != "unix_timestamp" or (inside and inside[0].text == ")")):
                        raise unrepeatable(self._what, name, self._source.shown(node), over_table)

    def _check_python(self, node: ast.AST) -> None:
        """Refuses functions in Python, for a view in real time."""
        named = isinstance(node, ast.Name | ast.Attribute) and self._source.is_python_function(node)
        made = self._source.spark_function(node) in {"udf", "pandas_udf", "arrow_udf"}
        method = isinstance(node, ast.Attribute) and node.attr in IN_PYTHON
        if named or made or method:
            shown = self._source.shown(node)
            raise refusals.REALTIME_OPERATOR.error(view=self._what, kind="a Python function", got=shown)

    # ---- where rows go -------------------------------------------------------------------------------------

    def _run(self, statement: ast.stmt) -> Rows:
        """Follows one statement; the rows that it returns, if it is a return."""
        inside = {node.target.id for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)}
        for name in inside:
            self._rows.pop(name, None)
        match statement:
            case ast.Return(value=value) if value is not None:
                return self._value(value)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self._rows[name] = self._value(value)
            case ast.Expr(value=value):
                self._value(value)
            case _:
                for name in bound_names(statement):
                    self._rows.pop(name, None)
        return None

    def _value(self, node: ast.expr) -> Rows:
        """The rows that an expression is, as far as it is known."""
        match node:
            case ast.Name(id=name):
                return self._rows.get(name)
            case ast.Call():
                operator = self._source.operator(node)
                if operator:
                    return self._operator(operator, node)
                if isinstance(node.func, ast.Attribute):
                    rows = self._value(node.func.value)
                    others = [self._value(argument) for argument in node.args]
                    if rows is not None:
                        return self._methods.after(rows, node, node.func.attr, others)
        return None

    def _operator(self, name: str, node: ast.Call) -> Rows:
        if self._realtime:
            raise refusals.REALTIME_OPERATOR.error(
                view=self._what, kind=f"hw.{name}", got=self._source.shown(node)
            )
        rows = [self._value(argument) for argument in node.args[:2]]
        self._check_operator(name, node, [row if isinstance(row, Shape) else Shape() for row in rows])
        first = rows[0] if rows else None
        return self._methods.after_operator(name, node, first if isinstance(first, Shape) else Shape())

    def _check_operator(self, name: str, node: ast.Call, inputs: list[Shape]) -> None:
        """Refuses a call whose arguments cannot be right, unless some are computed: ``*`` and ``**``."""
        keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
        if len(keywords) < len(node.keywords) or any(isinstance(each, ast.Starred) for each in node.args):
            return
        shown = self._source.shown(node)
        names = check_arguments(self._what, name, len(node.args), list(keywords), shown)
        nodes = dict(zip(names, node.args, strict=False)) | keywords
        arguments = {argument: text_of(value) or texts(value) for argument, value in nodes.items()}
        check_call(OperatorCall(self._what, name, inputs, arguments, shown))


def _root(node: ast.AST) -> str:
    """The name at which a chain of calls begins: ``orders`` in ``orders.where(…).select(…)``."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
