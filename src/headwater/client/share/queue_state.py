"""The state of queues as the broker tells it, and records that an administrator settles.

These are extensions of the embedded log. Apache Kafka says the start offset and the lag alone, and settles
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from headwater.access import Log
from headwater.client.bulk.connection import compose
from headwater.client.bulk.routes import Routes, refusal
from headwater.errors import ErrorCode, MachineError, RequestError, UsageError
from headwater.protocol.kafka.codec import Message

__all__ = [
    "Held",
    "QueueState",
    "RecordState",
    "Settled",
    "StateRun",
    "TopicPartition",
    "queue_states",
    "record_states",
    "settle",
]

STATES_MAX = 5_000
"""How many runs of states are asked for at once."""
RANGES_MAX = 5_000
"""How many ranges are settled with one request."""
UNKNOWN = -1

TopicPartition = tuple[str, int]
"""The name of a topic, and the number of a partition."""


class RecordState(IntEnum):
    """What has become of a record. The broker's numbers."""

    AVAILABLE = 0
    """Again, after a delivery."""
    ACQUIRED = 1
    SETTLED = 2
    DELAYED = 3
    """After a delivery."""
    PLEDGED = 4
    """Held by a transaction."""
    SCHEDULED = 5
    """For its first delivery."""


class StateRun(NamedTuple):
    """Consecutive records in one state."""

    first: int
    last: int
    state: RecordState
    deliveries: int
    due_ms: int | None
    """The wall time at which a lock or a delay ends."""


class QueueState(NamedTuple):
    """One partition in one group. Counts that a log does not keep are None."""

    start_offset: int
    """The first record that is not settled; -1 if the group has not begun with the partition."""
    lag: int
    """How many records are not settled; -1 the same."""
    waiting: int | None
    in_flight: int | None
    delayed: int | None
    scheduled: int | None
    expired: int | None
    """Deleted, or out of date, before they were settled."""
    exhausted: int | None
    """Settled because they were delivered as often as is allowed."""
    duplicate: int | None
    invalid: int | None
    """Delivered with headers that cannot be read."""


class Held(NamedTuple):
    """Records that were not settled, because a member or a transaction holds them."""

    first: int
    last: int


class Settled(NamedTuple):
    """What has become of the ranges of one partition."""

    records: int
    """How many offsets are settled that were not."""
    held: list[Held]


def queue_states(
    log: Log, group: str, topics: Iterable[str] | None = None
) -> dict[TopicPartition, QueueState]:
    """How many records of each partition are in which state; of all that the group has used, or of topics.

    Raises MachineError if the log does not answer, RequestError if it refuses.
    """
    answers = _Questions(log, group)
    try:
        parts = answers.describe(topics=None)
    finally:
        answers.close()
    wanted = None if topics is None else set(topics)
    return {
        (topic, part.partition_index): _queue_state(part)
        for topic, part in parts
        if wanted is None or topic in wanted
    }


def record_states(log: Log, group: str, topic: str, partition: int, first: int = 0) -> Iterator[StateRun]:
    """The runs of records from an offset on, but for those that wait and have never been delivered.

    They are asked for in pages while the caller takes them, so later ones may be newer. Raises UsageError if
    the log does not know them.
    """
    answers = _Questions(log, group)
    try:
        offset = first if (topic, partition) in answers.used() else UNKNOWN
        while offset != UNKNOWN:
            place = compose(
                "DescribeShareGroupOffsets",
                "groups.topics",
                topic_name=topic,
                partitions=[partition],
                states_from=[offset],
            )
            for _, part in answers.describe([place], STATES_MAX):
                yield from map(_state_run, part.states or ())
                offset = part.next_offset
    finally:
        answers.close()


