"""Decimals: numbers that are text in JSON, so that no digit is lost, and that readers compare as numbers.

The results of a view have the types of its columns. SQLite has no type for decimals: `sortable` gives it a
text that sorts as the number does.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

__all__ = ["LOOK", "columns_of", "sortable"]

LOOK: Final = re.compile(r"-?\d+\.\d+")
"""The form of a view's decimals, for columns without a known type."""
TOKEN: Final = re.compile(r"`(?:[^`]|``)*`|\w+|[<>(),:]")
PLAIN: Final = re.compile(r"(?P<sign>[+-]?)0*(?P<whole>\d*)(?:\.(?P<rest>\d*?)0*)?")
DIGITS_MAX: Final = 200
"""More digits than any decimal of Spark has on either side of its point."""
INVERTED: Final = str.maketrans("0123456789", "9876543210")


def columns_of(columns: Mapping[str, str]) -> set[str]:
    """The columns that are decimals, nested ones with dots, from types in Spark's notation."""
    return {path for name, kind in columns.items() for path in _paths(name, TOKEN.findall(kind))}


def sortable(value: Any) -> str | None:
    """A text that compares as the number does; None if the value is not a number.

    A longer whole part is a greater number, so its length comes first. Negative numbers have all digits
    inverted, and a last character that is greater than any digit.
    """
    if value is None:
        return None
    match = PLAIN.fullmatch(text := str(value))
    if match is None or not any(map(str.isdigit, text)):
        plain = _plain(text)
        return None if plain is None else sortable(plain)
    whole, rest = match["whole"], match["rest"] or ""
    size = f"{len(whole):03}{whole}.{rest}"
    if match["sign"] == "-" and (whole or rest):
        return f"0{size.translate(INVERTED)}~"
    return f"1{size}"


def _plain(text: str) -> str | None:
    """A number with an exponent, written out."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    small = number.is_finite() and abs(number.adjusted()) < DIGITS_MAX
    return format(number, "f") if small else None


def _paths(name: str, tokens: list[str]) -> Iterator[str]:
    """Removes one type from the tokens. Yields the columns in it that are decimals."""
    kind = tokens.pop(0).upper()
    if kind in {"DECIMAL", "DEC", "NUMERIC"}:
        yield name
    if tokens[:1] == ["("]:
        del tokens[: tokens.index(")") + 1]
    if tokens[:1] != ["<"]:
        return
    while tokens.pop(0) != ">":  # a comma, or the first bracket
        if kind == "STRUCT":
            inner = tokens.pop(0).strip("`").replace("``", "`")
            tokens.pop(0)
            yield from _paths(f"{name}.{inner}", tokens)
        else:
            list(_paths(name, tokens))  # items of a list cannot be filtered
