"""Topics: what the pipeline asks of the log outside Spark: topics made, ends looked up, positions committed.

Positions are ``{topic: {partition: offset}}``, as Spark writes them into its checkpoints.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headwater.client import logger
from headwater.errors import MachineError
from headwater.graph import RESERVED, Graph, Stream

__all__ = ["Positions", "Topics", "behind", "pattern"]

Positions = dict[str, dict[int, int]]

TIMEOUT_S = 30.0
"""How long the log may be away before a question to it fails."""
COMMIT_TIMEOUT_S = 5.0
"""The same for a commit, which holds up a batch and will be made again by the next."""


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


class Topics:
    """The log's topics. Any thread may call; each call is one question, answered in ``TIMEOUT_S`` or a MachineError."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient(
            {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1_000}, logger=logger
        )

    def names(self) -> dict[str, int]:
        """All topics with their number of partitions."""
        with self._asking():
            found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def ensure(self, names: Iterable[str], partitions: int, *, compact: bool) -> None:
        """Creates the topics that are missing; an existing one is left as it is."""
        config = {"cleanup.policy": "compact"} if compact else {}
        known = self.names()
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=-1, config=config)
            for name in dict.fromkeys(names)
            if name not in known
        ]
        answers = self._admin.create_topics(wanted, request_timeout=TIMEOUT_S) if wanted else {}
        for answer in answers.values():
            with self._asking(KafkaError.TOPIC_ALREADY_EXISTS):
                answer.result(TIMEOUT_S)

    def of(self, stream: Stream, graph: Graph) -> list[str]:
        """The topics that a stream reads now."""
        if stream.pattern is None:
            return [stream.topic]
        matches = re.compile(pattern(stream, graph)).fullmatch
        return sorted(name for name in self.names() if matches(name))

    def ends(self, topics: Iterable[str]) -> Positions:
        """The offset behind the last record of every partition."""
        known = self.names()
        asked = {
            TopicPartition(topic, partition): OffsetSpec.latest()
            for topic in topics
            for partition in range(known.get(topic, 0))
        }
        found: Positions = {}
        with self._asking():
            answers = self._admin.list_offsets(asked, request_timeout=TIMEOUT_S) if asked else {}
            for place, answer in answers.items():
                found.setdefault(place.topic, {})[place.partition] = answer.result(TIMEOUT_S).offset
        return found

    def commit(self, group: str, positions: Positions) -> None:
        """Commits positions for a group without members, for the eyes of lag tools."""
        places = [
            TopicPartition(topic, partition, offset)
            for topic, partitions in positions.items()
            for partition, offset in partitions.items()
        ]
        request = ConsumerGroupTopicPartitions(group, places)
        with self._asking():
            answers = self._admin.alter_consumer_group_offsets([request], request_timeout=COMMIT_TIMEOUT_S)
            answers[group].result(COMMIT_TIMEOUT_S)

    def committed(self, group: str) -> Positions:
        """What a group has committed; empty for a group that never did."""
        found: Positions = {}
        request = ConsumerGroupTopicPartitions(group)
        with self._asking():
            answer = self._admin.list_consumer_group_offsets([request], request_timeout=TIMEOUT_S)[group]
            for place in answer.result(TIMEOUT_S).topic_partitions:
                if place.offset >= 0:
                    found.setdefault(place.topic, {})[place.partition] = place.offset
        return found

    @contextlib.contextmanager
    def _asking(self, *accepted: int) -> Iterator[None]:
        """Turns the client's errors into ours, but for the accepted codes."""
        try:
            yield
        except TimeoutError as error:
            raise MachineError(
                f"log {self.bootstrap} gives no answer", hint="is the broker running?"
            ) from error
        except KafkaException as error:
            fault = error.args[0]
            if isinstance(fault, KafkaError) and fault.code() in accepted:
                return
            got = fault.str() if isinstance(fault, KafkaError) else str(error)
            raise MachineError(
                f"log {self.bootstrap} gives no answer", got=got, hint="is the broker running?"
            ) from error
