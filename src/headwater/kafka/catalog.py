"""ApiVersions, Metadata, CreateTopics, DeleteTopics, FindCoordinator.

ApiVersions 0-4       an unknown version is answered in version 0 with UNSUPPORTED_VERSION, as Kafka does (KIP-511)
Metadata 0-13         topics by name or id, all of them with null (version 0: with none); creates topics if the client lets it
CreateTopics 2-7      replication factor 1 or -1; manual assignments are counted, not obeyed; -1 partitions takes the default
DeleteTopics 1-6      by name or id
FindCoordinator 0-6   this broker is every coordinator
"""

import asyncio
from collections import Counter

from headwater.errors import ErrorCode, Refused
from headwater.kafka.api import HANDLERS, Answer, Request, serves
from headwater.kafka.codec import ZERO_UUID, Message, layout
from headwater.log.broker import NODE_ID, Broker
from headwater.log.partition import LEADER_EPOCH
from headwater.log.topic import Topic, check_name

__all__ = ["unsupported_version"]

OLDEST_PRODUCE = 0
"""Older librdkafka clients see no compression unless Produce is said to begin at 0; Kafka does the same."""

_versions = layout("ApiVersions", "response")
_metadata = layout("Metadata", "response")
_created = layout("CreateTopics", "response")
_deleted = layout("DeleteTopics", "response")
_coordinators = layout("FindCoordinator", "response")


@serves("ApiVersions", 0, 4)
def api_versions(_: Request) -> Answer:
    return _supported(ErrorCode.NONE)


def unsupported_version() -> Message:
    """The answer to an ApiVersions request from the future."""
    return _supported(ErrorCode.UNSUPPORTED_VERSION)


def _supported(error: ErrorCode) -> Message:
    entry = _versions.struct("api_keys")
    keys = [
        entry(api_key=h.key, min_version=OLDEST_PRODUCE if h.key == 0 else h.first, max_version=h.last)
        for h in sorted(HANDLERS.values(), key=lambda h: h.key)
    ]
    return _versions.struct()(error_code=error, api_keys=keys)


@serves("Metadata", 0, 13)
def metadata(request: Request) -> Answer:
    body, broker = request.body, request.broker
    everything = body.topics is None or (request.version == 0 and not body.topics)
    create = request.version < 4 or body.allow_auto_topic_creation
    if everything:
        topics = [_described(topic) for topic in broker.catalog.topics.values()]
    else:
        topics = [_wanted(broker, wanted, create=create) for wanted in body.topics]
    host, port = request.address
    node = _metadata.struct("brokers")(node_id=NODE_ID, host=host, port=port)
    return _metadata.struct()(
        brokers=[node], cluster_id=broker.cluster_id, controller_id=NODE_ID, topics=topics
    )


def _wanted(broker: Broker, wanted: Message, *, create: bool) -> Message:
    try:
        if wanted.name is None:
            return _described(_by_id(broker, wanted))
        check_name(wanted.name)
        return _described(broker.topic(wanted.name, create=create))
    except Refused as refused:
        return _metadata.struct("topics")(error_code=refused.code, name=wanted.name, topic_id=wanted.topic_id)


def _by_id(broker: Broker, wanted: Message) -> Topic:
    topic = broker.catalog.by_id.get(wanted.topic_id)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


def _described(topic: Topic) -> Message:
    entry = _metadata.struct("topics.partitions")
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
    return _metadata.struct("topics")(
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
    entry = _created.struct("topics")
    topics += [
        entry(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    ]
    return _created.struct()(topics=topics)


def _create(broker: Broker, wanted: Message, *, dry_run: bool) -> Message:
    entry = _created.struct("topics")
    try:
        if wanted.replication_factor not in {-1, 1}:
            what = f"replication factor {wanted.replication_factor} is larger than the number of brokers, 1"
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)
        count = len(wanted.assignments) or (
            broker.partitions if wanted.num_partitions == -1 else wanted.num_partitions
        )
        config = {setting.name: setting.value for setting in wanted.configs}
        empty = [name for name, value in config.items() if value is None]
        if empty:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {empty[0]}")
        topic = broker.catalog.create(wanted.name, count, config, dry_run=dry_run)
    except Refused as refused:
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
    counts = Counter((each.name, each.topic_id) for each in wanted)
    responses = [await _delete(broker, each) for each in wanted if counts[each.name, each.topic_id] == 1]
    entry, code = _deleted.struct("responses"), ErrorCode.INVALID_REQUEST
    responses += [
        entry(name=name, topic_id=topic_id, error_code=code, error_message="Duplicate topic name.")
        for (name, topic_id), count in counts.items()
        if count > 1
    ]
    return _deleted.struct()(responses=responses)


class _Name(Message):
    """A topic by name alone, as old versions ask for it."""

    __slots__ = ("name", "topic_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_id = ZERO_UUID


async def _delete(broker: Broker, wanted: Message) -> Message:
    entry = _deleted.struct("responses")
    try:
        topic = broker.topic(wanted.name, create=False) if wanted.name is not None else _by_id(broker, wanted)
        await broker.delete_topic(topic)
    except Refused as refused:
        return entry(
            name=wanted.name, topic_id=wanted.topic_id, error_code=refused.code, error_message=str(refused)
        )
    return entry(name=topic.name, topic_id=topic.id)


@serves("FindCoordinator", 0, 6)
def find_coordinator(request: Request) -> Answer:
    host, port = request.address
    if request.version < 4:
        return _coordinators.struct()(node_id=NODE_ID, host=host, port=port, error_message=None)
    entry = _coordinators.struct("coordinators")
    found = [
        entry(key=key, node_id=NODE_ID, host=host, port=port, error_message=None)
        for key in request.body.coordinator_keys
    ]
    return _coordinators.struct()(coordinators=found)
