"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, CreatePartitions, DeleteRecords, DescribeLogDirs, DescribeCluster,
DescribeProducers, DescribeTopicPartitions.

DescribeConfigs 1-4           topics, and a few settings of the broker
AlterConfigs 0-2              replaces all settings of a topic; those of the broker come from its settings file
IncrementalAlterConfigs 0-1   set, delete, append, subtract
CreatePartitions 0-3          assignments are ignored: there is one broker
DeleteRecords 0-2             -1 is the high watermark; not of topics that are compacted alone
DescribeLogDirs 1-4           DescribeCluster 0-1        DescribeProducers 0        DescribeTopicPartitions 0
"""

from collections.abc import Callable

from headwater.errors import ErrorCode, Refused
from headwater.kafka.api import Answer, Request, serves
from headwater.kafka.codec import Message, layout
from headwater.log.broker import NODE_ID, Broker
from headwater.log.config import LISTS, TopicConfig, parse_config
from headwater.log.partition import LEADER_EPOCH
from headwater.log.topic import INTERNAL, Topic, check_name

_configs = layout("DescribeConfigs", "response")
_altered = layout("AlterConfigs", "response")
_incremented = layout("IncrementalAlterConfigs", "response")
_partitions = layout("CreatePartitions", "response")
_deleted = layout("DeleteRecords", "response")
_folders = layout("DescribeLogDirs", "response")
_cluster = layout("DescribeCluster", "response")
_producers = layout("DescribeProducers", "response")
_topics = layout("DescribeTopicPartitions", "response")

TOPIC, BROKER = 2, 4
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


# ---- settings ------------------------------------------------------------------------------------------


@serves("DescribeConfigs", 1, 4)
def describe_configs(request: Request) -> Answer:
    return _configs.struct()(
        results=[_describe_config(request.broker, resource) for resource in request.body.resources]
    )


def _describe_config(broker: Broker, resource: Message) -> Message:
    result = _configs.struct("results")
    names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        values, changed, source = _settings_of(broker, resource)
    except Refused as refused:
        return result(error_code=refused.code, error_message=str(refused), **names)
    entry = _configs.struct("results.configs")
    wanted = resource.configuration_keys
    configs = [
        entry(
            name=key,
            value=value,
            read_only=source == STATIC_BROKER,
            config_source=source if key in changed else DEFAULT,
            documentation=None,
        )
        for key, value in values.items()
        if wanted is None or key in wanted
    ]
    return result(error_message=None, configs=configs, **names)


def _settings_of(broker: Broker, resource: Message) -> tuple[dict[str, str], set[str], int]:
    """All settings of a resource, those that were set, and where they come from."""
    if resource.resource_type == TOPIC:
        check_name(resource.resource_name)
        topic = broker.topic(resource.resource_name, create=False)
        return parse_config(topic.config).texts(), set(topic.config), DYNAMIC_TOPIC
    if resource.resource_type == BROKER:
        defaults = TopicConfig()
        values = {
            "broker.id": str(NODE_ID),
            "log.cleanup.policy": defaults.cleanup_policy,
            "log.retention.ms": str(defaults.retention_ms),
            "log.segment.bytes": str(defaults.segment_bytes),
            "message.max.bytes": str(defaults.max_message_bytes),
            "num.partitions": str(broker.partitions),
        }
        return values, {"broker.id", "num.partitions"}, STATIC_BROKER
    raise Refused(
        ErrorCode.INVALID_REQUEST,
        f"settings are those of topics (2) and brokers (4), got {resource.resource_type}",
    )


@serves("AlterConfigs", 0, 2)
def alter_configs(request: Request) -> Answer:
    def replaced(_: Topic, resource: Message) -> dict[str, str]:
        empty = [config.name for config in resource.configs if config.value is None]
        if empty:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{empty[0]} has no value")
        return {config.name: config.value for config in resource.configs}

    entry = _altered.struct("responses")
    return _altered.struct()(
        responses=[_alter(request, resource, replaced, entry) for resource in request.body.resources]
    )


@serves("IncrementalAlterConfigs", 0, 1)
def increment_configs(request: Request) -> Answer:
    entry = _incremented.struct("responses")
    return _incremented.struct()(
        responses=[
            _alter(request, resource, _incremented_config, entry) for resource in request.body.resources
        ]
    )


def _alter(
    request: Request,
    resource: Message,
    change: Callable[[Topic, Message], dict[str, str]],
    entry: type[Message],
) -> Message:
    names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        if resource.resource_type != TOPIC:
            raise Refused(ErrorCode.INVALID_REQUEST, "only the settings of topics can be changed at run time")
        if not resource.resource_name:
            raise Refused(ErrorCode.INVALID_REQUEST, "settings are those of a topic, and it has a name")
        if len({config.name for config in resource.configs}) < len(resource.configs):
            raise Refused(ErrorCode.INVALID_REQUEST, "a setting is named twice")
        topic = request.broker.topic(resource.resource_name, create=False)
        request.broker.catalog.configure(topic, change(topic, resource), dry_run=request.body.validate_only)
    except Refused as refused:
        return entry(error_code=refused.code, error_message=str(refused), **names)
    return entry(error_message=None, **names)


def _incremented_config(topic: Topic, resource: Message) -> dict[str, str]:
    config = dict(topic.config)
    for change in resource.configs:
        key, value = change.name, change.value or ""
        if change.value is None and change.config_operation != DELETE:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{key} has no value")
        if change.config_operation == SET:
            config[key] = value
        elif change.config_operation == DELETE:
            config.pop(key, None)
        elif change.config_operation in {APPEND, SUBTRACT} and key in LISTS:
            items = dict.fromkeys(parse_config(config).texts()[key].split(","))
            if change.config_operation == APPEND:
                items |= dict.fromkeys(value.split(","))
            else:
                items = {item: None for item in items if item not in value.split(",")}
            config[key] = ",".join(items)
        else:
            raise Refused(
                ErrorCode.INVALID_CONFIG, f"{key} is no list, so nothing can be added to it or taken away"
            )
    return config


# ---- partitions and records ----------------------------------------------------------------------------


@serves("CreatePartitions", 0, 3)
def create_partitions(request: Request) -> Answer:
    entry = _partitions.struct("results")
    results = []
    for wanted in request.body.topics:
        try:
            topic = request.broker.topic(wanted.name, create=False)
            request.broker.catalog.add_partitions(topic, wanted.count, dry_run=request.body.validate_only)
            results.append(entry(name=wanted.name))
        except Refused as refused:
            results.append(entry(name=wanted.name, error_code=refused.code, error_message=str(refused)))
    return _partitions.struct()(results=results)


@serves("DeleteRecords", 0, 2)
def delete_records(request: Request) -> Answer:
    entry = _deleted.struct("topics.partitions")
    topics = []
    for topic in request.body.topics:
        parts = []
        for part in topic.partitions:
            try:
                partition = request.broker.catalog.partition(topic.name, part.partition_index)
                if topic.name in INTERNAL:
                    raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
                if partition.config.compacts and not partition.config.deletes:
                    raise Refused(ErrorCode.POLICY_VIOLATION, f"{topic.name} is compacted, not deleted from")
                partition.delete_records(partition.high_watermark if part.offset == -1 else part.offset)
                parts.append(
                    entry(partition_index=part.partition_index, low_watermark=partition.log_start_offset)
                )
            except Refused as refused:
                parts.append(
                    entry(partition_index=part.partition_index, low_watermark=-1, error_code=refused.code)
                )
        topics.append(_deleted.struct("topics")(name=topic.name, partitions=parts))
    return _deleted.struct()(topics=topics)


# ---- looking -------------------------------------------------------------------------------------------


@serves("DescribeLogDirs", 1, 4)
def describe_log_dirs(request: Request) -> Answer:
    broker, wanted = request.broker, request.body.topics
    chosen = None if wanted is None else {topic.topic: set(topic.partitions) for topic in wanted}
    entry = _folders.struct("results.topics.partitions")
    topics = []
    for topic in broker.catalog.topics.values():
        if chosen is not None and topic.name not in chosen:
            continue
        parts = [
            entry(partition_index=index, partition_size=topic.partitions.size_bytes(index))
            for index in range(len(topic.partitions))
            if chosen is None or index in chosen[topic.name]
        ]
        topics.append(_folders.struct("results.topics")(name=topic.name, partitions=parts))
    return _folders.struct()(results=[_folders.struct("results")(log_dir=str(broker.folder), topics=topics)])


@serves("DescribeCluster", 0, 1)
def describe_cluster(request: Request) -> Answer:
    host, port = request.address
    node = _cluster.struct("brokers")(broker_id=NODE_ID, host=host, port=port)
    return _cluster.struct()(cluster_id=request.broker.cluster_id, controller_id=NODE_ID, brokers=[node])


@serves("DescribeProducers", 0, 0)
def describe_producers(request: Request) -> Answer:
    topics = []
    for topic in request.body.topics:
        parts = [_describe_producers(request.broker, topic.name, index) for index in topic.partition_indexes]
        topics.append(_producers.struct("topics")(name=topic.name, partitions=parts))
    return _producers.struct()(topics=topics)


def _describe_producers(broker: Broker, topic: str, index: int) -> Message:
    result = _producers.struct("topics.partitions")
    try:
        producers = broker.catalog.partition(topic, index).producers
    except Refused as refused:
        return result(partition_index=index, error_code=refused.code, error_message=str(refused))
    entry = _producers.struct("topics.partitions.active_producers")
    active = [
        entry(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=0,
            current_txn_start_offset=producers.open.get(producer_id, -1),
        )
        for producer_id, producer in producers.known.items()
    ]
    return result(partition_index=index, active_producers=active)


@serves("DescribeTopicPartitions", 0, 0)
def describe_topic_partitions(request: Request) -> Answer:
    """Topics in order of their names, as many partitions as are asked for; the cursor says where the next page begins."""
    body, broker = request.body, request.broker
    names = sorted(topic.name for topic in body.topics) or sorted(broker.catalog.topics)
    first = 0
    if body.cursor is not None:
        names = [name for name in names if name >= body.cursor.topic_name]
        first = body.cursor.partition_index if names and names[0] == body.cursor.topic_name else 0
    left, topics, cursor = max(body.response_partition_limit, 1), [], None
    for name in names:
        found = broker.catalog.topics.get(name)
        count = len(found.partitions) if found else 0
        if left <= 0 or (cursor is not None):
            break
        last = min(count, first + left)
        topics.append(_page(name, found, range(first, last)))
        left -= last - first
        if last < count:
            cursor = _topics.struct("next_cursor")(topic_name=name, partition_index=last)
        elif left <= 0 and name != names[-1]:
            cursor = _topics.struct("next_cursor")(topic_name=names[names.index(name) + 1], partition_index=0)
        first = 0
    return _topics.struct()(topics=topics, next_cursor=cursor)


def _page(name: str, topic: Topic | None, indexes: range) -> Message:
    if topic is None:
        return _topics.struct("topics")(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    entry = _topics.struct("topics.partitions")
    parts = [
        entry(
            partition_index=index,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=[NODE_ID],
            isr_nodes=[NODE_ID],
            eligible_leader_replicas=[],
            last_known_elr=[],
        )
        for index in indexes
    ]
    return _topics.struct("topics")(
        name=name, topic_id=topic.id, is_internal=topic.internal, partitions=parts
    )
