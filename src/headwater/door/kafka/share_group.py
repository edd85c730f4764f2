"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932).

ShareGroupHeartbeat 1            a member joins, stays or leaves; its answer has its partitions
ShareGroupDescribe 1             members and their partitions

This module translates; ``queue/share_group.py`` decides.
"""

from headwater.door.kafka.api import Answer, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.protocol.kafka.codec import Message, layout
from headwater.queue.share_group import Heartbeat, ShareMember

_heartbeat_response = layout("ShareGroupHeartbeat", "response")
_describe_response = layout("ShareGroupDescribe", "response")

ASSIGNOR = "simple"


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
