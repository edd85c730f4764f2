"""Topics: those that a worker reads or writes, and of dead letters, made when they are first needed."""

from collections.abc import Iterable

from headwater.access import Log
from headwater.client.client import Client
from headwater.client.topic_defaults import FULL, PASSING, STATE
from headwater.declare.spec import Stream
from headwater.worker.letter import SUFFIX
from headwater.worker.parked import SUFFIX as PARKED_SUFFIX
from headwater.worker.work import Written

__all__ = ["Topics"]

LETTER_BYTES_MAX = 100_000_000
"""A letter has more headers than its message, which may be as large as its topic allows."""


class Topics:
    """Belongs to one thread at a time."""

    def __init__(self, log: Log, partitions: int) -> None:
        self._client = Client(log)
        self._partitions = partitions
        self._known: set[str] = set()

    def ensure(self, records: Iterable[Written]) -> None:
        """MachineError if the log does not answer, or refuses a topic."""
        for topic, _, stream, is_reply in records:
            if topic in self._known:
                continue
            if is_reply:
                self._client.ensure_topics([topic], 1, PASSING)
            elif stream is not None and topic == stream.topic:
                self.ensure_stream(stream)
            elif topic.endswith(SUFFIX):
                config = FULL | {"max.message.bytes": str(LETTER_BYTES_MAX)}
                self._client.ensure_topics([topic], 1, config)
            elif topic.endswith(PARKED_SUFFIX):
                self._client.ensure_topics([topic], 1, STATE)
            else:
                self._client.ensure_topics([topic], self._partitions, FULL)
            self._known.add(topic)

    def ensure_stream(self, stream: Stream) -> None:
        """Makes the topic of a declared stream, which keeps records as long as the stream says."""
        config = FULL | {"retention.ms": str(stream.retention_ms)}
        self._client.ensure_topics([stream.topic], self._partitions, config)

    def close(self) -> None:
        self._client.close()
