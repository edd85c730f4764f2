"""Routes: which broker leads the partitions of a topic, and which one coordinates a share group."""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from headwater.access import Log, access
from headwater.client.bulk.connection import BrokerConnection, compose
from headwater.errors import ErrorCode, MachineError, RequestError
from headwater.protocol.kafka.codec import Message

__all__ = ["Address", "Routes", "TopicRoute"]

CONNECT_S = 10.0
METADATA_VERSION = 12
"""The first one that finds topics by their ids."""
COORDINATES_GROUPS = 0

Address = tuple[str, int]
"""Host and port of a broker."""


class TopicRoute(NamedTuple):
    """A topic by its id."""

    name: str
    leaders: dict[int, Address]
    """The leader of each partition that has one."""


class Routes:
    """Questions to any broker of a log, and to the coordinator of a group. Belongs to one thread.

    Raises OSError if no broker can be reached, RequestError if one refuses. After either, the next question
    opens new connections.
    """

    def __init__(self, log: Log) -> None:
        self._access = access(log)
        self._connections: dict[Address, BrokerConnection] = {}
        self._brokers: list[Address] = []
        self._coordinator: Address | None = None

    def topics(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, TopicRoute]:
        """The topics that exist, by id."""
        wanted = [compose("Metadata", "topics", topic_id=topic_id, name=None) for topic_id in ids]
        request = compose("Metadata", topics=wanted, allow_auto_topic_creation=False)
        metadata = self.ask("Metadata", request, METADATA_VERSION)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
        self._brokers = list(brokers.values())
        return {
            topic.topic_id: TopicRoute(
                topic.name,
                {
                    part.partition_index: brokers[part.leader_id]
                    for part in topic.partitions
                    if part.leader_id in brokers
                },
            )
            for topic in metadata.topics
            if not topic.error_code
        }

    def ask(self, api: str, request: Message, version: int | None = None) -> Message:
        """The answer of any broker: of those that are known, then of the address."""
        failed: OSError | None = None
        for place in [*self._connections, *self._brokers, *_places(self._access.bootstrap)]:
            try:
                return self._connection(place).ask(api, request, version)
            except OSError as error:
                self._drop(place)
                failed = error
        raise failed or OSError(f"{self._access.bootstrap!r} names no broker")

    def ask_coordinator(self, group: str, api: str, request: Message) -> Message:
        """The answer of the broker that coordinates a group."""
        if self._coordinator is None:
            found = self.ask(
                "FindCoordinator", compose("FindCoordinator", key=group, key_type=COORDINATES_GROUPS)
            )
            if found.error_code:
                raise refusal(found.error_code, f"the coordinator of group {group!r}")
            self._coordinator = found.host, found.port
        place = self._coordinator
        try:
            return self._connection(place).ask(api, request)
        except OSError:
            self._drop(place)
            raise

    def forget_coordinator(self) -> None:
        """Asks for it again with the next question."""
        self._coordinator = None

    def close(self) -> None:
        for place in list(self._connections):
            self._drop(place)

    def _connection(self, place: Address) -> BrokerConnection:
        if place not in self._connections:
            self._connections[place] = BrokerConnection(self._access, *place, CONNECT_S)
        return self._connections[place]

    def _drop(self, place: Address) -> None:
        connection = self._connections.pop(place, None)
        self._coordinator = None
        if connection is not None:
            with suppress(OSError):
                connection.close()


def refusal(code: int, what: str, why: str | None = None) -> RequestError | MachineError:
    """The error for an error code of a broker."""
    text = f"{what}: {why}" if why else what
    if code not in set(ErrorCode):
        return MachineError(text, got=f"error {code}")
    return RequestError(ErrorCode(code), f"{text} ({ErrorCode(code).name})")


def _places(bootstrap: str) -> list[Address]:
    parts = (address.strip().rpartition(":") for address in bootstrap.split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in parts]
