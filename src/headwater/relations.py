"""What a view can do with tables: join them and group them, live. Rows come and go on both sides, and what is made of them is always right.

Rows of a table carry a hidden weight: 1 for a row that comes in, -1 for one that is taken out. A plain stream is a table whose rows stay.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headwater.substitute import substitutable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipeline.grouped import Newest

__all__ = ["average_of", "count_of", "group", "join", "max_of", "min_of", "newest_of", "sum_of", "valid"]


@substitutable
def join(
    left: "DataFrame",
    right: "DataFrame",
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "inner",
) -> "DataFrame":
    """The rows of two tables that belong together, live: every row that comes, changes or goes on either side is carried through.

    ``on``: columns that both have, or {column of the left: column of the right}. ``how``: inner, left, right or full; a row without a
    partner is there with nulls for as long as it has none. Null keys have no partner. Columns are those of the left, then
    those of the right without what has the same name on both sides.
    """
    from headwater.pipeline import joined

    return joined.joined(left, right, on, how)


@substitutable
def group(rows: "DataFrame", /, by: str | Sequence[str], **aggregates: "str | Newest") -> "DataFrame":
    """What the rows of each group come to, live, although rows are taken out again: the columns of ``by``, and the aggregates.

    A group without rows is gone. Aggregates are ``hw.count_of()``, ``hw.sum_of("price")`` and so on, or ``hw.newest_of(…)``.
    """
    from headwater.pipeline import grouped

    return grouped.grouped(rows, (by,) if isinstance(by, str) else tuple(by), aggregates)


def count_of(column: str = "*") -> str:
    """How many rows there are; of a column, how many have a value."""
    return f"count({column})"


def sum_of(column: str) -> str:
    """The sum; exact, also of doubles, and rounded once."""
    return f"sum({column})"


def average_of(column: str) -> str:
    return f"avg({column})"


def min_of(column: str) -> str:
    return f"min({column})"


def max_of(column: str) -> str:
    return f"max({column})"


def newest_of(columns: str | Sequence[str], *, order: str | Sequence[str], limit: int) -> "Newest":
    """The newest rows of a group as an array, at most ``limit`` of them, the one with the greatest ``order`` first.

    One column makes an array of its values, several an array of structs. Where ``order`` is the same the greater value is first.
    Rows without an ``order`` come last.
    """
    from headwater.pipeline.grouped import Newest

    names = (columns,) if isinstance(columns, str) else tuple(columns)
    return Newest(
        names, (order,) if isinstance(order, str) else tuple(order), limit, isinstance(columns, str)
    )


@substitutable
def valid(rows: "DataFrame", *, since: str = "", until: str = "") -> "DataFrame":
    """The rows that are valid now, by the clock: from the time in the column ``since`` up to, not with, the one in ``until``.

    A row comes when its time has come and goes when it is over, to the second, although nothing is written then. Null is no bound, as is a column that is not
    given. Of a stream each event is a row; of a table rows still change and go.
    """
    from headwater.pipeline import valid as operator

    return operator.valid(rows, since, until)
