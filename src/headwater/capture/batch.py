"""Batch: what is in the log's open transaction of a capture."""

__all__ = ["Batch"]


class Batch:
    """Records that were published, and where the database is after them. The loop of the capture owns it."""

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        self.begun = now
        self.open = False
        self.rows = 0
        self.at_ms = 0
        self.position: str | None = None
        self.whole = True
        """Whether the transactions of the database that are in it have all come to their end."""
