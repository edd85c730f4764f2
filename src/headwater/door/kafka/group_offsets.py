"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of consumer groups.

OffsetCommit 2-10     from members of the current generation, or from any client while the group is empty; the
                      retention that the request asks for is ignored
OffsetFetch 1-10      from 8 on several groups at once; -1 where nothing was committed; with require_stable an
                      offset that an open transaction holds is UNSTABLE_OFFSET_COMMIT
OffsetDelete 0        not while a member of the group is subscribed to the topic; not at all while the group
                      has members that do not name their topics
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable

from headwater.door.kafka.api import Answer, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import Broker
from headwater.log.groups.group import CONSUMERS, Group, GroupState
from headwater.log.groups.group_record import Committed
from headwater.log.groups.offsets import METADATA_CHARACTERS_MAX
from headwater.protocol.kafka.codec import ZERO_UUID, Message, layout

__all__ = ["answer_when_stored", "collect_offset", "fail_all", "may_commit"]

_commit_response = layout("OffsetCommit", "response")
_fetch_response = layout("OffsetFetch", "response")
_delete_response = layout("OffsetDelete", "response")


@serves("OffsetCommit", 2, 10)
def offset_commit(request: Request) -> Answer:
    body, broker = request.body, request.broker
    refusal = may_commit(broker, body, body.generation_id_or_member_epoch)
    offsets: dict[tuple[str, int], Committed] = {}
    topics = []
    topic_entry, entry = _commit_response.struct("topics"), _commit_response.struct("topics.partitions")
    for topic in body.topics:
        name = topic.name if request.version < 10 else _name(broker, topic.topic_id)
        parts = [
            entry(
                partition_index=part.partition_index,
                error_code=refusal or collect_offset(broker, name, part, offsets),
            )
            for part in topic.partitions
        ]
        topics.append(topic_entry(name=topic.name, topic_id=topic.topic_id, partitions=parts))
    answer = _commit_response.struct()(topics=topics)
    if not offsets:
        return answer
    try:
        broker.offsets.commit(body.group_id, offsets)
    except RequestError as refused:
        fail_all(topics, refused.code)
        return answer
    return answer_when_stored(broker, answer, lambda code: fail_all(topics, code))


def may_commit(broker: Broker, body: Message, generation: int) -> ErrorCode:
    """Whether the sender of a commit may commit for its group now."""
    if broker.shares.has(body.group_id):
        return ErrorCode.GROUP_ID_NOT_FOUND
    group = broker.groups.get(body.group_id)
    if generation < 0 and (group is None or group.state is GroupState.EMPTY):
        return ErrorCode.NONE
    if group is None:
        has_offsets = bool(broker.offsets.of(body.group_id))
        return ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION
    try:
        group.check(body.member_id, body.group_instance_id, generation)
    except RequestError as refused:
        return refused.code
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING else ErrorCode.NONE


def collect_offset(
    broker: Broker, topic: str | None, part: Message, offsets: dict[tuple[str, int], Committed]
) -> ErrorCode:
    """Adds one partition's offset to those to be committed, or returns why it cannot be."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    try:
        broker.catalog.partition(topic, part.partition_index)
    except RequestError as refused:
        return refused.code
    metadata = part.committed_metadata or ""
    if len(metadata.encode("utf-16-le")) // 2 > METADATA_CHARACTERS_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    offsets[topic, part.partition_index] = Committed(
        part.committed_offset, part.committed_leader_epoch, metadata
    )
    return ErrorCode.NONE


def fail_all(topics: Iterable[Message], code: ErrorCode) -> None:
    """Answers every partition of a commit with the same error."""
    for topic in topics:
        for part in topic.partitions:
            part.error_code = code


def answer_when_stored(
    broker: Broker, answer: Message, fail: Callable[[ErrorCode], None], *, shared: bool = False
) -> asyncio.Future[Message]:
    """An answer that waits until the records of the groups are safe.

    ``fail`` changes it if their sync has failed; ``shared`` says that share groups are among them.
    """
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def finish(_: object) -> None:
        if broker.offsets.partition.offline or (shared and broker.shares.is_offline):
            fail(ErrorCode.KAFKA_STORAGE_ERROR)
        if not future.done():
            future.set_result(answer)

    broker.committed().add_done_callback(finish)
    return future


@serves("OffsetFetch", 1, 10)
def offset_fetch(request: Request) -> Answer:
    body, broker = request.body, request.broker
    if request.version < 8:
        entries = _fetch_response.struct("topics"), _fetch_response.struct("topics.partitions")
        return _fetch_response.struct()(
            topics=_offsets(broker, body.group_id, body.topics, *entries, stable=body.require_stable)
        )
    topic_entry = _fetch_response.struct("groups.topics")
    entry = _fetch_response.struct("groups.topics.partitions")
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
        groups.append(_fetch_response.struct("groups")(group_id=group.group_id, topics=topics))
    return _fetch_response.struct()(groups=groups)


def _unknown_topic(wanted: Message) -> Message:
    """The answer for an id that no topic has."""
    entry, code = _fetch_response.struct("groups.topics.partitions"), ErrorCode.UNKNOWN_TOPIC_ID
    parts = [
        entry(partition_index=index, committed_offset=-1, metadata="", error_code=code)
        for index in wanted.partition_indexes
    ]
    return _fetch_response.struct("groups.topics")(topic_id=wanted.topic_id, partitions=parts)


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
    topics = []
    for name, partitions in names.items():
        parts = []
        for index in partitions:
            is_unstable = (name, index) in unstable
            committed = nothing if is_unstable else stored.get((name, index), nothing)
            parts.append(
                entry(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
                )
            )
        topics.append(topic_entry(name=name, partitions=parts))
    return topics


@serves("OffsetDelete", 0, 0)
def offset_delete(request: Request) -> Answer:
    body, broker = request.body, request.broker
    group = broker.groups.get(body.group_id)
    if group is None and not broker.offsets.of(body.group_id):
        return _delete_response.struct()(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    if group is not None and group.members and group.protocol_type != CONSUMERS:
        return _delete_response.struct()(error_code=ErrorCode.NON_EMPTY_GROUP)
    entry = _delete_response.struct("topics.partitions")
    topics, deletable = [], []
    for topic in body.topics:
        parts = []
        for part in topic.partitions:
            code = _check_deletable(broker, group, topic.name, part.partition_index)
            parts.append(entry(partition_index=part.partition_index, error_code=code))
            if code is ErrorCode.NONE:
                deletable.append((topic.name, part.partition_index))
        topics.append(_delete_response.struct("topics")(name=topic.name, partitions=parts))
    answer = _delete_response.struct()(topics=topics)
    try:
        broker.offsets.delete(body.group_id, deletable)
    except RequestError as refused:
        fail_all(topics, refused.code)
        return answer
    return answer_when_stored(broker, answer, lambda code: fail_all(topics, code))


def _check_deletable(broker: Broker, group: Group | None, topic: str, index: int) -> ErrorCode:
    """Why an offset of a group cannot be deleted, or NONE."""
    try:
        broker.catalog.partition(topic, index)
    except RequestError as refused:
        return refused.code
    subscribed = group.subscribed() if group is not None else frozenset()
    if subscribed is None or topic in subscribed:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def _name(broker: Broker, topic_id: uuid.UUID) -> str | None:
    topic = broker.catalog.by_id.get(topic_id)
    return topic.name if topic else None


def _topic_id(broker: Broker, name: str) -> uuid.UUID:
    topic = broker.catalog.topics.get(name)
    return topic.id if topic else ZERO_UUID
