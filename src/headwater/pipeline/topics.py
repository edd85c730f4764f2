"""Topics: what the pipeline asks of the log outside Spark: topics made and ends looked up.

Positions are ``{topic: {partition: offset}}``, as Spark writes them into its checkpoints.
"""

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.client import logger
from headwater.clock import SystemClock
from headwater.errors import MachineError
from headwater.graph import RESERVED, Graph, Stream

__all__ = ["Positions", "Topics", "behind", "pattern"]

Positions = dict[str, dict[int, int]]

TIMEOUT_S = 30.0
"""How long the log may be away before a question to it fails."""
RETRY_S = 0.2


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
    """The log's topics. Any thread may call; a question is answered in ``TIMEOUT_S`` or ends in a MachineError.

    Admin requests of librdkafka abort the process when the log goes away under them, so only ``ensure`` uses one.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._settings = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1_000}
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._consumer = Consumer(
            self._settings | {"group.id": "headwater", "enable.auto.commit": False}, logger=logger
        )

    def names(self) -> dict[str, int]:
        """All topics with their number of partitions."""
        found = self._ask(lambda seconds: self._consumer.list_topics(timeout=seconds)).topics
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
        if not wanted:
            return
        admin = AdminClient(self._settings, logger=logger)
        for name, answer in admin.create_topics(wanted, request_timeout=TIMEOUT_S).items():
            try:
                answer.result(TIMEOUT_S)
            except (KafkaException, TimeoutError) as error:
                if not _is(error, KafkaError.TOPIC_ALREADY_EXISTS):
                    raise MachineError(f"topic {name!r} cannot be created", got=_said(error)) from error

    def of(self, stream: Stream, graph: Graph) -> list[str]:
        """The topics that a stream reads now."""
        if stream.pattern is None:
            return [stream.topic]
        matches = re.compile(pattern(stream, graph)).fullmatch
        return sorted(name for name in self.names() if matches(name))

    def ends(self, topics: Iterable[str]) -> Positions:
        """The offset behind the last record of every partition; a topic that does not exist is left out."""
        known = self.names()
        return {
            topic: {partition: self._end(topic, partition) for partition in range(known[topic])}
            for topic in topics
            if topic in known
        }

    def _end(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        return int(self._ask(lambda seconds: self._consumer.get_watermark_offsets(place, timeout=seconds))[1])

    def _ask(self, question: Callable[[float], Any]) -> Any:
        """Asks again while the log is away: a client that has just lost its connection answers at once that it is down."""
        limit = self._clock.monotonic() + TIMEOUT_S
        while True:
            try:
                return question(max(0.1, limit - self._clock.monotonic()))
            except KafkaException as error:
                if self._clock.monotonic() >= limit or not error.args[0].retriable():
                    raise MachineError(
                        f"log {self.bootstrap} gives no answer",
                        got=_said(error),
                        hint="is the broker running?",
                    ) from error
            self._pause.wait(RETRY_S)


def _is(error: Exception, code: int) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() == code


def _said(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, KafkaException) else "no answer"
