"""Substitute: other implementations of the operators, for as long as a view is being built with them.

``headwater view check --plain`` computes a view by Spark's own operators this way, although the view's function calls ours.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["OPERATORS", "substitutable", "substituted"]

P = ParamSpec("P")
R = TypeVar("R")
OPERATORS: set[str] = set()
"""The names of all operators that can be substituted."""

_chosen: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("substitutes", default=None)


def substitutable(function: Callable[P, R]) -> Callable[P, R]:
    """An operator that others can take the place of."""
    OPERATORS.add(function.__name__)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = _chosen.get()
        if chosen is None:
            return function(*args, **kwargs)
        made: R = chosen[function.__name__](*args, **kwargs)
        return made

    return called


@contextmanager
def substituted(operators: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Calls of operators go to these meanwhile; there must be one for each of `OPERATORS`."""
    token = _chosen.set(operators)
    try:
        yield
    finally:
        _chosen.reset(token)
