"""A case: a short script of requests whose outcome is a plain value, and which must be the same on every log."""

from collections.abc import Callable

from clients.onelog import Log

Case = Callable[[Log], object]

CASES: dict[str, Case] = {}
"""All of them, by name, in the order in which they were declared."""


def case(function: Case) -> Case:
    assert function.__name__ not in CASES
    CASES[function.__name__] = function
    return function
