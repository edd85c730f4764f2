"""Ending: what a view had when it was stopped, by which it is noticed that a command has mended it."""

from pathlib import Path

from headwater import result
from headwater.errors import HeadwaterError
from headwater.follow import results
from headwater.pipeline.topics import Topics

__all__ = ["UNKNOWN", "Ending", "seen_run"]

UNKNOWN = "?"


def seen_run(topics: Topics, view: str) -> str | None:
    """The run that readers of a view see, None before the first; `UNKNOWN` if the log does not say."""
    try:
        seen = results.newest(topics, view)
    except Exception:  # noqa: BLE001  or what it says cannot be read
        return UNKNOWN
    return None if seen is None else seen.run


class Ending:
    """The run that readers saw, and the runs that had a checkpoint, when a view was stopped.

    A rebuild gives the view another run, and a reset none.
    """

    def __init__(self, topics: Topics, view: str, checkpoints: Path) -> None:
        self._topics = topics
        self._view = view
        self._checkpoints = checkpoints
        self._run = seen_run(topics, view)
        self._folders = self._runs_with_checkpoint()

    def is_mended(self) -> bool:
        """Whether a command has rebuilt or reset the view since."""
        seen = seen_run(self._topics, self._view)
        if seen == UNKNOWN:
            return False
        if self._run == UNKNOWN:  # the log was away: the view may have had this run already
            self._run = seen
        return seen != self._run or (seen is None and self._was_reset())

    def _was_reset(self) -> bool:
        """For a view without results, whether a reset is complete: it removes the topic of results last."""
        if self._folders <= self._runs_with_checkpoint():
            return False
        try:
            return result.topic(self._view) not in self._topics.partitions()
        except HeadwaterError:
            return False

    def _runs_with_checkpoint(self) -> set[str]:
        return {file.parent.name for file in self._checkpoints.glob("*/metadata")}
