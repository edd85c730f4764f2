"""WorkCounts: what a worker has done since its process began."""

from dataclasses import dataclass

__all__ = ["WorkCounts"]


@dataclass(slots=True)
class WorkCounts:
    """Written by the worker's thread; any thread may look."""

    handled: int = 0
    retried: int = 0
    """Attempts that failed and were followed by another one."""
    dead: int = 0
    """Messages that became dead letters."""
    in_work: int = 0
    """Messages whose handler runs now."""
