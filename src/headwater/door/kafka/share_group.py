"""ShareGroupHeartbeat, ShareGroupDescribe, and the offsets of share groups (KIP-932).

ShareGroupHeartbeat 1            a member joins, stays or leaves; its answer has its partitions
ShareGroupDescribe 1             members and their partitions
DescribeShareGroupOffsets 0-1    the first offset that is not settled, -1 if there is none; from 1 on how many
                                 records are left. Tagged fields of our own say how many of them members
                                 hold, how many are delayed, and how many were deleted unsettled
AlterShareGroupOffsets 0         not while the group has members
DeleteShareGroupOffsets 0        the same

This module translates; ``queue/share_group.py`` decides.
"""

from collections.abc import Callable
from functools import partial

from headwater.door.kafka.api import Answer, Request, serves
from headwater.door.kafka.group_offsets import answer_when_stored
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.log.shares.reading import readable_to
from headwater.log.storage.catalog import Topic
from headwater.log.storage.partition import LEADER_EPOCH
from headwater.protocol.kafka.codec import Message, layout
from headwater.queue.share_group import Heartbeat, ShareMember
from headwater.queue.share_session import Place

_heartbeat_response = layout("ShareGroupHeartbeat", "response")
_describe_response = layout("ShareGroupDescribe", "response")
_offsets_response = layout("DescribeShareGroupOffsets", "response")
_alter_response = layout("AlterShareGroupOffsets", "response")
_delete_response = layout("DeleteShareGroupOffsets", "response")

ASSIGNOR = "simple"
UNKNOWN = -1


@serves("ShareGroupHeartbeat", 1, 1)
def heartbeat(request: Request) -> Answer:
    body, broker = request.body, request.broker
    topics = None if body.subscribed_topic_names is None else tuple(body.subscribed_topic_names)
    beat = Heartbeat(
        body.member_id, body.member_epoch, request.client_id, request.client_host, body.rack_id, topics
    )
    try:
        if not body.group_id.strip():
            raise RequestError(ErrorCode.INVALID_REQUEST, "a share group has a name")
        broker.check_share_group(body.group_id)
        answer = broker.shares.heartbeat(body.group_id, beat)
    except RequestError as refused:
        return _heartbeat_response.struct()(error_code=refused.code, error_message=str(refused))
    assignment = None
    if answer.assignment is not None:
        entry = _heartbeat_response.struct("assignment.topic_partitions")
        assignment = _heartbeat_response.struct("assignment")(
            topic_partitions=[
                entry(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in answer.assignment.items()
            ]
        )
    return _heartbeat_response.struct()(
        member_id=body.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=broker.shares.config(body.group_id).heartbeat_interval_ms,
        assignment=assignment,
    )


@serves("ShareGroupDescribe", 1, 1)
def describe_groups(request: Request) -> Answer:
    return _describe_response.struct()(
        groups=[_describe(request.broker, group) for group in request.body.group_ids]
    )


def _describe(broker: Broker, name: str) -> Message:
    entry = _describe_response.struct("groups")
    if not broker.shares.has(name):
        what = f"Group {name} not found."
        return entry(group_id=name, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=what)
    group = broker.shares.groups.get(name)
    members = list(group.members.values()) if group else []
    return entry(
        group_id=name,
        group_state=share_group_state(broker, name),
        group_epoch=group.epoch if group else 0,
        assignment_epoch=group.epoch if group else 0,
        assignor_name=ASSIGNOR,
        members=[_member(broker, member) for member in members],
    )


def _member(broker: Broker, member: ShareMember) -> Message:
    partitions = _describe_response.struct("groups.members.assignment.topic_partitions")
    assigned = [
        partitions(topic_id=topic_id, topic_name=broker.catalog.by_id[topic_id].name, partitions=indexes)
        for topic_id, indexes in member.assignment.items()
        if topic_id in broker.catalog.by_id
    ]
    return _describe_response.struct("groups.members")(
        member_id=member.id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=_describe_response.struct("groups.members.assignment")(topic_partitions=assigned),
    )


def share_group_state(broker: Broker, name: str) -> str:
    """Kafka's name for the state of a share group."""
    return "Stable" if broker.shares.members(name) else "Empty"


# ---- offsets -------------------------------------------------------------------------------------------


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
        places: dict[str, list[int]] = {}
        for topic_id, index in sorted(broker.shares.opened(name)):
            topic = broker.catalog.by_id.get(topic_id)
            if topic is not None:
                places.setdefault(topic.name, []).append(index)
    else:
        places = {topic.topic_name: list(topic.partitions) for topic in wanted.topics}
    topic_entry = _offsets_response.struct("groups.topics")
    topics = []
    for topic_name, indexes in places.items():
        topic = broker.catalog.topics.get(topic_name)
        named = {"topic_id": topic.id} if topic else {}
        parts = [_describe_offset(broker, name, topic, index) for index in indexes]
        topics.append(topic_entry(topic_name=topic_name, partitions=parts, **named))
    return entry(group_id=name, topics=topics)


def _describe_offset(broker: Broker, group: str, topic: Topic | None, index: int) -> Message:
    entry = _offsets_response.struct("groups.topics.partitions")
    share = broker.shares.opened(group).get((topic.id, index)) if topic else None
    if share is None:
        return entry(partition_index=index, start_offset=UNKNOWN, leader_epoch=LEADER_EPOCH, lag=UNKNOWN)
    share.drop_deleted()
    end = readable_to(share.log, broker.shares.config(group))
    return entry(
        partition_index=index,
        start_offset=share.state.start,
        leader_epoch=LEADER_EPOCH,
        lag=max(end - share.state.start - share.state.settled, 0),
        in_flight=share.state.in_flight,
        delayed=share.state.delayed,
        expired=share.expired,
    )


@serves("AlterShareGroupOffsets", 0, 0)
def alter_offsets(request: Request) -> Answer:
    body, broker = request.body, request.broker
    response = _alter_response.struct()
    try:
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
            code, what = _refusal(partial(_move, broker, body.group_id, topic, part))
            parts.append(entry(partition_index=part.partition_index, error_code=code, error_message=what))
        named = {"topic_id": topic.id} if topic else {}
        topics.append(
            _alter_response.struct("responses")(topic_name=wanted.topic_name, partitions=parts, **named)
        )

    def fail(code: ErrorCode) -> None:
        for topic in topics:
            for part in topic.partitions:
                part.error_code = part.error_code or code

    return answer_when_stored(broker, response(responses=topics), fail, shared=True)


def _move(broker: Broker, group: str, topic: Topic | None, part: Message) -> None:
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not exist")
    partition = broker.catalog.partition(topic.name, part.partition_index)
    offset = min(max(part.start_offset, partition.log_start_offset), partition.high_watermark)
    place: Place = (topic.id, part.partition_index)
    broker.shares.move(group, {place: offset})


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
