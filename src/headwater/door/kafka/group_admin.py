"""DescribeGroups, ListGroups, DeleteGroups: groups as tools see them.

DescribeGroups 0-6    from 6 on an unknown group is an error; before that its state is Dead
ListGroups 0-5        by state from 4 on, by type from 5 on; before that share groups are left out
DeleteGroups 0-2      only groups without members, share groups too
"""

from headwater.door.kafka.api import Answer, Request, serves
from headwater.door.kafka.group_offsets import answer_when_stored
from headwater.door.kafka.share_group import share_group_state
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.log.groups.group import GroupState
from headwater.protocol.kafka.codec import Message, layout

_describe_response = layout("DescribeGroups", "response")
_list_response = layout("ListGroups", "response")
_delete_response = layout("DeleteGroups", "response")

CLASSIC, SHARE = "classic", "share"
"""The types of groups that are served. Clients before version 5 know only the first."""
SINCE_TYPES = 5


@serves("DescribeGroups", 0, 6)
def describe_groups(request: Request) -> Answer:
    return _describe_response.struct()(
        groups=[_describe(request.broker, group_id, request.version) for group_id in request.body.groups]
    )


def _describe(broker: Broker, group_id: str, version: int) -> Message:
    entry = _describe_response.struct("groups")
    group = broker.groups.get(group_id)
    if group is None:
        if broker.offsets.of(group_id):
            return entry(group_id=group_id, group_state=GroupState.EMPTY.value)
        dead = entry(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= 6:
            dead.error_code, dead.error_message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
        return dead
    member_entry = _describe_response.struct("groups.members")
    # Between two generations protocol and assignments are not settled, and left out.
    stable = group.state is GroupState.STABLE
    members = [
        member_entry(
            member_id=m.id,
            group_instance_id=m.join.instance_id,
            client_id=m.join.client_id,
            client_host=m.join.client_host,
            member_metadata=m.metadata(group.protocol or "") if stable else b"",
            member_assignment=m.assignment if stable else b"",
        )
        for m in group.members.values()
    ]
    return entry(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(stable and group.protocol) or "",
        members=members,
    )


@serves("ListGroups", 0, 5)
def list_groups(request: Request) -> Answer:
    broker = request.broker
    entry = _list_response.struct("groups")
    names = dict.fromkeys([*broker.groups, *broker.offsets.groups()])
    groups = []
    for name in names:
        group = broker.groups.get(name)
        state = group.state.value if group else GroupState.EMPTY.value
        protocol_type = (group.protocol_type if group else None) or ""
        groups.append(
            entry(group_id=name, protocol_type=protocol_type, group_state=state, group_type=CLASSIC)
        )
    if request.version >= SINCE_TYPES:
        groups += [
            entry(
                group_id=name,
                protocol_type=SHARE,
                group_state=share_group_state(broker, name),
                group_type=SHARE,
            )
            for name in broker.shares.names()
        ]
    states = {state.lower() for state in request.body.states_filter}
    types = {kind.lower() for kind in request.body.types_filter}
    chosen = [group for group in groups if not types or group.group_type in types]
    return _list_response.struct()(
        groups=[group for group in chosen if not states or group.group_state.lower() in states]
    )


@serves("DeleteGroups", 0, 2)
def delete_groups(request: Request) -> Answer:
    entry = _delete_response.struct("results")
    results = [
        entry(group_id=name, error_code=_delete(request.broker, name)) for name in request.body.groups_names
    ]

    def fail(code: ErrorCode) -> None:
        for result in results:
            result.error_code = result.error_code or code

    response = _delete_response.struct()(results=results)
    return answer_when_stored(request.broker, response, fail, shared=True)


def _delete(broker: Broker, group_id: str) -> ErrorCode:
    if broker.shares.has(group_id):
        return _delete_share_group(broker, group_id)
    group = broker.groups.get(group_id)
    if group is None and not broker.offsets.of(group_id):
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group is not None and group.members:
        return ErrorCode.NON_EMPTY_GROUP
    try:
        broker.offsets.delete(group_id)
    except RequestError as refused:
        return refused.code
    broker.groups.pop(group_id, None)
    return ErrorCode.NONE


def _delete_share_group(broker: Broker, group_id: str) -> ErrorCode:
    if broker.shares.members(group_id):
        return ErrorCode.NON_EMPTY_GROUP
    try:
        broker.shares.forget(group_id)
    except RequestError as refused:
        return refused.code
    return ErrorCode.NONE
