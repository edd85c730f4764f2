"""Loss: what the log no longer holds of that which a view was made of.

A view that is made again says less than before when retention has taken records since, or somebody has deleted them: totals shrink, old windows are gone, and
that would be published as the truth. So it is refused, with what is missing, unless it is insisted on.

    missing      offsets that the running view has read, and the log has dropped from its start, or with the topic
    not missing  what was gone before the view began; and what compaction has taken: it leaves the newest record of each key, and the start of the log where it is
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headwater import result
from headwater.client import Client
from headwater.errors import UsageError
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.time import TICKS
from headwater.pipeline.topics import Positions

__all__ = ["Missing", "missing", "refuse_loss"]

NAMED_MAX = 5
ACCEPT = "--accept-loss"


class Missing(NamedTuple):
    """Offsets of a partition that the log does not hold: the first, and the one after the last."""

    topic: str
    partition: int
    first: int
    upto: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} lacks offsets {self.first:,} to {self.upto - 1:,}"


def refuse_loss(client: Client, folder: Path, view: str, what: str, *, accept: bool) -> None:
    """Raises UsageError, which says what cannot be, when the log lacks records that the view has read. ``folder`` has the view's checkpoints."""
    if accept:
        return  # also where a newer version has written results that this one cannot read
    found = missing(client, *_read(client, folder, view))
    if not found:
        return
    more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    raise UsageError(
        f"{what}: the log no longer holds all that it was made of",
        got="; ".join(map(str, found[:NAMED_MAX])) + more,
        expected="every record that the running view has read",
        hint=f"its rows would be made of what is left; {ACCEPT} does that",
    )


def missing(client: Client, begun: Positions, read: Positions) -> list[Missing]:
    """What the log lacks of the records from ``begun``, or the first ones, up to ``read``."""
    found = []
    for topic in sorted(read.keys() - {TICKS}):
        bounds = client.bounds(topic)
        for partition, upto in sorted(read[topic].items()):
            first = begun.get(topic, {}).get(partition, 0)
            found += _gaps(topic, partition, (first, upto), bounds)
    return found


def _gaps(
    topic: str, partition: int, wanted: tuple[int, int], bounds: Mapping[int, tuple[int, int]]
) -> list[Missing]:
    (first, upto), (start, end) = wanted, bounds.get(partition, (0, 0))
    end = max(start, end)
    gaps = [(first, min(start, upto)), (max(first, end), upto)]
    return [Missing(topic, partition, *gap) for gap in gaps if gap[0] < gap[1]]


def _read(client: Client, folder: Path, view: str) -> tuple[Positions, Positions]:
    """From where and up to where a view has read its inputs; one that runs in real time says it in its checkpoint alone."""
    seen = result.newest(client, view)
    if seen is not None:
        return seen.begun or Checkpoint(folder / seen.run).begun(), seen.inputs
    checkpoint = Checkpoint.of(folder, None)
    return checkpoint.begun(), checkpoint.complete()
