"""Shape: what the text of a query says of its rows: their columns, and whether they are a table's."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from headwater.declare.lateness import ARRIVAL
from headwater.declare.spec import Stream

__all__ = ["AGGREGATE", "UNKNOWN", "WINDOW", "Shape", "nearest", "shape_of"]

UNKNOWN, AGGREGATE, WINDOW = "", "aggregate", "window"
"""Kinds of columns besides the types of Spark."""


class Shape(NamedTuple):
    """The rows of an input or of a query, as far as its text says."""

    columns: Mapping[str, str] | None = None
    """Their kinds by name; None if the text does not say which there are."""
    table: bool = False
    """Whether rows are retracted when they change."""
    timed: bool = False
    """Whether an operator may say when its rows are complete."""
    reduced: bool = False
    """Whether a step has left out columns, which a filter of Spark may still name."""

    def missing(self, name: str) -> bool:
        """Whether there is surely no such column. Spark does not distinguish capital letters."""
        if self.columns is None or name.startswith("_"):
            return False
        return name.lower() not in {column.lower() for column in self.columns}

    def kind(self, name: str) -> str:
        """The kind of a column."""
        wanted = name.lower()
        return next(
            (kind for column, kind in (self.columns or {}).items() if column.lower() == wanted), UNKNOWN
        )


def shape_of(stream: Stream) -> Shape:
    """The shape of a declared stream or table."""
    columns = {column.name: column.kind for column in stream.columns}
    if stream.pattern is not None:
        columns["_topic"] = "STRING"
    if stream.time == ARRIVAL:
        columns[ARRIVAL] = "TIMESTAMP"
    return Shape(columns, stream.table)


def nearest(name: str, names: Iterable[str]) -> str:
    """The hint for a name that is not among others."""
    listed = list(names)
    near = get_close_matches(name, listed, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of {', '.join(listed)}" if listed else "none is declared"
