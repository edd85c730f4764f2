"""Records that a view has read and that the log no longer holds.

A view that is computed again lacks these records: totals shrink and old windows disappear, and this would be
published as the truth. So the command is refused with a list of what is missing, unless the user accepts the
loss.

    missing      offsets that the running view has read, and that retention, or the deletion of a topic, has
                 removed
    not missing  records that were gone before the view began, and records removed by compaction, which
                 keeps the newest record of each key and the start of the log

The records that are gone cannot be looked at. Their number is that of their offsets, with the markers of
transactions among them; they were written before the first record that the log still holds.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.follow import results
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.topics import Positions
from headwater.result import TICKS

__all__ = ["Missing", "losses", "missing", "refuse_loss"]

TOPICS_MAX = 5
"""How many topics an error names."""
GAPS_MAX = 5
"""How many gaps of a topic it names."""
READ_AHEAD_BYTES = 1 << 20
ACCEPT = "--accept-loss"


class Missing(NamedTuple):
    """Offsets of a partition that the log does not hold, from ``first`` to before ``upto``."""

    topic: str
    partition: int
    first: int
    upto: int

    @property
    def records(self) -> int:
        return self.upto - self.first

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.first:,} to {self.upto - 1:,}"


def refuse_loss(client: Client, folder: Path, view: str, what: str, *, accept: bool) -> None:
    """Raises UsageError, whose text begins with ``what``, if the log lacks records that the view has read.

    ``folder`` has the checkpoints of the view.
    """
    if accept:
        return  # before any result is read: a newer version may have written them in a format unknown here
    gaps = missing(client, *_positions(client, folder, view))
    if not gaps:
        return
    raise UsageError(
        f"{what}: the log no longer holds all records that it has read",
        got=losses(client, gaps),
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


def losses(client: Client, gaps: Iterable[Missing]) -> str:
    """For each topic: how many records are missing, from before when, and their offsets."""
    of_topics = [(topic, list(of_topic)) for topic, of_topic in groupby(gaps, lambda gap: gap.topic)]
    said = [_loss(client, topic, of_topic) for topic, of_topic in of_topics[:TOPICS_MAX]]
    return "; ".join([*said, *_rest(len(of_topics) - TOPICS_MAX, "topics")])


def _loss(client: Client, topic: str, gaps: list[Missing]) -> str:
    records = sum(gap.records for gap in gaps)
    places = ", ".join([*map(str, gaps[:GAPS_MAX]), *_rest(len(gaps) - GAPS_MAX, "gaps")])
    lacks = f"{topic} lacks {records:,} record{'' if records == 1 else 's'}"
    return f"{lacks}{_since(client, topic, gaps)} ({places})"


def _rest(left: int, what: str) -> list[str]:
    return [f"and {left} more {what}"] if left > 0 else []


def _since(client: Client, topic: str, gaps: list[Missing]) -> str:
    """From before when the missing records of a topic are, or what became of it."""
    bounds = client.bounds(topic)
    if not bounds:
        return ": the topic is gone"
    if any(gap.upto > max(bounds.get(gap.partition, (0, 0))) for gap in gaps):
        return ": the topic was deleted and made again"
    kept = [_first_time_ms(client, topic, gap.partition, bounds[gap.partition]) for gap in gaps]
    times = [time_ms for time_ms in kept if time_ms is not None]
    if len(times) < len(gaps):
        return ""  # nothing is left that says when
    before = datetime.fromtimestamp(max(times) / 1000, UTC)
    return f" from before {before.isoformat(timespec='seconds').replace('+00:00', 'Z')}"


def _first_time_ms(client: Client, topic: str, partition: int, bounds: tuple[int, int]) -> int | None:
    """When the first record that is left of a partition was written; None if none is left, or it says not."""
    start, end = ({topic: {partition: offset}} for offset in bounds)
    with closing(client.read([topic], end, since=start, ahead_bytes=READ_AHEAD_BYTES)) as records:
        kind, time_ms = next((record.timestamp() for record in records), (TIMESTAMP_NOT_AVAILABLE, 0))
    return None if kind == TIMESTAMP_NOT_AVAILABLE else int(time_ms)


def _positions(client: Client, folder: Path, view: str) -> tuple[Positions, Positions]:
    """The first and the next offsets of a view's inputs.

    Those of a real-time view are only in its checkpoint.
    """
    newest = results.newest(client, view)
    if newest is not None:
        return newest.begun or Checkpoint(folder / newest.run).begun(), newest.inputs
    checkpoint = Checkpoint.of(folder, None)
    return checkpoint.begun(), checkpoint.complete()
