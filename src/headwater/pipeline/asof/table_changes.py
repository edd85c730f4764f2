"""The changes of a table, one row each, for operators that need the versions of its rows.

As an input of a view, a table is its current rows with weights: two changes in one batch are seen as one, and
old rows are retracted. The code that builds this frame attaches a second frame with every change: the columns
of the table, and for each record

    _gone       true for a deletion: then only the key has values
    _offset     its offset in its partition, which is the order of the changes of a key
    _arrival    the time at which it was written to the log: the only time of a deletion
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
    """The same frame, with its changes attached. Frames derived from it do not have them."""
    vars(table)[NAME] = Offer(key, changes)
    return table


def offered(table: DataFrame) -> Offer | None:
    """The changes attached to a frame, if any."""
    attached: Offer | None = vars(table).get(NAME)
    return attached


def history(table: DataFrame) -> DataFrame:
    """Every change of a table as a row."""
    attached = offered(table)
    if attached is None:
        raise UsageError(
            "history: its input is not a table of the application",
            expected="a table as the view receives it, before any select or filter",
            hint="call hw.history first, then select and filter its result",
        )
    return attached.changes()
