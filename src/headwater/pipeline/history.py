"""History: the versions of a table, every change as a row, for operators that go by what held when.

As an input of a view a table is its current rows, weighted: what one batch changes twice is seen once, and an old row is taken out. Who builds
that frame offers the changes behind it here: the columns of the table, and of each record

    _gone       true for a delete: then only the key has values
    _offset     where it stands in its partition, which is the order of the changes of a key
    _arrival    when it came into the log: the time of a delete, which has no other
"""

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame

from headwater.errors import UsageError

__all__ = ["Offer", "history", "offer", "offered"]

NAME = "_headwater_history"


class Offer(NamedTuple):
    """The key of a table, and its changes as a frame."""

    key: tuple[str, ...]
    changes: Callable[[], DataFrame]


def offer(table: DataFrame, key: tuple[str, ...], changes: Callable[[], DataFrame]) -> DataFrame:
    """The same frame, which knows from now on where its history is. What is made of it does not."""
    vars(table)[NAME] = Offer(key, changes)
    return table


def offered(table: DataFrame) -> Offer | None:
    found: Offer | None = vars(table).get(NAME)
    return found


def history(table: DataFrame) -> DataFrame:
    """Every change of a table as a row."""
    known = offered(table)
    if known is None:
        raise UsageError(
            "history: this is no table",
            expected="a table of the application, as the view gets it",
            hint="select and filter behind hw.history, not before it",
        )
    return known.changes()
