"""The offsets of share groups: what is left of a topic, and what administrators change (KIP-932).

DescribeShareGroupOffsets 0-1    the first offset that is not settled, -1 if there is none; from 1 on how many
                                 records are left
AlterShareGroupOffsets 0         not while the group has members
DeleteShareGroupOffsets 0        the same

Extensions, as tagged fields. DescribeShareGroupOffsets says how many records wait, are held, are delayed, and
so on; with ``states_max`` it lists the states of records too, but for those that are available and have
never been delivered: at most so many runs for each group, from ``states_from`` on, and ``next_offset`` says
where the next page begins. AlterShareGroupOffsets settles the ranges ``settled`` of a partition, also while
the group has members, if the start offset is -1. What members hold is left, and named in the answer, unless
``settles_held`` says otherwise; what transactions hold is always left.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import zip_longest

from headwater.door.kafka.api import Answer, Request, serves
from headwater.door.kafka.group_offsets import answer_when_stored
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.log.shares.administration import queue_counts, settle_ranges
from headwater.log.shares.open_share import OpenShare
from headwater.log.storage.catalog import Topic
from headwater.log.storage.partition import LEADER_EPOCH
from headwater.protocol.kafka.codec import Message, layout
from headwater.queue.record_states import StateRun, state_page
from headwater.queue.share_session import Place

_offsets_response = layout("DescribeShareGroupOffsets", "response")
_alter_response = layout("AlterShareGroupOffsets", "response")
_delete_response = layout("DeleteShareGroupOffsets", "response")

UNKNOWN = -1
UNCHANGED = -1
"""The start offset of a partition that is to be left where it is."""
STATES_MAX = 10_000
"""How many runs of states one answer has for a group."""


@serves("DescribeShareGroupOffsets", 0, 1)
def describe_offsets(request: Request) -> Answer:
    return _offsets_response.struct()(
        groups=[_describe_group_offsets(request.broker, group) for group in request.body.groups]
    )


def _describe_group_offsets(broker: Broker, wanted: Message) -> Message:
    """Of a group that does not exist all offsets are unknown, as in Kafka."""
    entry = _offsets_response.struct("groups")
    name = wanted.group_id
    if wanted.topics is None:
        places: dict[str, list[tuple[int, int]]] = {}
        for topic_id, index in sorted(broker.shares.opened(name)):
            topic = broker.catalog.by_id.get(topic_id)
            if topic is not None:
                places.setdefault(topic.name, []).append((index, 0))
    else:
        places = {
            topic.topic_name: list(zip_longest(topic.partitions, topic.states_from, fillvalue=0))
            for topic in wanted.topics
        }
    topic_entry = _offsets_response.struct("groups.topics")
    topics, states_left = [], min(wanted.states_max, STATES_MAX)
    for topic_name, indexes in places.items():
        topic = broker.catalog.topics.get(topic_name)
        named = {"topic_id": topic.id} if topic else {}
        parts = []
        for index, states_from in indexes:
            part, share = _describe_offset(broker, name, topic, index)
            if share is not None and wanted.states_max > 0:
                _describe_states(part, share, states_from, states_left, broker.shares.started_ms)
                states_left -= len(part.states)
            parts.append(part)
        topics.append(topic_entry(topic_name=topic_name, partitions=parts, **named))
    return entry(group_id=name, topics=topics)


def _describe_offset(
    broker: Broker, group: str, topic: Topic | None, index: int
) -> tuple[Message, OpenShare | None]:
    entry = _offsets_response.struct("groups.topics.partitions")
    share = broker.shares.opened(group).get((topic.id, index)) if topic else None
    if share is None:
        part = entry(partition_index=index, start_offset=UNKNOWN, leader_epoch=LEADER_EPOCH, lag=UNKNOWN)
        return part, None
    share.drop_deleted()
    counts = queue_counts(share, broker.shares.config(group))
    part = entry(
        partition_index=index,
        start_offset=share.state.needed_from,
        leader_epoch=LEADER_EPOCH,
        **counts._asdict(),
    )
    return part, share


def _describe_states(part: Message, share: OpenShare, offset: int, states_max: int, started_ms: int) -> None:
    entry = _offsets_response.struct("groups.topics.partitions.states")
    page = state_page(share.state, offset, states_max)
    part.states = [
        entry(
            first_offset=run.first,
            last_offset=run.last,
            state=run.state,
            delivery_count=run.deliveries,
            due_ms=_due_ms(run, started_ms),
        )
        for run in page.runs
    ]
    part.next_offset = UNKNOWN if page.next_offset is None else page.next_offset


def _due_ms(run: StateRun, started_ms: int) -> int:
    """The wall time at which a lock or a delay ends; -1 if that is not known, or over."""
    return started_ms + math.ceil(run.until * 1000) if 0 < run.until < math.inf else UNKNOWN


@serves("AlterShareGroupOffsets", 0, 0)
def alter_offsets(request: Request) -> Answer:
    body, broker = request.body, request.broker
    response = _alter_response.struct()
    parts_wanted = [part for topic in body.topics for part in topic.partitions]
    try:
        if not parts_wanted or not all(part.settled for part in parts_wanted):
            _check_alterable(broker, body.group_id)
        broker.check_share_group(body.group_id)
    except RequestError as refused:
        return response(error_code=refused.code, error_message=str(refused))
    entry = _alter_response.struct("responses.partitions")
    topics = []
    for wanted in body.topics:
        topic = broker.catalog.topics.get(wanted.topic_name)
        parts = []
        for part in wanted.partitions:
            result = entry(partition_index=part.partition_index)
            act = _settle if part.settled else _move
            attempt = partial(act, broker, body.group_id, topic, part, result)
            result.error_code, result.error_message = _refusal(attempt)
            parts.append(result)
        named = {"topic_id": topic.id} if topic else {}
        topics.append(
            _alter_response.struct("responses")(topic_name=wanted.topic_name, partitions=parts, **named)
        )

    def fail(code: ErrorCode) -> None:
        for topic in topics:
            for part in topic.partitions:
                part.error_code = part.error_code or code

    return answer_when_stored(broker, response(responses=topics), fail, shared=True)


def _move(broker: Broker, group: str, topic: Topic | None, part: Message, _: Message) -> None:
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not exist")
    partition = broker.catalog.partition(topic.name, part.partition_index)
    offset = min(max(part.start_offset, partition.log_start_offset), partition.high_watermark)
    place: Place = (topic.id, part.partition_index)
    broker.shares.move(group, {place: offset})


def _settle(broker: Broker, group: str, topic: Topic | None, part: Message, result: Message) -> None:
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not exist")
    if part.start_offset != UNCHANGED:
        what = f"ranges are settled with start offset {UNCHANGED}, got {part.start_offset}"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    place: Place = (topic.id, part.partition_index)
    ranges = [(settled.first_offset, settled.last_offset) for settled in part.settled]
    done = settle_ranges(broker.shares, group, place, ranges, held_too=part.settles_held)
    entry = _alter_response.struct("responses.partitions.held")
    result.settled_records = done.records
    result.held = [entry(first_offset=first, last_offset=last) for first, last in done.held]


@serves("DeleteShareGroupOffsets", 0, 0)
def delete_offsets(request: Request) -> Answer:
    body, broker = request.body, request.broker
    response = _delete_response.struct()
    try:
        if not broker.shares.has(body.group_id):
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {body.group_id} not found.")
        _check_alterable(broker, body.group_id)
    except RequestError as refused:
        return response(error_code=refused.code, error_message=str(refused))
    entry = _delete_response.struct("responses")
    topics = []
    for wanted in body.topics:
        topic = broker.catalog.topics.get(wanted.topic_name)
        code, what = _refusal(partial(_forget, broker, body.group_id, topic))
        named = {"topic_id": topic.id} if topic else {}
        topics.append(entry(topic_name=wanted.topic_name, error_code=code, error_message=what, **named))

    def fail(code: ErrorCode) -> None:
        for topic in topics:
            topic.error_code = topic.error_code or code

    return answer_when_stored(broker, response(responses=topics), fail, shared=True)


def _forget(broker: Broker, group: str, topic: Topic | None) -> None:
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not exist")
    broker.shares.forget(group, topic.id)


def _check_alterable(broker: Broker, group: str) -> None:
    if not group:
        raise RequestError(ErrorCode.INVALID_GROUP_ID, "a share group has a name")
    count = broker.shares.members(group)
    if count:
        raise RequestError(ErrorCode.NON_EMPTY_GROUP, f"group {group} has {count} members")


def _refusal(act: Callable[[], None]) -> tuple[ErrorCode, str | None]:
    """What was wrong with an act, if anything."""
    try:
        act()
    except RequestError as refused:
        return refused.code, str(refused)
    return ErrorCode.NONE, None
