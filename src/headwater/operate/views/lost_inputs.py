"""Records that a view has read and that the log no longer holds.

A view that is computed again lacks these records: totals shrink and old windows disappear, and this would be
published as the truth. So the command is refused with a list of what is missing, unless the user accepts the
loss.

    missing      offsets that the running view has read, and that retention, or the deletion of a topic, has
                 removed
    not missing  records that were gone before the view began, and records removed by compaction, which
                 keeps the newest record of each key and the start of the log
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.follow import results
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.topics import Positions
from headwater.result import TICKS

__all__ = ["Missing", "missing", "refuse_loss"]

NAMED_MAX = 5
ACCEPT = "--accept-loss"


class Missing(NamedTuple):
    """Offsets of a partition that the log does not hold, from ``first`` to before ``upto``."""

    topic: str
    partition: int
    first: int
    upto: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} lacks offsets {self.first:,} to {self.upto - 1:,}"


def refuse_loss(client: Client, folder: Path, view: str, what: str, *, accept: bool) -> None:
    """Raises UsageError, whose text begins with ``what``, if the log lacks records that the view has read.

    ``folder`` has the checkpoints of the view.
    """
    if accept:
        return  # before any result is read: a newer version may have written them in a format unknown here
    gaps = missing(client, *_positions(client, folder, view))
    if not gaps:
        return
    more = f", and {len(gaps) - NAMED_MAX} more" if len(gaps) > NAMED_MAX else ""
    raise UsageError(
        f"{what}: the log no longer holds all records that it has read",
        got="; ".join(map(str, gaps[:NAMED_MAX])) + more,
        expected="every record that the running view has read",
        hint=f"{ACCEPT} computes its rows from the records that are left",
    )


def missing(client: Client, begun: Positions, read: Positions) -> list[Missing]:
    """The offsets from ``begun``, or from the first, up to ``read`` that the log does not hold."""
    gaps = []
    for topic in sorted(read.keys() - {TICKS}):
        bounds = client.bounds(topic)
        for partition, upto in sorted(read[topic].items()):
            first = begun.get(topic, {}).get(partition, 0)
            gaps += _gaps(topic, partition, (first, upto), bounds)
    return gaps


def _gaps(
    topic: str, partition: int, wanted: tuple[int, int], bounds: Mapping[int, tuple[int, int]]
) -> list[Missing]:
    (first, upto), (start, end) = wanted, bounds.get(partition, (0, 0))
    end = max(start, end)
    gaps = [(first, min(start, upto)), (max(first, end), upto)]
    return [Missing(topic, partition, *gap) for gap in gaps if gap[0] < gap[1]]


def _positions(client: Client, folder: Path, view: str) -> tuple[Positions, Positions]:
    """The first and the next offsets of a view's inputs.

    Those of a real-time view are only in its checkpoint.
    """
    newest = results.newest(client, view)
    if newest is not None:
        return newest.begun or Checkpoint(folder / newest.run).begun(), newest.inputs
    checkpoint = Checkpoint.of(folder, None)
    return checkpoint.begun(), checkpoint.complete()
