"""Position: for each topic and partition, the offset up to which something is complete."""

import re
from typing import Self

import msgspec

from headwater.errors import UsageError

__all__ = ["Position"]

_TOPIC = re.compile(r"([A-Za-z0-9._-]+):((?:\d+=\d+)(?:,\d+=\d+)*)\Z")
_TEXT_MAX = 16_384


class Position(msgspec.Struct, frozen=True):
    """The next offset of each partition, and the build of the table to which they belong.

    Offsets of two builds cannot be compared: a rebuilt table has a greater build. The text form is the token
    with which HTTP readers resume.
    """

    offsets: dict[str, dict[int, int]] = {}
    """topic → partition → next offset."""
    build: int = 0
    """When the table was created, in milliseconds; 0 for a position in a log."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the text form; anything else is a UsageError."""
        build, *topics = text.split("~")
        matches = [_TOPIC.match(topic) for topic in topics]
        if len(text) > _TEXT_MAX or not re.fullmatch(r"[0-9a-f]{1,16}", build) or not all(matches):
            raise UsageError(
                "this is not a position", got=repr(text[:80]), expected="BUILD~TOPIC:PARTITION=OFFSET,…"
            )
        offsets = {match[1]: _partitions(match[2]) for match in matches if match}
        return cls(offsets, int(build, 16))

    def __str__(self) -> str:
        topics = [
            f"{topic}:"
            + ",".join(f"{partition}={offset}" for partition, offset in sorted(partitions.items()))
            for topic, partitions in sorted(self.offsets.items())
            if partitions
        ]
        return "~".join([f"{self.build:x}", *topics])

    def of(self, topic: str) -> dict[int, int]:
        """The next offset of each partition of one topic."""
        return self.offsets.get(topic, {})

    def covers(self, other: "Position") -> bool:
        """Whether this includes everything before ``other``: the same build, and no smaller offset."""
        return self.build == other.build and all(
            self.of(topic).get(partition, 0) >= offset
            for topic, partitions in other.offsets.items()
            for partition, offset in partitions.items()
        )


def _partitions(text: str) -> dict[int, int]:
    pairs = (pair.split("=") for pair in text.split(","))
    return {int(partition): int(offset) for partition, offset in pairs}
