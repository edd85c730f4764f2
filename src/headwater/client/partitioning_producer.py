"""PartitioningProducer: a producer with a partitioner of ours, which the client library does not have."""

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, Producer

from headwater.client.partitioner import Choice
from headwater.clock import SystemClock
from headwater.errors import MachineError

__all__ = ["PartitioningProducer"]

COUNT_AGE_S = 60.0
"""How old the number of a topic's partitions may be."""
COUNT_TIMEOUT_S = 10.0


class PartitioningProducer(Producer):  # type: ignore[misc]  # the library has no types
    """Chooses the partition of each record, unless the caller names one. Belongs to one thread."""

    def __init__(self, options: dict[str, Any], make: Callable[[], Choice], logger: logging.Logger) -> None:
        """``make`` makes the choice of each topic."""
        super().__init__(options, logger=logger)
        self._make = make
        self._clock = SystemClock()
        self._choices: dict[str, Choice] = {}
        self._counts: dict[str, tuple[int, float]] = {}

    def produce(
        self, topic: str, value: Any = None, key: Any = None, partition: int = -1, *more: Any, **named: Any
    ) -> None:
        if partition < 0:
            choose = self._choices.setdefault(topic, self._make())
            partition = choose(_bytes(key), _bytes(value), self._count(topic))
        super().produce(topic, value, key, partition, *more, **named)

    def _count(self, topic: str) -> int:
        count, counted_at = self._counts.get(topic, (0, 0.0))
        now = self._clock.monotonic()
        if count and now < counted_at + COUNT_AGE_S:
            return count
        try:
            count = len(self.list_topics(topic, timeout=COUNT_TIMEOUT_S).topics[topic].partitions) or count
        except KafkaException as error:
            if not count:
                raise MachineError(
                    f"the partitions of topic {topic!r} are unknown", got=error.args[0].str()
                ) from error
        if not count:
            raise MachineError(f"topic {topic!r} has no partitions", hint="does it exist?")
        self._counts[topic] = (count, now)
        return count


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
