"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the members of consumer groups.

JoinGroup 0-9         from 4 on a member first gets its id (KIP-394); from 5 on static members (KIP-345)
SyncGroup 0-5         each member gets its assignment, which the leader sends
Heartbeat 0-4         REBALANCE_IN_PROGRESS asks the member to join again
LeaveGroup 0-5        from 3 on several members at once

This module translates; ``log/groups/group.py`` decides.
"""

import asyncio

from headwater.door.kafka.api import Answer, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.log.groups.group import Group
from headwater.log.groups.member import Join, JoinAnswer, SyncAnswer
from headwater.protocol.kafka.codec import Message, layout

_join_response = layout("JoinGroup", "response")
_sync_response = layout("SyncGroup", "response")
_heartbeat_response = layout("Heartbeat", "response")
_leave_response = layout("LeaveGroup", "response")

SESSION_MS_MIN, SESSION_MS_MAX = 500, 1_800_000


@serves("JoinGroup", 0, 9)
def join_group(request: Request) -> Answer:
    body, broker = request.body, request.broker
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def reply(answer: JoinAnswer) -> None:
        _resolve(future, _join_message(answer, request.version))

    try:
        if not SESSION_MS_MIN <= body.session_timeout_ms <= SESSION_MS_MAX:
            allowed = f"{SESSION_MS_MIN} to {SESSION_MS_MAX}"
            what = f"session time-out is {body.session_timeout_ms} ms, expected {allowed}"
            raise RequestError(ErrorCode.INVALID_SESSION_TIMEOUT, what)
        group = broker.group(body.group_id)
        group.join(_join(request), broker.clock.monotonic(), reply)
    except RequestError as refused:
        return _join_message(JoinAnswer(refused.code, body.member_id), request.version)
    broker.settle(group)
    return future


def _join(request: Request) -> Join:
    body = request.body
    rebalance_ms = body.rebalance_timeout_ms if body.rebalance_timeout_ms > 0 else body.session_timeout_ms
    return Join(
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout=body.session_timeout_ms / 1000,
        rebalance_timeout=rebalance_ms / 1000,
        protocol_type=body.protocol_type,
        protocols=tuple((p.name, p.metadata) for p in body.protocols),
        id_required=request.version >= 4,
    )


def _join_message(answer: JoinAnswer, version: int) -> Message:
    entry = _join_response.struct("members")
    members = [
        entry(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
        for member_id, instance_id, metadata in answer.members
    ]
    return _join_response.struct()(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol if version >= 7 else answer.protocol or "",
        leader=answer.leader,
        member_id=answer.member_id,
        members=members,
    )


@serves("SyncGroup", 0, 5)
def sync_group(request: Request) -> Answer:
    body, broker = request.body, request.broker
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def reply(answer: SyncAnswer) -> None:
        message = _sync_response.struct()(
            error_code=answer.error,
            assignment=answer.assignment,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
        )
        _resolve(future, message)

    assignments = {a.member_id: a.assignment for a in body.assignments}
    try:
        group = _existing(broker, body.group_id)
        now = broker.clock.monotonic()
        group.check(body.member_id, body.group_instance_id, body.generation_id)
        _check_protocol(group, body)
        group.sync(
            body.member_id, body.group_instance_id, body.generation_id, assignments, now=now, reply=reply
        )
    except RequestError as refused:
        return _sync_response.struct()(error_code=refused.code)
    broker.settle(group)
    return future


def _check_protocol(group: Group, body: Message) -> None:
    """From version 5 on a member names the protocol of the assignment that it expects."""
    pairs = (body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol)
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        raise RequestError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group uses {group.protocol_type}, {group.protocol}"
        )


@serves("Heartbeat", 0, 4)
def heartbeat(request: Request) -> Answer:
    body, broker = request.body, request.broker
    try:
        group = _existing(broker, body.group_id)
        group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, broker.clock.monotonic())
    except RequestError as refused:
        return _heartbeat_response.struct()(error_code=refused.code)
    return _heartbeat_response.struct()()


@serves("LeaveGroup", 0, 5)
def leave_group(request: Request) -> Answer:
    body = request.body
    if request.version < 3:
        return _leave_response.struct()(
            error_code=_leave(request.broker, body.group_id, body.member_id, None)
        )
    entry = _leave_response.struct("members")
    members = [
        entry(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=_leave(request.broker, body.group_id, member.member_id, member.group_instance_id),
        )
        for member in body.members
    ]
    return _leave_response.struct()(members=members)


def _leave(broker: Broker, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        group = _existing(broker, group_id)
        group.leave(member_id, instance_id, broker.clock.monotonic())
    except RequestError as refused:
        return refused.code
    broker.settle(group)
    return ErrorCode.NONE


def _existing(broker: Broker, group_id: str) -> Group:
    """A group that was joined before.

    For any other one the answer is UNKNOWN_MEMBER_ID, because it has no members.
    """
    group = broker.groups.get(group_id)
    if group is None:
        raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID)
    return group


def _resolve(future: asyncio.Future[Message], message: Message) -> None:
    if not future.done():
        future.set_result(message)
