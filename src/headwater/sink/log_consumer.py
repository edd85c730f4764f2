"""LogConsumer: how sinks and view tables read the log.

It does not decide what to read: a sink is given partitions by its group (``loop/membership.py``), view
tables assign all partitions of their views (``view/tables/delivery.py``).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headwater.access import Log
from headwater.client.client import consumer
from headwater.client.poll import poll_batch

__all__ = ["QUEUE_KB", "LogConsumer", "Messages"]

QUEUE_KB = 16_384
"""What the client fetches ahead, and so the size of a batch at most (apart from one fetch)."""
END = "_PARTITION_EOF"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Messages:
    """The messages of one read, by kind."""

    records: list[Any] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition that were read to their end: the offset there."""
    errors: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, messages: Iterable[Any]) -> "Messages":
        by_kind = cls()
        for message in messages:
            error = message.error()
            if error is None:
                by_kind.records.append(message)
            elif error.name() == END:
                by_kind.ends[message.topic(), message.partition()] = message.offset()
            else:
                by_kind.errors.append(message)
        return by_kind

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.ends or self.errors)


class LogConsumer:
    """A consumer that logs once that the log does not answer.

    ``client`` is librdkafka's; one thread uses both.
    """

    def __init__(self, log: Log, reader: str, group: str, **settings: Any) -> None:
        self._log = log
        self._reader = reader
        """The name for log lines, like ``sink orders``."""
        self._offline = False
        common = {
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": QUEUE_KB,
            "reconnect.backoff.max.ms": 1_000,
            "error_cb": self._on_client_error,
        }
        self.client = consumer(log, group=group, **(common | settings))

    def take(self, seconds: float, limit: int) -> Messages | None:
        """The messages that are there, up to a limit; waits for the first one.

        None if there is none in time.
        """
        messages = poll_batch(self.client, seconds, limit)
        if not messages:
            return None
        self._offline = False
        return Messages.of(messages)

    def close(self) -> None:
        self.client.close()

    def _on_client_error(self, error: Any) -> None:
        if not self._offline:
            logger.warning("%s: the log at %s does not answer (%s)", self._reader, self._log, error.str())
        self._offline = True
