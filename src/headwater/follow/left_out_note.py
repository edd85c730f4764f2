"""Left-out note: how many records a real-time view has left out, beside the position of its consumer group.

Such a view has no results. The text is the metadata of each offset that its group commits, so the counts are
those of the position.
"""

import re
from typing import Self

import msgspec

__all__ = ["LeftOutNote"]

FORM = re.compile(r"(\d+) late, (\d+) invalid since (\d+)")


class LeftOutNote(msgspec.Struct, frozen=True):
    """What a real-time view has left out of a topic, as each committed offset of the topic says it."""

    since: int
    """The offset of the partition from which on the records are counted."""
    late: int = 0
    invalid: int = 0

    def text(self) -> str:
        return f"{self.late} late, {self.invalid} invalid since {self.since}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """None if a text has another form."""
        match = FORM.fullmatch(text)
        return None if match is None else cls(int(match[3]), int(match[1]), int(match[2]))
