"""TopicWatch: which of the wanted topics exist, with their ids and numbers of partitions."""

import atexit
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from headwater.access import Log
from headwater.client.client import admin
from headwater.clock import Clock

__all__ = ["Topic", "TopicWatch", "ask", "known_as"]

MISSING_SECONDS = 0.5
"""Between two looks while a topic is missing: perhaps an application is just creating it."""
STEADY_SECONDS = 5.0
"""Between two looks when all topics exist: only an operator changes that."""
REQUEST_SECONDS = 10.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero id, from a broker that does not know topic ids."""
EXIT_SECONDS = 1.0

_lock = threading.Lock()
_requests: list[tuple[AdminClient, list[Future[Any]]]] = []
"""Clients that may still get an answer."""


def ask(client: AdminClient, topics: Sequence[str]) -> dict[str, Future[Any]]:
    """Asks for topics, and keeps the client until they have answered, even if the caller drops it.

    librdkafka 2.16 crashes the process, by a null pointer, if an answer comes to a client that is being
    closed.
    """
    answers: dict[str, Future[Any]] = client.describe_topics(
        TopicCollection(list(topics)), request_timeout=REQUEST_SECONDS
    )
    with _lock:
        _requests[:] = [entry for entry in _requests if not all(answer.done() for answer in entry[1])]
        _requests.append((client, list(answers.values())))
    return answers


@atexit.register
def _wait_for_answers() -> None:
    with _lock:
        wait([answer for _, answers in _requests for answer in answers], EXIT_SECONDS)


def known_as(description: Any) -> str:
    """The id in a topic's description; empty if the log has none."""
    topic_id = str(description.topic_id)
    return "" if topic_id == NO_ID else topic_id


class Topic(msgspec.Struct, frozen=True):
    """What the log reports of one topic; a topic that was created again has the same name and another id."""

    id: str
    partitions: int


class TopicWatch:
    """Asks the log for topics at a bounded rate and without blocking; it never creates one.

    One thread calls `look` again and again. From a log that is away there is no answer, rather than a wrong
    one.
    """

    def __init__(self, log: Log, topics: Sequence[str], clock: Clock) -> None:
        self._admin = admin(log, offsets=False)
        self._topics = list(topics)
        self._clock = clock
        self._due = 0.0
        self._answers: dict[str, Future[Any]] = {}
        self.complete = not topics

    def look(self) -> dict[str, Topic | None]:
        """The topics of an answer that has just arrived (None: does not exist); most calls return nothing."""
        if self._answers and all(future.done() for future in self._answers.values()):
            return self._answer()
        if not self._answers and self._topics and self._clock.monotonic() >= self._due:
            self._answers = ask(self._admin, self._topics)
        return {}

    def hurry(self) -> None:
        """Looks again soon, because a topic seems to be deleted."""
        self.complete = False
        self._due = min(self._due, self._clock.monotonic() + MISSING_SECONDS)

    def _answer(self) -> dict[str, Topic | None]:
        topics: dict[str, Topic | None] = {}
        for name, future in self._answers.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    topics[name] = None
                continue
            topics[name] = Topic(known_as(description), len(description.partitions))
        self._answers = {}
        self.complete = all(topics.get(topic) for topic in self._topics)
        self._due = self._clock.monotonic() + (STEADY_SECONDS if self.complete else MISSING_SECONDS)
        return topics
