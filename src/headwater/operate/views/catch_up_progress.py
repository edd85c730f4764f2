"""Catch-up progress: how many of the records of a log a new run of a view has read, said when it moves.

A position moves when a batch is closed, which may take minutes. Within a batch, the tasks say how many
records they have read. Ticks are no records: their topic is that of all views.
"""

from collections.abc import Callable

from headwater.pipeline.topics import Positions, records_between
from headwater.result import TICKS

__all__ = ["CatchUpProgress", "records"]


def records(positions: Positions, ends: Positions) -> int:
    """The number of records between two positions, without ticks."""
    return records_between(positions, {topic: at for topic, at in ends.items() if topic != TICKS})


class CatchUpProgress:
    """Says how far one round of catching up is. Never goes back."""

    def __init__(self, starts: Positions, ends: Positions, say: Callable[[str], None]) -> None:
        """``starts``, ``ends``: where the log begins, and where the round ends."""
        self._starts = starts
        self._say = say
        self._total = records(starts, ends)
        self._said = -1

    def note(self, closed: Positions, planned: Positions, reading: int) -> None:
        """``closed``: up to where batches are closed; ``planned``: up to where the current one reads.

        ``reading``: how many records its tasks have read; a task that is repeated counts twice.
        """
        done = records(self._starts, closed)
        within = min(reading, max(0, records(self._starts, planned) - done))
        read = min(done + within, self._total)
        if read > self._said:
            self._said = read
            self._say(f"{read:,} of {self._total:,} records")
