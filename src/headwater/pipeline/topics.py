"""Topics: the log's client in the pipeline's words: streams with their topics, positions by topic.

Positions are ``{topic: {partition: offset}}``, as Spark writes them into its checkpoints.
"""

import re
from collections.abc import Iterable

from confluent_kafka import KafkaException

from headwater.access import Log
from headwater.client import Client
from headwater.graph import RESERVED, Graph, Stream
from headwater.keep import FULL, ROWS

__all__ = ["Positions", "Topics", "behind", "pattern"]

Positions = dict[str, dict[int, int]]

TIMEOUT_S = 30.0
"""How long the log may be away before a question to it fails."""
ANSWER_S = 1.0


def pattern(stream: Stream, graph: Graph) -> str:
    """The stream's pattern without the topics that Headwater itself writes; the same text works in Java and Python."""
    endings = "|".join(re.escape(ending) for ending in RESERVED)
    views = "|".join(re.escape(view) for view in graph.views) or re.escape("/")
    return f"(?!(?:{views})$)(?!.*(?:{endings})$)(?!__)(?:{stream.pattern})"


def behind(positions: Positions, ends: Positions) -> int:
    """How many records lie between the positions and the ends."""
    return sum(
        max(0, end - positions.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


class Topics(Client):
    """A client that waits longer, since a pipeline rides through a restart of the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, timeout_s=TIMEOUT_S)

    def ensure(self, names: Iterable[str], partitions: int, *, compact: bool) -> None:
        """Creates the topics that are missing, of rows or of events that are kept in full; an existing one is left as it is."""
        self.ensure_topics(names, partitions, ROWS if compact else FULL)

    def answers(self, topic: str) -> bool:
        """Whether the log answers now, with what it knows of a topic."""
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
        """The offset behind the last record of every partition; a topic that does not exist is left out."""
        found: Positions = {}
        for (topic, partition), end in self.end_offsets(topics).items():
            found.setdefault(topic, {})[partition] = end
        return found
