"""Cluster: the leaders of partitions, the coordinators of transactions, and connections to them."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from headwater.access import Log, access
from headwater.client.bulk.connection import BrokerConnection, compose
from headwater.clock import Clock
from headwater.errors import ErrorCode, FencedError, MachineError

__all__ = ["Cluster", "Unknown", "check"]

T = TypeVar("T")

CONNECT_S = 10.0
PAUSES_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
SILENT_S = 3.0
"""Longer than a broker takes to restart: after this time the wait is logged."""
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
"""Answers of a broker that may be different when it is asked again."""
BUSY = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS})
"""Answers of a coordinator that is just starting, or has not finished the transaction before."""
FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
NAMES = {int(code): code.name for code in ErrorCode}

logger = logging.getLogger(__name__)


class Retry(Exception):  # noqa: N818  not an error: it asks for another attempt
    """The request may succeed when it is sent again, to the broker that leads then."""


class Unknown(Retry):
    """The log has no such topic, or does not know of it yet."""


class Busy(Retry):
    """The right broker was asked, but it is not ready."""


def check(code: int, what: str) -> None:
    """Raises for the error code of a broker: Retry, FencedError, or MachineError."""
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
        raise FencedError(f"{what}: another process has taken over", got=name)
    raise MachineError(f"{what}: the log refuses it", got=name)


class Cluster:
    """The brokers of a log, as far as one producer needs them. Belongs to one thread."""

    def __init__(self, log: Log, clock: Clock, stopping: threading.Event | None = None) -> None:
        self._access = access(log)
        self._clock = clock
        self._stopping = stopping or threading.Event()
        self._brokers: dict[int, tuple[str, int]] = {}
        self._questions: dict[tuple[str, int], BrokerConnection] = {}
        self._records: dict[tuple[str, int], BrokerConnection] = {}
        """Connections of their own for records, because their answers are read later."""
        self._leaders: dict[str, list[int]] = {}
        self._coordinators: dict[str, tuple[str, int]] = {}
        self._closed = False
        self.losses = 0
        """How often all connections were closed."""

    def leaders(self, topic: str) -> list[int]:
        """The node that leads each partition of a topic."""
        nodes = self._leaders.get(topic)
        if nodes is None:
            topics = [compose("Metadata", "topics", name=topic)]
            request = compose("Metadata", topics=topics, allow_auto_topic_creation=False)
            metadata = self._any().ask("Metadata", request)
            self._brokers = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
            check(metadata.topics[0].error_code, f"topic {topic!r}")
            partitions = sorted(metadata.topics[0].partitions, key=lambda part: int(part.partition_index))
            if any(part.leader_id not in self._brokers for part in partitions):
                raise Retry(f"topic {topic!r}: a partition has no leader")
            self._leaders[topic] = nodes = [part.leader_id for part in partitions]
        return nodes

    def node(self, number: int) -> BrokerConnection:
        """The connection for records to the broker of that number."""
        return self._connection(self._brokers[number], self._records)

    def coordinator(self, transactional_id: str) -> BrokerConnection:
        place = self._coordinators.get(transactional_id)
        if place is None:
            request = compose("FindCoordinator", key=transactional_id, key_type=1)
            answer = self._any().ask("FindCoordinator", request)
            check(answer.error_code, "the coordinator of transactions")
            self._coordinators[transactional_id] = place = (answer.host, answer.port)
        return self._connection(place, self._questions)

    def again(self, attempt: Callable[[], T], what: str, limit: float) -> T:
        """Repeats an attempt until it succeeds; MachineError after the time limit, or when we are to stop.

        Between two attempts it forgets the leaders and coordinators.
        """
        pause, begun, logged = iter(PAUSES_S), self._clock.monotonic(), False
        while True:
            try:
                return attempt()
            except (OSError, Retry) as error:
                if not isinstance(error, Busy):
                    self.forget()
                got, now = str(error) or type(error).__name__, self._clock.monotonic()
                if now >= limit or self._stopping.is_set():
                    raise MachineError(what, got=got) from error
                if not logged and now - begun >= SILENT_S:
                    logger.warning("%s; got %s; waiting for it", what, got)
                    logged = True
                self._stopping.wait(min(next(pause, PAUSES_S[-1]), limit - now))

    def forget(self) -> None:
        """Closes all connections, and forgets the leaders and coordinators."""
        for connection in (*self._questions.values(), *self._records.values()):
            with suppress(OSError):
                connection.close()
        self.losses += 1
        self._questions.clear()
        self._records.clear()
        self._leaders.clear()
        self._coordinators.clear()

    def close(self) -> None:
        """Closes all connections for good."""
        self._closed = True
        self.forget()

    def _any(self) -> BrokerConnection:
        """The first broker that can be reached: of the known ones, then of the address."""
        failed: OSError | None = None
        for place in [*self._questions, *self._brokers.values(), *_places(self._access.bootstrap)]:
            try:
                return self._connection(place, self._questions)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{self._access.bootstrap!r} names no broker")

    def _connection(
        self, place: tuple[str, int], connections: dict[tuple[str, int], BrokerConnection]
    ) -> BrokerConnection:
        if self._closed:
            raise MachineError("the connections to the log were closed")
        if place not in connections:
            connections[place] = BrokerConnection(self._access, *place, CONNECT_S)
        return connections[place]


def _places(bootstrap: str) -> list[tuple[str, int]]:
    parts = (address.strip().rpartition(":") for address in bootstrap.split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in parts]
