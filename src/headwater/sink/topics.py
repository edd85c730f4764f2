"""TopicWatch: which of the wanted topics exist, under which id and with how many partitions."""

import atexit
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from headwater.access import Log
from headwater.client import Client, admin
from headwater.clock import Clock
from headwater.errors import Away, MachineError
from headwater.sink.store import Feed

__all__ = ["Topic", "TopicWatch", "ask", "known_as", "partitions_of"]

MISSING_SECONDS = 0.5
"""Between two looks while a topic is missing: a new application is creating it right now."""
STEADY_SECONDS = 5.0
"""Between two looks when all topics are there: only an operator's act changes anything."""
REQUEST_SECONDS = 10.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero id, from a broker that knows no topic ids."""
EXIT_SECONDS = 1.0

_lock = threading.Lock()
_asked: list[tuple[AdminClient, list[Future[Any]]]] = []
"""Clients that an answer may still be on its way to."""


def ask(client: AdminClient, topics: Sequence[str]) -> dict[str, Future[Any]]:
    """Asks for topics, and keeps the client until they have answered, whoever lets go of it.

    librdkafka 2.16 reads through a null pointer when the answer meets a client that is being closed, and the process is gone.
    """
    answers: dict[str, Future[Any]] = client.describe_topics(
        TopicCollection(list(topics)), request_timeout=REQUEST_SECONDS
    )
    with _lock:
        _asked[:] = [each for each in _asked if not all(answer.done() for answer in each[1])]
        _asked.append((client, list(answers.values())))
    return answers


@atexit.register
def _wait_for_answers() -> None:
    with _lock:
        wait([answer for _, answers in _asked for answer in answers], EXIT_SECONDS)


def known_as(description: Any) -> str:
    """The id in a topic's description; empty where the log has none."""
    found = str(description.topic_id)
    return "" if found == NO_ID else found


def partitions_of(feed: Feed) -> int:
    """How many partitions the log says that a feed's topic has; 0 where there is no such topic. Away when the log does not answer."""
    if feed.log is None:
        return 0
    client = Client(feed.log, timeout_s=REQUEST_SECONDS)
    try:
        return client.partitions().get(feed.topic, 0)
    except MachineError as error:
        raise Away(error.what, got=error.got) from error
    finally:
        client.close()


class Topic(msgspec.Struct, frozen=True):
    """What the log says of one topic; a recreated topic has the same name and another id."""

    id: str
    partitions: int


class TopicWatch:
    """Asks the log for topics at a bounded rate and without blocking; it never creates one.

    One thread calls `look` over and over; an unreachable log gives no answer rather than a wrong one.
    """

    def __init__(self, log: Log, topics: Sequence[str], clock: Clock) -> None:
        self._admin = admin(log, offsets=False)
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
            self._asked = ask(self._admin, self._topics)
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
            found[name] = Topic(known_as(description), len(description.partitions))
        self._asked = {}
        self.complete = all(found.get(topic) for topic in self._topics)
        self._due = self._clock.monotonic() + (STEADY_SECONDS if self.complete else MISSING_SECONDS)
        return found
