"""The common part of all operators of the API: they accept tables and DataFrames, and can be substituted.

``headwater view check --plain`` substitutes Spark's own operators for those that the function of a view
calls.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from headwater.declare.table import Table

__all__ = ["OPERATORS", "always", "never", "operator", "substituted"]

P = ParamSpec("P")
R = TypeVar("R")
Retracts = Callable[[Mapping[str, Any]], bool]
OPERATORS: set[str] = set()
"""The names of all operators that can be substituted."""

_substitutes: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("substitutes", default=None)


def always(arguments: Mapping[str, Any]) -> bool:  # noqa: ARG001
    """For an operator that always retracts rows."""
    return True


def never(arguments: Mapping[str, Any]) -> bool:  # noqa: ARG001
    """For an operator that never retracts rows."""
    return False


def operator(retracts: Retracts) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares an operator of the API.

    ``retracts`` decides from the keyword arguments whether the result is a `Table`.
    """

    def declared(function: Callable[P, R]) -> Callable[P, R]:
        OPERATORS.add(function.__name__)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            substitutes = _substitutes.get()
            implementation: Callable[..., Any] = (
                substitutes[function.__name__] if substitutes is not None else function
            )
            keywords = {name: _plain(argument) for name, argument in kwargs.items()}
            rows = implementation(*map(_plain, args), **keywords)
            result: Any = Table(rows) if retracts(kwargs) and not isinstance(rows, Table) else rows
            return result  # type: ignore[no-any-return]

        return called

    return declared


def _plain(argument: Any) -> Any:
    return argument.rows if isinstance(argument, Table) else argument


@contextmanager
def substituted(operators: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within, these functions are called instead of the operators.

    There must be one for each of `OPERATORS`.
    """
    token = _substitutes.set(operators)
    try:
        yield
    finally:
        _substitutes.reset(token)
