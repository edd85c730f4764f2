"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, OffsetDelete, DescribeGroups, ListGroups, DeleteGroups.

JoinGroup 0-9         from 4 on a member is given its id first (KIP-394); 5 static members (KIP-345)
SyncGroup 0-5         the leader's assignments go to everybody
Heartbeat 0-4         REBALANCE_IN_PROGRESS asks the member to join again
LeaveGroup 0-5        from 3 on several members at once
OffsetCommit 2-10     by members of the current generation, or by anybody while the group is empty; retention is ignored
OffsetFetch 1-10      from 8 on several groups at once; -1 where nothing was committed; with require_stable an offset
                      that an open transaction holds is UNSTABLE_OFFSET_COMMIT
OffsetDelete 0        not while a member of the group is subscribed to the topic; members of other kinds are not asked for their topics
DeleteGroups 0-2      only groups without members
DescribeGroups 0-6    from 6 on an unknown group is an error; before that it is Dead
ListGroups 0-5        by state from 4 on, by type from 5 on

This module translates; ``log/group.py`` decides.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable

from headwater.errors import ErrorCode, Refused
from headwater.kafka.api import Answer, Request, serves
from headwater.kafka.codec import ZERO_UUID, Message, layout
from headwater.log.broker import Broker
from headwater.log.group import CONSUMERS, Group, Join, Joined, State, Synced
from headwater.log.group_record import Committed
from headwater.log.offsets import METADATA_CHARACTERS_MAX

_joined = layout("JoinGroup", "response")
_synced = layout("SyncGroup", "response")
_beaten = layout("Heartbeat", "response")
_left = layout("LeaveGroup", "response")
_committed = layout("OffsetCommit", "response")
_fetched = layout("OffsetFetch", "response")
_described = layout("DescribeGroups", "response")
_listed = layout("ListGroups", "response")
_deleted = layout("DeleteGroups", "response")
_offsets_deleted = layout("OffsetDelete", "response")

CLASSIC = "classic"
"""The one type of groups that is served."""
SESSION_MS_MIN, SESSION_MS_MAX = 500, 1_800_000


@serves("JoinGroup", 0, 9)
def join_group(request: Request) -> Answer:
    body, broker = request.body, request.broker
    done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def reply(joined: Joined) -> None:
        _resolve(done, _joined_message(joined, request.version))

    try:
        if not SESSION_MS_MIN <= body.session_timeout_ms <= SESSION_MS_MAX:
            what = (
                f"session time-out is {SESSION_MS_MIN} to {SESSION_MS_MAX} ms, got {body.session_timeout_ms}"
            )
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT, what)
        group = broker.group(body.group_id)
        group.join(_join(request), broker.clock.monotonic(), reply)
    except Refused as refused:
        return _joined_message(Joined(refused.code, body.member_id), request.version)
    broker.settle(group)
    return done


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


def _joined_message(joined: Joined, version: int) -> Message:
    entry = _joined.struct("members")
    members = [
        entry(member_id=i, group_instance_id=instance, metadata=data) for i, instance, data in joined.members
    ]
    return _joined.struct()(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol if version >= 7 else joined.protocol or "",
        leader=joined.leader,
        member_id=joined.member_id,
        members=members,
    )


@serves("SyncGroup", 0, 5)
def sync_group(request: Request) -> Answer:
    body, broker = request.body, request.broker
    done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def reply(synced: Synced) -> None:
        _resolve(
            done,
            _synced.struct()(
                error_code=synced.error,
                assignment=synced.assignment,
                protocol_type=synced.protocol_type,
                protocol_name=synced.protocol,
            ),
        )

    assignments = {a.member_id: a.assignment for a in body.assignments}
    try:
        group = _known(broker, body.group_id)
        now = broker.clock.monotonic()
        group.check(body.member_id, body.group_instance_id, body.generation_id)
        _check_protocol(group, body)
        group.sync(
            body.member_id, body.group_instance_id, body.generation_id, assignments, now=now, reply=reply
        )
    except Refused as refused:
        return _synced.struct()(error_code=refused.code)
    broker.settle(group)
    return done


def _check_protocol(group: Group, body: Message) -> None:
    """From 5 on a member says which protocol it takes the assignment for."""
    said = (body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol)
    if any(None not in pair and pair[0] != pair[1] for pair in said):
        raise Refused(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group uses {group.protocol_type}, {group.protocol}"
        )


@serves("Heartbeat", 0, 4)
def heartbeat(request: Request) -> Answer:
    body, broker = request.body, request.broker
    try:
        group = _known(broker, body.group_id)
        group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, broker.clock.monotonic())
    except Refused as refused:
        return _beaten.struct()(error_code=refused.code)
    return _beaten.struct()()


@serves("LeaveGroup", 0, 5)
def leave_group(request: Request) -> Answer:
    body = request.body
    if request.version < 3:
        return _left.struct()(error_code=_leave(request.broker, body.group_id, body.member_id, None))
    entry = _left.struct("members")
    members = [
        entry(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=_leave(request.broker, body.group_id, member.member_id, member.group_instance_id),
        )
        for member in body.members
    ]
    return _left.struct()(members=members)


