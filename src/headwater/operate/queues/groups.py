"""Share groups of a log, as those who look after them see them: names, members, starts."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from headwater.access import Log, access
from headwater.client.bulk.connection import BrokerConnection, compose
from headwater.client.bulk.routes import CONNECT_S, Routes, refusal
from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.errors import ErrorCode, MachineError, RequestError, UsageError
from headwater.worker.letter import SUFFIX

__all__ = ["Members", "Place", "check_queue", "letter_queues", "members", "move", "queues"]

T = TypeVar("T")

SHARE = "share"
AWAY_S = 10.0
"""How long a log that is away, or a coordinator that starts, is asked again."""
PAUSE_S = 0.2
BUSY = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)

Place = tuple[str, int]
"""A topic, and the number of a partition."""


class Members(NamedTuple):
    """Who is in a group."""

    total: int
    by_place: dict[Place, int]
    """How many members each partition has."""


def queues(log: Log) -> list[str]:
    """All share groups of a log, by name. MachineError if the log does not answer."""

    def ask(routes: Routes) -> set[str]:
        brokers = routes.ask("Metadata", compose("Metadata", topics=[])).brokers
        names: set[str] = set()
        for broker in brokers:  # each lists the groups that it coordinates
            connection = BrokerConnection(access(log), broker.host, broker.port, CONNECT_S)
            with closing(connection):
                answer = connection.ask("ListGroups", compose("ListGroups", types_filter=[SHARE]))
            if answer.error_code:
                raise refusal(answer.error_code, "the list of groups")
            names |= {group.group_id for group in answer.groups}
        return names

    return sorted(_answered(log, ask))


def letter_queues(log: Log) -> list[str]:
    """The queues of dead letters, also those that were never looked at: they are topics so far."""
    names = {f"{name}{SUFFIX}" for name in queues(log)}
    with closing(Client(log)) as client:
        return sorted(names & client.partitions().keys())


def check_queue(log: Log, name: str) -> None:
    """UsageError unless a queue is among those of its log."""
    names = queues(log)
    if name not in names:
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no queue {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else "headwater queue list shows all queues",
        )


def members(log: Log, group: str) -> Members:
    """The members of a group, which may have none."""

    def ask(routes: Routes) -> Members:
        request = compose("ShareGroupDescribe", group_ids=[group])
        (described,) = routes.ask_coordinator(group, "ShareGroupDescribe", request).groups
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return Members(0, {})
        if described.error_code:
            raise refusal(described.error_code, f"queue {group!r}", described.error_message)
        counts: dict[Place, int] = {}
        for member in described.members:
            for part in member.assignment.topic_partitions:
                for number in part.partitions:
                    place = part.topic_name, number
                    counts[place] = counts.get(place, 0) + 1
        return Members(len(described.members), counts)

    return _answered(log, ask)


def move(log: Log, group: str, starts: Mapping[Place, int]) -> None:
    """Lets a group without members begin at other offsets. UsageError if it has members."""
    by_topic: dict[str, list[Place]] = {}
    for place in starts:
        by_topic.setdefault(place[0], []).append(place)
    topics = [
        compose(
            "AlterShareGroupOffsets",
            "topics",
            topic_name=topic,
            partitions=[
                compose(
                    "AlterShareGroupOffsets",
                    "topics.partitions",
                    partition_index=place[1],
                    start_offset=starts[place],
                )
                for place in places
            ],
        )
        for topic, places in by_topic.items()
    ]

    def ask(routes: Routes) -> None:
        request = compose("AlterShareGroupOffsets", group_id=group, topics=topics)
        answer = routes.ask_coordinator(group, "AlterShareGroupOffsets", request)
        if answer.error_code:
            raise refusal(answer.error_code, f"queue {group!r} cannot be moved", answer.error_message)
        for topic in answer.responses:
            for part in topic.partitions:
                if part.error_code:
                    what = f"queue {group!r}: {topic.topic_name}-{part.partition_index} cannot be moved"
                    raise refusal(part.error_code, what, part.error_message)

    try:
        _answered(log, ask)
    except RequestError as error:
        if error.code is not ErrorCode.NON_EMPTY_GROUP:
            raise MachineError(f"queue {group!r} cannot be moved", got=str(error)) from error
        raise UsageError(
            f"queue {group!r} has members, and cannot be moved while they read",
            hint="stop its workers first; a start moves only in a group without members",
        ) from error


def _answered(log: Log, ask: Callable[[Routes], T]) -> T:
    """The answer to a question, which is repeated while the log is away or its coordinator starts."""
    clock, pause = SystemClock(), threading.Event()
    limit = clock.monotonic() + AWAY_S
    with _routes(log) as routes:
        while True:
            try:
                return ask(routes)
            except OSError as error:
                if clock.monotonic() >= limit:
                    hint = "is the broker running?"
                    raise MachineError(
                        f"log {access(log)} does not answer", got=str(error), hint=hint
                    ) from error
            except RequestError as error:
                if error.code not in BUSY or clock.monotonic() >= limit:
                    raise
                routes.forget_coordinator()
            pause.wait(PAUSE_S)


@contextmanager
def _routes(log: Log) -> Iterator[Routes]:
    routes = Routes(log)
    try:
        yield routes
    finally:
        routes.close()
