"""What a document of OpenSearch's index of positions says, and what such documents are in the place of a partition."""

import msgspec

__all__ = ["COUNT", "FORMAT", "RESETTING", "Held"]


class Held(msgspec.Struct, frozen=True):
    """What a partition's document says, and which state of it that is."""

    claim: int
    offset: int
    place: tuple[int, int] | None


RESETTING = -1
"""In the place of a partition: whether a reset is under way."""
COUNT = -2
"""In the place of a partition: how many partitions the topic has, where claims are; 0 when that is not known."""
FORMAT = -3
"""In the place of a partition: the format of these documents, where claims are."""