def _leave(broker: Broker, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        group = _known(broker, group_id)
        group.leave(member_id, instance_id, broker.clock.monotonic())
    except Refused as refused:
        return refused.code
    broker.settle(group)
    return ErrorCode.NONE


@serves("OffsetCommit", 2, 10)
def offset_commit(request: Request) -> Answer:
    body, broker = request.body, request.broker
    refusal = may_commit(broker, body, body.generation_id_or_member_epoch)
    offsets: dict[tuple[str, int], Committed] = {}
    topics = []
    entry = _committed.struct("topics.partitions")
    for topic in body.topics:
        name = topic.name if request.version < 10 else _name(broker, topic.topic_id)
        parts = [
            entry(
                partition_index=part.partition_index,
                error_code=refusal or note_offset(broker, name, part, offsets),
            )
            for part in topic.partitions
        ]
        topics.append(_committed.struct("topics")(name=topic.name, topic_id=topic.topic_id, partitions=parts))
    answer = _committed.struct()(topics=topics)
    if not offsets:
        return answer
    try:
        broker.offsets.commit(body.group_id, offsets)
    except Refused as refused:
        fail_all(topics, refused.code)
        return answer
    return after(broker, answer, lambda code: fail_all(topics, code))


def may_commit(broker: Broker, body: Message, generation: int) -> ErrorCode:
    """Whether the sender of a commit speaks for its group."""
    group = broker.groups.get(body.group_id)
    if generation < 0 and (group is None or group.state is State.EMPTY):
        return ErrorCode.NONE
    if group is None:
        known = broker.offsets.of(body.group_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if known else ErrorCode.ILLEGAL_GENERATION
    try:
        group.check(body.member_id, body.group_instance_id, generation)
    except Refused as refused:
        return refused.code
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.COMPLETING else ErrorCode.NONE


def note_offset(
    broker: Broker, topic: str | None, part: Message, offsets: dict[tuple[str, int], Committed]
) -> ErrorCode:
    """Adds one partition's offset to those to be committed, if it can be."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    try:
        broker.catalog.partition(topic, part.partition_index)
    except Refused as refused:
        return refused.code
    metadata = part.committed_metadata or ""
    if len(metadata.encode("utf-16-le")) // 2 > METADATA_CHARACTERS_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    offsets[topic, part.partition_index] = Committed(
        part.committed_offset, part.committed_leader_epoch, metadata
    )
    return ErrorCode.NONE


def fail_all(topics: Iterable[Message], code: ErrorCode) -> None:
    """Answers every partition of a commit with one error."""
    for topic in topics:
        for part in topic.partitions:
            part.error_code = code


@serves("OffsetFetch", 1, 10)
def offset_fetch(request: Request) -> Answer:
    body, broker = request.body, request.broker
    if request.version < 8:
        entries = _fetched.struct("topics"), _fetched.struct("topics.partitions")
        return _fetched.struct()(
            topics=_offsets(broker, body.group_id, body.topics, *entries, stable=body.require_stable)
        )
    topic_entry, entry = _fetched.struct("groups.topics"), _fetched.struct("groups.topics.partitions")
    groups = []
    for group in body.groups:
        wanted = group.topics
        unknown = []
        if request.version >= 10 and wanted is not None:
            for topic in wanted:
                topic.name = _name(broker, topic.topic_id)
            unknown = [_unknown_topic(topic) for topic in wanted if topic.name is None]
            wanted = [topic for topic in wanted if topic.name is not None]
        topics = _offsets(broker, group.group_id, wanted, topic_entry, entry, stable=body.require_stable)
        if request.version >= 10:
            for topic in topics:
                topic.topic_id = _topic_id(broker, topic.name)
            topics += unknown
        groups.append(_fetched.struct("groups")(group_id=group.group_id, topics=topics))
    return _fetched.struct()(groups=groups)


def _unknown_topic(wanted: Message) -> Message:
    """What is said of offsets by an id that no topic has."""
    entry, code = _fetched.struct("groups.topics.partitions"), ErrorCode.UNKNOWN_TOPIC_ID
    parts = [
        entry(partition_index=index, committed_offset=-1, metadata="", error_code=code)
        for index in wanted.partition_indexes
    ]
    return _fetched.struct("groups.topics")(topic_id=wanted.topic_id, partitions=parts)


def _offsets(
    broker: Broker,
    group_id: str,
    wanted: list[Message] | None,
    topic_entry: type[Message],
    entry: type[Message],
    *,
    stable: bool,
) -> list[Message]:
    stored = broker.offsets.of(group_id)
    unstable = broker.offsets.pending(group_id) if stable else set()
    if wanted is None:
        names: dict[str, list[int]] = {}
        for topic, partition in stored:
            names.setdefault(topic, []).append(partition)
    else:
        names = {topic.name: topic.partition_indexes for topic in wanted}
    nothing = Committed(-1)
    answers = []
    for name, partitions in names.items():
        parts = []
        for index in partitions:
            is_unstable = (name, index) in unstable
            found = nothing if is_unstable else stored.get((name, index), nothing)
            parts.append(
                entry(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
                )
            )
        answers.append(topic_entry(name=name, partitions=parts))
    return answers


@serves("DescribeGroups", 0, 6)
def describe_groups(request: Request) -> Answer:
    return _described.struct()(
        groups=[_describe(request.broker, group_id, request.version) for group_id in request.body.groups]
    )


def _describe(broker: Broker, group_id: str, version: int) -> Message:
    entry = _described.struct("groups")
    group = broker.groups.get(group_id)
    if group is None:
        if broker.offsets.of(group_id):
            return entry(group_id=group_id, group_state=State.EMPTY.value)
        dead = entry(group_id=group_id, group_state=State.DEAD.value)
        if version >= 6:
            dead.error_code, dead.error_message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
        return dead
    member_entry = _described.struct("groups.members")
    stable = (
        group.state is State.STABLE
    )  # between two generations nothing is said of protocol and assignments
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
    entry = _listed.struct("groups")
    names = dict.fromkeys([*broker.groups, *broker.offsets.groups()])
    found = []
    for name in names:
        group = broker.groups.get(name)
        state = group.state.value if group else State.EMPTY.value
        protocol_type = (group.protocol_type if group else None) or ""
        found.append(entry(group_id=name, protocol_type=protocol_type, group_state=state, group_type=CLASSIC))
    states = {state.lower() for state in request.body.states_filter}
    kinds = {kind.lower() for kind in request.body.types_filter}
    if kinds and CLASSIC not in kinds:
        found = []
    return _listed.struct()(groups=[g for g in found if not states or g.group_state.lower() in states])


@serves("DeleteGroups", 0, 2)
def delete_groups(request: Request) -> Answer:
    entry = _deleted.struct("results")
    results = [
        entry(group_id=name, error_code=_delete(request.broker, name)) for name in request.body.groups_names
    ]

    def fail(code: ErrorCode) -> None:
        for result in results:
            result.error_code = result.error_code or code

    return after(request.broker, _deleted.struct()(results=results), fail)


def _delete(broker: Broker, group_id: str) -> ErrorCode:
    group = broker.groups.get(group_id)
    if group is None and not broker.offsets.of(group_id):
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group is not None and group.members:
        return ErrorCode.NON_EMPTY_GROUP
    try:
        broker.offsets.delete(group_id)
    except Refused as refused:
        return refused.code
    broker.groups.pop(group_id, None)
    return ErrorCode.NONE


@serves("OffsetDelete", 0, 0)
def offset_delete(request: Request) -> Answer:
    body, broker = request.body, request.broker
    group = broker.groups.get(body.group_id)
    if group is None and not broker.offsets.of(body.group_id):
        return _offsets_deleted.struct()(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    if group is not None and group.members and group.protocol_type != CONSUMERS:
        return _offsets_deleted.struct()(error_code=ErrorCode.NON_EMPTY_GROUP)
    entry = _offsets_deleted.struct("topics.partitions")
    topics, doomed = [], []
    for topic in body.topics:
        parts = []
        for part in topic.partitions:
            code = _offset_kept(broker, group, topic.name, part.partition_index)
            parts.append(entry(partition_index=part.partition_index, error_code=code))
            if code is ErrorCode.NONE:
                doomed.append((topic.name, part.partition_index))
        topics.append(_offsets_deleted.struct("topics")(name=topic.name, partitions=parts))
    answer = _offsets_deleted.struct()(topics=topics)
    try:
        broker.offsets.delete(body.group_id, doomed)
    except Refused as refused:
        fail_all(topics, refused.code)
        return answer
    return after(broker, answer, lambda code: fail_all(topics, code))


def _offset_kept(broker: Broker, group: Group | None, topic: str, index: int) -> ErrorCode:
    """Why an offset of a group cannot be deleted."""
    try:
        broker.catalog.partition(topic, index)
    except Refused as refused:
        return refused.code
    subscribed = group.subscribed() if group is not None else frozenset()
    if subscribed is None or topic in subscribed:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def _known(broker: Broker, group_id: str) -> Group:
    """A group that somebody has joined; asking for another is UNKNOWN_MEMBER_ID, since nobody is a member of it."""
    group = broker.groups.get(group_id)
    if group is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID)
    return group


def _name(broker: Broker, topic_id: uuid.UUID) -> str | None:
    topic = broker.catalog.by_id.get(topic_id)
    return topic.name if topic else None


def _topic_id(broker: Broker, name: str) -> uuid.UUID:
    topic = broker.catalog.topics.get(name)
    return topic.id if topic else ZERO_UUID


def _resolve(done: asyncio.Future[Message], answer: Message) -> None:
    if not done.done():
        done.set_result(answer)


def after(broker: Broker, answer: Message, fail: Callable[[ErrorCode], None]) -> asyncio.Future[Message]:
    """An answer that waits until the groups' records are safe; ``fail`` turns it into a refusal when their sync has failed."""
    done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def finish(_: object) -> None:
        if broker.offsets.partition.offline:
            fail(ErrorCode.KAFKA_STORAGE_ERROR)
        _resolve(done, answer)

    broker.committed().add_done_callback(finish)
    return done