def settle(
    log: Log,
    group: str,
    ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]],
    *,
    held_too: bool = False,
) -> dict[TopicPartition, Settled]:
    """Settles ranges of offsets, first and last one, whether or not the group has members.

    Records that members hold are left and named, unless ``held_too``; those that a transaction holds always.
    Raises UsageError if the log settles nothing, RequestError if it refuses.
    """
    answers = _Questions(log, group)
    try:
        for topic, number in ranges.keys() - answers.used():
            what = f"group {group!r} has used no such partition: {topic}-{number}"
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, what)
        return {place: answers.settle(place, parts, held_too) for place, parts in ranges.items()}
    finally:
        answers.close()


class _Questions:
    """Requests to the coordinator of one group."""

    def __init__(self, log: Log, group: str) -> None:
        self._log = log
        self._group = group
        self._routes = Routes(log)

    def close(self) -> None:
        self._routes.close()

    def describe(self, topics: list[Message] | None, states_max: int = 0) -> list[tuple[str, Message]]:
        """What is said of each partition, with the name of its topic."""
        group = compose(
            "DescribeShareGroupOffsets",
            "groups",
            group_id=self._group,
            topics=topics,
            states_max=states_max,
        )
        (answer,) = self._ask("DescribeShareGroupOffsets", groups=[group]).groups
        self._check(answer)
        parts = [(topic.topic_name, part) for topic in answer.topics for part in topic.partitions]
        for _, part in parts:
            self._check(part)
        return parts

    def used(self) -> set[TopicPartition]:
        """The partitions that the group has used. Raises UsageError on a log without these extensions."""
        parts = self.describe(topics=None)
        if any(part.in_flight == UNKNOWN for _, part in parts):
            what = f"log {self._log} says nothing of single records of group {self._group!r}"
            raise UsageError(what, expected="the embedded log", hint="Apache Kafka has no such request")
        return {(topic, part.partition_index) for topic, part in parts}

    def settle(self, place: TopicPartition, ranges: Sequence[tuple[int, int]], held_too: bool) -> Settled:
        count, held = 0, list[Held]()
        for begin in range(0, len(ranges), RANGES_MAX):
            (part,) = self._alter(place, ranges[begin : begin + RANGES_MAX], held_too)
            self._check(part)
            count += part.settled_records
            held += [Held(each.first_offset, each.last_offset) for each in part.held or ()]
        return Settled(count, held)

    def _alter(
        self, place: TopicPartition, ranges: Sequence[tuple[int, int]], held_too: bool
    ) -> list[Message]:
        api, path = "AlterShareGroupOffsets", "topics.partitions"
        part = compose(
            api,
            path,
            partition_index=place[1],
            start_offset=UNKNOWN,
            settled=[
                compose(api, f"{path}.settled", first_offset=first, last_offset=last)
                for first, last in ranges
            ],
            settles_held=held_too,
        )
        topic = compose(api, "topics", topic_name=place[0], partitions=[part])
        answer = self._ask(api, group_id=self._group, topics=[topic])
        self._check(answer)
        return [each for response in answer.responses for each in response.partitions]

    def _ask(self, api: str, **fields: object) -> Message:
        try:
            return self._routes.ask_coordinator(self._group, api, compose(api, **fields))
        except OSError as error:
            hint = "is the broker running?"
            raise MachineError(f"log {self._log} does not answer", got=str(error), hint=hint) from error

    def _check(self, answer: Message) -> None:
        if answer.error_code:
            raise refusal(answer.error_code, f"group {self._group!r}", answer.error_message)


def _queue_state(part: Message) -> QueueState:
    names = QueueState._fields[2:]
    counts = {name: None if getattr(part, name) == UNKNOWN else getattr(part, name) for name in names}
    return QueueState(part.start_offset, part.lag, **counts)


def _state_run(state: Message) -> StateRun:
    due_ms = None if state.due_ms == UNKNOWN else state.due_ms
    kind = RecordState(state.state)
    return StateRun(state.first_offset, state.last_offset, kind, state.delivery_count, due_ms)
