"""Refusal: a query that a view cannot have, with the reason and what to use instead. The error and docs/sql.md are made of the same object.

A module declares its refusals beside the code that refuses. A test runs the example of each and sees just that error.
"""

import string

import msgspec

from headwater.errors import UsageError

__all__ = ["REFUSALS", "Refusal", "refusal"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to refuse a query. Texts may have fields, like {view}, that an error fills in."""

    what: str
    why: str
    """For the page: what would be wrong."""
    instead: str
    expected: str = ""
    example: str
    """A query that is refused: SQL, or an expression of Python over the inputs of a view."""
    key: tuple[str, ...] = ("id",)
    options: tuple[tuple[str, str | bool], ...] = ()
    """Of the declaration of the view."""

    def error(self, *, got: str = "", **fields: str) -> UsageError:
        return UsageError(
            self.what.format(**fields),
            got=got,
            expected=self.expected.format(**fields),
            hint=self.instead.format(**fields),
        )

    def shown(self, text: str) -> str:
        """One of the texts for a reader who has no error yet."""
        text = text.removeprefix("{view}: ").removeprefix("{view} ")
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
        return text.format(**dict.fromkeys(names, "…"))


REFUSALS: list[Refusal] = []
"""All that were declared by the modules that are imported."""


def refusal(made: Refusal) -> Refusal:
    """Adds one to the list."""
    REFUSALS.append(made)
    return made
