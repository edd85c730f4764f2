"""The counters of a loop: for its process, and for the account of its topic."""

from dataclasses import dataclass

import msgspec

__all__ = ["Counted", "Counters"]


@dataclass(slots=True)
class Counters:
    """What one loop has done since it was created."""

    applied: int = 0
    dead: int = 0
    resets: int = 0
    lag: int = 0
    """Records between the store and the end of the log, at the last commit of offsets."""


class Counted(msgspec.Struct, frozen=True):
    """What a loop has applied of a partition since its claim; the metadata of the committed offset."""

    since: int
    applied: int = 0

    def text(self) -> str:
        return f"{self.applied} since {self.since}"

    @classmethod
    def read(cls, text: str) -> "Counted | None":
        """None if a text has another form."""
        applied, _, since = text.partition(" since ")
        return cls(int(since), int(applied)) if applied.isdecimal() and since.isdecimal() else None
