"""Refusals: queries that a view cannot have, each with the reason and an alternative.

An error and its section in docs/sql.md come from the same object. A test runs the example of each refusal and
expects exactly that error.
"""

import string

import msgspec

from headwater.errors import UsageError

__all__ = ["REFUSALS", "Refusal", "refusal"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to refuse a query. Its texts may have fields, like {view}, which an error fills in."""

    what: str
    why: str
    """For the page: what would be wrong about the result."""
    instead: str
    expected: str = ""
    example: str
    """A query that is refused: SQL, or a Python expression over the inputs of a view."""
    key: tuple[str, ...] = ("id",)
    options: tuple[tuple[str, str | bool], ...] = ()
    """Further arguments of the view's declaration."""

    def error(self, *, got: str = "", **fields: str) -> UsageError:
        return UsageError(
            self.what.format(**fields),
            got=got,
            expected=self.expected.format(**fields),
            hint=self.instead.format(**fields),
        )

    def shown(self, text: str) -> str:
        """One of the texts for the page, without the fields of an error."""
        text = text.removeprefix("{view}: ").removeprefix("{view} ")
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
        return text.format(**dict.fromkeys(names, "…"))


REFUSALS: list[Refusal] = []
"""The refusals of all modules imported so far."""


def refusal(declared: Refusal) -> Refusal:
    """Adds a refusal to the list, and returns it."""
    REFUSALS.append(declared)
    return declared
