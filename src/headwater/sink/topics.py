"""TopicWatch: which of the wanted topics exist, under which id and with how many partitions."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headwater.access import Log
from headwater.client import admin
from headwater.clock import Clock

__all__ = ["Topic", "TopicWatch"]

MISSING_SECONDS = 0.5
"""Between two looks while a topic is missing: a new application is creating it right now."""
STEADY_SECONDS = 5.0
"""Between two looks when all topics are there: only an operator's act changes anything."""
REQUEST_SECONDS = 10.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero id, from a broker that knows no topic ids."""


class Topic(msgspec.Struct, frozen=True):
    """What the log says of one topic; a recreated topic has the same name and another id."""

    id: str
    partitions: int


class TopicWatch:
    """Asks the log for topics at a bounded rate and without blocking; it never creates one.

    One thread calls `look` over and over; an unreachable log gives no answer rather than a wrong one.
    """

    def __init__(self, log: Log, topics: Sequence[str], clock: Clock) -> None:
        self._admin = admin(log)
        self._topics = list(topics)
        self._clock = clock
        self._due = 0.0
        self._asked: dict[str, Future[Any]] = {}
        self.complete = not topics

    def look(self) -> dict[str, Topic | None]:
        """The topics of an answer that has just come in (None: does not exist); mostly nothing."""
        if self._asked and all(future.done() for future in self._asked.values()):
            return self._answer()
        if not self._asked and self._topics and self._clock.monotonic() >= self._due:
            self._asked = self._admin.describe_topics(
                TopicCollection(self._topics), request_timeout=REQUEST_SECONDS
            )
        return {}

    def hurry(self) -> None:
        """Looks again soon: a topic was seen to be gone."""
        self.complete = False
        self._due = min(self._due, self._clock.monotonic() + MISSING_SECONDS)

    def _answer(self) -> dict[str, Topic | None]:
        found: dict[str, Topic | None] = {}
        for name, future in self._asked.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    found[name] = None
                continue
            topic_id = str(description.topic_id)
            found[name] = Topic("" if topic_id == NO_ID else topic_id, len(description.partitions))
        self._asked = {}
        self.complete = all(found.get(topic) for topic in self._topics)
        self._due = self._clock.monotonic() + (STEADY_SECONDS if self.complete else MISSING_SECONDS)
        return found
