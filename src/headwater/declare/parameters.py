"""Parameters of a view's function, which are its inputs; also of decorated functions and partial ones."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from headwater.declare.spec import View
from headwater.errors import UsageError

__all__ = ["inputs", "name_of", "plain_function", "without_defaults"]

VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
"""``*args`` and ``**kwargs``."""


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of which partial ones were made."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def name_of(function: Callable[..., Any]) -> str:
    """The name of a view's function. UsageError for an object without a name."""
    name = getattr(plain_function(function), "__name__", None)
    if not isinstance(name, str):
        raise UsageError(
            "a view's function has no name",
            got=f"an object of type {type(function).__name__}",
            hint="give it one: @app.view(key=..., name=...)",
        )
    return name


def inputs(name: str, function: Callable[..., Any], given: Mapping[str, str] | None) -> dict[str, str]:
    """The inputs of a view by parameter: those that are given, or the streams with names of parameters."""
    parameters = _parameters(name, function)
    if not given:
        return {parameter: parameter for parameter in parameters}
    needed = {parameter for parameter, has_default in parameters.items() if not has_default}
    if not needed <= set(given) or not (set(given) <= set(parameters) or _takes_any(function)):
        raise UsageError(
            f"view {name!r}: inputs are not its parameters",
            got=", ".join(given),
            expected=", ".join(parameters) or "none",
        )
    return dict(given)


def without_defaults(view: View, declared: Collection[str]) -> View:
    """The view without parameters that have a default value and name no stream, table or view."""
    if view.function is None or all(source in declared for source in view.inputs.values()):
        return view
    parameters = _parameters(view.name, view.function)
    kept = {
        parameter: source
        for parameter, source in view.inputs.items()
        if parameter != source or source in declared or not parameters[parameter]
    }
    return msgspec.structs.replace(view, inputs=kept)


def _takes_any(function: Callable[..., Any]) -> bool:
    """Whether a function takes arguments by any name: ``**kwargs``, also that of a function it wraps."""
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


def _parameters(name: str, function: Callable[..., Any]) -> dict[str, bool]:
    """The parameters of a function by name, and whether they have a default value.

    Those of ``def wrapper(*args, **kwargs)`` are those of the function that it wraps.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        if any(parameter.kind in VARIABLE for parameter in signature.parameters.values()):
            signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UsageError(f"view {name!r}: its parameters are not known", got=str(error)) from error
    return {
        parameter.name: parameter.default is not parameter.empty
        for parameter in signature.parameters.values()
        if parameter.kind not in VARIABLE
    }
