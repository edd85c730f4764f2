"""Cluster: which broker leads a partition, which one coordinates a transaction, and a connection to each."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from headwater.access import Log, access
from headwater.bulk.connection import Connection, compose
from headwater.clock import Clock
from headwater.errors import ErrorCode, Fenced, MachineError

__all__ = ["Cluster", "Unknown", "check"]

T = TypeVar("T")

CONNECT_S = 10.0
PAUSES_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
SILENT_S = 3.0
"""Longer than a broker takes to start again: then it is said that we wait."""
RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""What a broker says that may be otherwise when it is asked again."""
BUSY = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS})
"""What a coordinator says that has not finished the transaction before, or is not up yet."""
FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
NAMES = {int(each): each.name for each in ErrorCode}

logger = logging.getLogger(__name__)


class Retry(Exception):  # noqa: N818  not an error: it asks for another turn
    """What was asked may succeed when it is asked again, of whoever leads then."""


class Unknown(Retry):
    """The log has no such topic, or does not know of it yet."""


class Busy(Retry):
    """The one who was asked is right, and not ready."""


def check(code: int, what: str) -> None:
    """Raises for what a broker has answered: Retry, Fenced, or MachineError."""
    if not code:
        return
    name = NAMES.get(code, f"error {code}")
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise Unknown(f"{what}: {name}")
    if code in BUSY:
        raise Busy(f"{what}: {name}")
    if code in RETRIED:
        raise Retry(f"{what}: {name}")
    if code in FENCED:
        raise Fenced(f"{what}: another has taken over", got=name)
    raise MachineError(f"{what}: the log refuses it", got=name)


class Cluster:
    """The brokers of a log, as far as one producer needs them. Belongs to one thread."""

    def __init__(self, log: Log, clock: Clock, stopping: threading.Event | None = None) -> None:
        self._access = access(log)
        self._clock = clock
        self._stopping = stopping or threading.Event()
        self._brokers: dict[int, tuple[str, int]] = {}
        self._questions: dict[tuple[str, int], Connection] = {}
        self._records: dict[tuple[str, int], Connection] = {}
        """Apart from the others, since their answers are taken in later."""
        self._leaders: dict[str, list[int]] = {}
        self._coordinators: dict[str, tuple[str, int]] = {}
        self._closed = False
        self.losses = 0
        """How often all connections were given up."""

    def leaders(self, topic: str) -> list[int]:
        """The node that leads each partition of a topic."""
        known = self._leaders.get(topic)
        if known is None:
            asked = [compose("Metadata", "topics", name=topic)]
            found = self._any().ask(
                "Metadata", compose("Metadata", topics=asked, allow_auto_topic_creation=False)
            )
            self._brokers = {each.node_id: (each.host, each.port) for each in found.brokers}
            check(found.topics[0].error_code, f"topic {topic!r}")
            partitions = sorted(found.topics[0].partitions, key=lambda each: int(each.partition_index))
            if any(each.leader_id not in self._brokers for each in partitions):
                raise Retry(f"topic {topic!r}: a partition has no leader")
            self._leaders[topic] = known = [each.leader_id for each in partitions]
        return known

    def node(self, number: int) -> Connection:
        """A connection for records to a broker by its number."""
        return self._connection(self._brokers[number], self._records)

    def coordinator(self, transactional_id: str) -> Connection:
        place = self._coordinators.get(transactional_id)
        if place is None:
            asked = compose("FindCoordinator", key=transactional_id, key_type=1)
            found = self._any().ask("FindCoordinator", asked)
            check(found.error_code, "the coordinator of transactions")
            self._coordinators[transactional_id] = place = (found.host, found.port)
        return self._connection(place, self._questions)

    def again(self, attempt: Callable[[], T], what: str, limit: float) -> T:
        """Tries until it succeeds, forgetting what was known in between; MachineError when the time is up, or we are to stop."""
        pause, begun, said = iter(PAUSES_S), self._clock.monotonic(), False
        while True:
            try:
                return attempt()
            except (OSError, Retry) as error:
                if not isinstance(error, Busy):
                    self.forget()
                got, now = str(error) or type(error).__name__, self._clock.monotonic()
                if now >= limit or self._stopping.is_set():
                    raise MachineError(what, got=got) from error
                if not said and now - begun >= SILENT_S:
                    logger.warning("%s; got %s; waiting for it", what, got)
                    said = True
                self._stopping.wait(min(next(pause, PAUSES_S[-1]), limit - now))

    def forget(self) -> None:
        """Closes all connections, and what was known about who leads with them."""
        for each in (*self._questions.values(), *self._records.values()):
            with suppress(OSError):
                each.close()
        self.losses += 1
        self._questions.clear()
        self._records.clear()
        self._leaders.clear()
        self._coordinators.clear()

    def close(self) -> None:
        """Forgets, and connects no more."""
        self._closed = True
        self.forget()

    def _any(self) -> Connection:
        """Whichever broker answers first: those that are known, then those of the address."""
        failed: OSError | None = None
        for place in [*self._questions, *self._brokers.values(), *_places(self._access.bootstrap)]:
            try:
                return self._connection(place, self._questions)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{self._access.bootstrap!r} names no broker")

    def _connection(self, place: tuple[str, int], known: dict[tuple[str, int], Connection]) -> Connection:
        if self._closed:
            raise MachineError("the connections to the log were closed")
        if place not in known:
            known[place] = Connection(self._access, *place, CONNECT_S)
        return known[place]


def _places(bootstrap: str) -> list[tuple[str, int]]:
    parts = (each.strip().rpartition(":") for each in bootstrap.split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in parts]
