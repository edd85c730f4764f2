"""Metadata, CreateTopics, DeleteTopics, FindCoordinator.

Metadata 0-13         topics by name or id, all of them with null (version 0: with none); creates topics if
                      asked to
CreateTopics 2-7      replication factor 1 or -1; manual assignments only set the number of partitions; -1
                      partitions takes the default
DeleteTopics 1-6      by name or id
FindCoordinator 0-6   this broker is every coordinator; from 6 on keys of share partitions are checked
"""

import asyncio
import re
from collections import Counter

from headwater.door.kafka.api import Answer, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import NODE_ID, Broker
from headwater.log.storage.catalog import Topic, check_name
from headwater.log.storage.partition import LEADER_EPOCH
from headwater.protocol.kafka.codec import ZERO_UUID, Message, layout

_metadata_response = layout("Metadata", "response")
_create_response = layout("CreateTopics", "response")
_delete_response = layout("DeleteTopics", "response")
_coordinator_response = layout("FindCoordinator", "response")


SHARE = 2
"""The type of keys that name share partitions; groups have 0 and transactional ids 1."""
SHARE_KEY = re.compile(r".+:[A-Za-z0-9_-]{22}:\d+")


@serves("Metadata", 0, 13)
def metadata(request: Request) -> Answer:
    body, broker = request.body, request.broker
    everything = body.topics is None or (request.version == 0 and not body.topics)
    create = request.version < 4 or body.allow_auto_topic_creation
    if everything:
        topics = [_describe(topic) for topic in broker.catalog.topics.values()]
    else:
        topics = [_look_up(broker, wanted, create=create) for wanted in body.topics]
    host, port = request.address
    node = _metadata_response.struct("brokers")(node_id=NODE_ID, host=host, port=port)
    return _metadata_response.struct()(
        brokers=[node], cluster_id=broker.cluster_id, controller_id=NODE_ID, topics=topics
    )


def _look_up(broker: Broker, wanted: Message, *, create: bool) -> Message:
    try:
        if wanted.name is None:
            return _describe(_by_id(broker, wanted))
        check_name(wanted.name)
        return _describe(broker.topic(wanted.name, create=create))
    except RequestError as refused:
        return _metadata_response.struct("topics")(
            error_code=refused.code, name=wanted.name, topic_id=wanted.topic_id
        )


def _by_id(broker: Broker, wanted: Message) -> Topic:
    topic = broker.catalog.by_id.get(wanted.topic_id)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


def _describe(topic: Topic) -> Message:
    entry = _metadata_response.struct("topics.partitions")
    offline = topic.partitions.offline()
    partitions = [
        entry(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR if index in offline else ErrorCode.NONE,
            partition_index=index,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=[NODE_ID],
            isr_nodes=[NODE_ID],
        )
        for index in range(len(topic.partitions))
    ]
    return _metadata_response.struct("topics")(
        name=topic.name, topic_id=topic.id, is_internal=topic.internal, partitions=partitions
    )


@serves("CreateTopics", 2, 7)
def create_topics(request: Request) -> Answer:
    counts = Counter(wanted.name for wanted in request.body.topics)
    topics = [
        _create(request.broker, wanted, dry_run=request.body.validate_only)
        for wanted in request.body.topics
        if counts[wanted.name] == 1
    ]
    entry = _create_response.struct("topics")
    topics += [
        entry(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    ]
    return _create_response.struct()(topics=topics)


def _create(broker: Broker, wanted: Message, *, dry_run: bool) -> Message:
    entry = _create_response.struct("topics")
    try:
        if wanted.replication_factor not in {-1, 1}:
            what = f"replication factor {wanted.replication_factor} is larger than the number of brokers, 1"
            raise RequestError(ErrorCode.INVALID_REPLICATION_FACTOR, what)
        count = len(wanted.assignments) or (
            broker.partitions if wanted.num_partitions == -1 else wanted.num_partitions
        )
        config = {setting.name: setting.value for setting in wanted.configs}
        empty = [name for name, value in config.items() if value is None]
        if empty:
            raise RequestError(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {empty[0]}"
            )
        topic = broker.create_topic(wanted.name, count, config, dry_run=dry_run)
    except RequestError as refused:
        return entry(name=wanted.name, error_code=refused.code, error_message=str(refused))
    return entry(
        name=topic.name,
        topic_id=ZERO_UUID if dry_run else topic.id,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=[],
    )


@serves("DeleteTopics", 1, 6)
def delete_topics(request: Request) -> Answer:
    body = request.body
    wanted = body.topics if request.version >= 6 else [_Name(name) for name in body.topic_names]
    return asyncio.ensure_future(_delete_all(request.broker, wanted))


async def _delete_all(broker: Broker, wanted: list[Message]) -> Message:
    counts = Counter((topic.name, topic.topic_id) for topic in wanted)
    responses = [await _delete(broker, topic) for topic in wanted if counts[topic.name, topic.topic_id] == 1]
    entry, code = _delete_response.struct("responses"), ErrorCode.INVALID_REQUEST
    responses += [
        entry(name=name, topic_id=topic_id, error_code=code, error_message="Duplicate topic name.")
        for (name, topic_id), count in counts.items()
        if count > 1
    ]
    return _delete_response.struct()(responses=responses)


class _Name(Message):
    """A topic by name only, as in old versions."""

    __slots__ = ("name", "topic_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_id = ZERO_UUID


async def _delete(broker: Broker, wanted: Message) -> Message:
    entry = _delete_response.struct("responses")
    try:
        topic = broker.topic(wanted.name, create=False) if wanted.name is not None else _by_id(broker, wanted)
        await broker.delete_topic(topic)
    except RequestError as refused:
        return entry(
            name=wanted.name, topic_id=wanted.topic_id, error_code=refused.code, error_message=str(refused)
        )
    return entry(name=topic.name, topic_id=topic.id)


@serves("FindCoordinator", 0, 6)
def find_coordinator(request: Request) -> Answer:
    host, port = request.address
    if request.version < 4:
        return _coordinator_response.struct()(node_id=NODE_ID, host=host, port=port, error_message=None)
    entry = _coordinator_response.struct("coordinators")
    coordinators = []
    for key in request.body.coordinator_keys:
        if request.body.key_type == SHARE and not SHARE_KEY.fullmatch(key):
            what = f"the key of a share partition is {key!r}, expected group:topicId:partition"
            code = ErrorCode.INVALID_REQUEST
            coordinators.append(entry(key=key, error_code=code, error_message=what, node_id=-1, port=-1))
        else:
            coordinators.append(entry(key=key, node_id=NODE_ID, host=host, port=port, error_message=None))
    return _coordinator_response.struct()(coordinators=coordinators)
