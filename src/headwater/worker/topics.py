"""Topics: those that handlers write to, and of dead letters, made when they are first needed."""

from collections.abc import Iterable

from headwater.access import Log
from headwater.client.client import Client
from headwater.client.topic_defaults import FULL
from headwater.worker.letter import SUFFIX
from headwater.worker.work import Written

__all__ = ["Topics"]

LETTER_BYTES_MAX = 100_000_000
"""A letter has more headers than its message, which may be as large as its topic allows."""


class Topics:
    """Belongs to the thread of the outputs."""

    def __init__(self, log: Log, partitions: int) -> None:
        self._client = Client(log)
        self._partitions = partitions
        self._known: set[str] = set()

    def ensure(self, records: Iterable[Written]) -> None:
        """MachineError if the log does not answer, or refuses a topic."""
        for topic, _, stream in records:
            if topic in self._known:
                continue
            config, partitions = dict(FULL), self._partitions
            if stream is not None:
                config["retention.ms"] = str(stream.retention_ms)
            if topic.endswith(SUFFIX):
                config["max.message.bytes"], partitions = str(LETTER_BYTES_MAX), 1
            self._client.ensure_topics([topic], partitions, config)
            self._known.add(topic)

    def close(self) -> None:
        self._client.close()
