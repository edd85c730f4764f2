"""Topics: the client of the log for the pipeline: streams with their topics, positions by topic.

Positions are ``{topic: {partition: offset}}``, as Spark writes them into its checkpoints.
"""

import re
from collections.abc import Iterable

from confluent_kafka import KafkaException

from headwater.access import Log
from headwater.client.client import Client
from headwater.client.topic_defaults import FULL, ROWS
from headwater.declare.graph import Graph
from headwater.declare.spec import RESERVED, Stream

__all__ = ["Positions", "Topics", "pattern", "records_between"]

Positions = dict[str, dict[int, int]]

TIMEOUT_S = 30.0
"""How long the log may be away before a request fails."""
ANSWER_S = 1.0


def pattern(stream: Stream, graph: Graph) -> str:
    """The stream's pattern, without the topics that Headwater itself writes; a regex for Java and Python."""
    endings = "|".join(re.escape(ending) for ending in RESERVED)
    views = "|".join(re.escape(view) for view in graph.views) or re.escape("/")
    return f"(?!(?:{views})$)(?!.*(?:{endings})$)(?!__)(?:{stream.pattern})"


def records_between(positions: Positions, ends: Positions) -> int:
    """The number of records between positions and ends: the lag of a reader at these positions."""
    return sum(
        max(0, end - positions.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


class Topics(Client):
    """A client with a longer time-out, since a pipeline survives a restart of the log."""

    def __init__(self, log: Log, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(log, timeout_s=timeout_s)

    def ensure(self, names: Iterable[str], partitions: int, *, compact: bool) -> None:
        """Creates missing topics, compacted for rows or kept in full for events.

        Leaves existing ones as they are.
        """
        self.ensure_topics(names, partitions, ROWS if compact else FULL)

    def answers(self, topic: str) -> bool:
        """Whether the log answers a request for the metadata of a topic now."""
        try:
            self._reader().list_topics(topic, timeout=ANSWER_S)
        except KafkaException:
            return False
        return True

    def of(self, stream: Stream, graph: Graph) -> list[str]:
        """The topics that a stream reads now."""
        if stream.pattern is None:
            return [stream.topic]
        matches = re.compile(pattern(stream, graph)).fullmatch
        return sorted(name for name in self.partitions() if matches(name))

    def ends(self, topics: Iterable[str]) -> Positions:
        """The offset after the last record of each partition; a topic that does not exist is left out."""
        positions: Positions = {}
        for (topic, partition), end in self.end_offsets(topics).items():
            positions.setdefault(topic, {})[partition] = end
        return positions
