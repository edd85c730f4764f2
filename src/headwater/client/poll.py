"""Poll: the messages that a consumer has ready, and the errors that say that a topic does not exist."""

from typing import Any

from confluent_kafka import Consumer

__all__ = ["TOPIC_MISSING", "poll_batch"]

TOPIC_MISSING = frozenset(
    {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
)
"""Names of errors for a topic that was deleted, or does not exist yet."""


def poll_batch(consumer: Consumer, seconds: float, messages_max: int) -> list[Any]:
    """Waits up to ``seconds`` for a message, then returns all that are ready, at most ``messages_max``.

    Errors and ends of partitions are among them. `consume` alone would wait until the batch is full.
    """
    first = consumer.poll(seconds)
    if first is None:
        return []
    return [first, *consumer.consume(messages_max - 1, 0)] if messages_max > 1 else [first]
