"""Checks of a call of an operator by its text: its arguments, its durations and its columns.

They are the same for ``hw.distinct(orders, "id", time="at", within="1 hour")`` in Python and for
``distinct(orders, key => 'id', time => 'at', within => '1 hour')`` in SQL.
"""

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from headwater.declare import operators
from headwater.declare.duration import DURATION, duration_us
from headwater.declare.query.shape import AGGREGATE, UNKNOWN, WINDOW, Shape, nearest
from headwater.errors import UsageError

__all__ = ["OperatorCall", "check_arguments", "check_call"]

DURATIONS: Mapping[str, tuple[str, ...]] = {
    "corrected_time": ("bound", "transit", "window"),
    "distinct": ("within",),
    "enrich": ("wait", "final", "correct"),
    "match": ("within", "before", "after"),
    "sessions": ("gap",),
    "sliding": ("size",),
    "unmatched": ("within", "before", "after"),
}
"""The arguments of each operator that are durations above zero."""
TIMES: Mapping[str, tuple[str, ...]] = {
    "calendar": ("time",),
    "corrected_time": ("occurred", "sent", "received"),
    "distinct": ("time",),
    "enrich": ("as_of",),
    "latest": ("time",),
    "match": ("time",),
    "sessions": ("time",),
    "sliding": ("time",),
    "unmatched": ("time",),
    "versions": ("time",),
}
"""The arguments that name a column with a time: of the first input, or of both."""
KEYS = ("by", "device", "key")
"""The arguments that name the columns of a key."""
PAIRS = {"match", "unmatched"}
"""Operators whose time is that of both inputs."""
A_LENGTH = "a number above 0 and a unit, like '30 minutes'"

Argument = str | Sequence[str] | None
"""What the text of a call shows of an argument: a text, several, or nothing."""


class OperatorCall:
    """One call: the operator, the shapes of its inputs, its arguments by name, and how a person sees it."""

    def __init__(
        self, what: str, operator: str, inputs: Sequence[Shape], arguments: Mapping[str, Argument], shown: str
    ) -> None:
        self.what = f"{what}: {operator}"
        self.operator = operator
        self.inputs = inputs
        self.arguments = arguments
        self.shown = shown


def check_arguments(
    what: str, operator: str, positional: int, keywords: Sequence[str], shown: str
) -> tuple[str, ...]:
    """The names of the positional arguments of a call in Python.

    UsageError if an argument is missing, or is one that the operator does not have.
    """
    signature = inspect.signature(getattr(operators, operator))
    try:
        signature.bind(*range(positional), **dict.fromkeys(keywords))
    except TypeError as error:
        near = [get_close_matches(word, signature.parameters, n=1) for word in keywords]
        wrong = [names[0] for word, names in zip(keywords, near, strict=True) if names and names[0] != word]
        raise UsageError(
            f"{what}: {operator}: {error}",
            got=shown,
            expected=f"hw.{operator}{_shown(signature)}",
            hint=f"did you mean {wrong[0]}=?" if wrong else "",
        ) from None
    return tuple(signature.parameters)[:positional]


def _shown(signature: inspect.Signature) -> str:
    """The parameters of an operator, without their types."""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return text.replace("/, ", "")


def check_call(call: OperatorCall) -> None:
    """UsageError for a duration that is none, and for a column that an input surely does not have."""
    for name in DURATIONS.get(call.operator, ()):
        _check_duration(call, name)
    first = call.inputs[0] if call.inputs else Shape()
    for name in KEYS:
        for column in _texts(call.arguments.get(name)):
            _check_column(call, name, column, first)
    both = call.inputs[:2] if call.operator in PAIRS else [first]
    for name in TIMES.get(call.operator, ()):
        columns = _texts(call.arguments.get(name))
        for number, shape in enumerate(both):
            for column in columns[number : number + 1] or columns[:1]:
                _check_time(call, name, column, shape)


def _texts(argument: Argument) -> Sequence[str]:
    return () if not argument else (argument,) if isinstance(argument, str) else argument


def _check_duration(call: OperatorCall, name: str) -> None:
    text = call.arguments.get(name)
    if not isinstance(text, str) or (not text and call.operator == "enrich"):
        return
    if not DURATION.fullmatch(text) or not duration_us(text):
        raise UsageError(
            f"{call.what}: {name}= is not a duration", got=f"{text!r} in {call.shown}", expected=A_LENGTH
        )


def _check_column(call: OperatorCall, name: str, column: str, shape: Shape) -> None:
    if not set(column) & set(".`") and shape.missing(column):
        raise UsageError(
            f"{call.what}: there is no column {column!r} for {name}=",
            got=call.shown,
            hint=nearest(column, shape.columns or ()),
        )


def _check_time(call: OperatorCall, name: str, column: str, shape: Shape) -> None:
    _check_column(call, name, column, shape)
    kind = shape.kind(column)
    if kind not in {UNKNOWN, AGGREGATE, WINDOW, "TIMESTAMP"}:
        times = [name for name, kind in (shape.columns or {}).items() if kind == "TIMESTAMP"]
        raise UsageError(
            f"{call.what}: {name}={column!r} is not a timestamp column",
            got=f"{kind} in {call.shown}",
            expected=" or ".join(times) or "a timestamp column",
        )
