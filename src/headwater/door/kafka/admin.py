"""Requests of administrators: settings, partitions, deletion of records, and descriptions of the broker.

DescribeConfigs 1-4           topics, share groups, and a few settings of the broker
AlterConfigs 0-2              replaces all settings of a topic or share group; those of the broker come from
                              its settings file
IncrementalAlterConfigs 0-1   set, delete, append, subtract
ListConfigResources 0-1       what has settings; version 0 asks for client metrics, of which there are none
CreatePartitions 0-3          assignments are ignored: there is one broker
DeleteRecords 0-2             -1 is the high watermark; refused for topics that are only compacted
DescribeLogDirs 1-4           DescribeCluster 0-1        DescribeProducers 0        DescribeTopicPartitions 0
"""

from collections.abc import Callable

from headwater.door.kafka.api import Answer, Later, Request, serves
from headwater.errors import ErrorCode, RequestError
from headwater.log.broker import NODE_ID, Broker
from headwater.log.storage.catalog import INTERNAL, Topic, check_name
from headwater.log.storage.partition import LEADER_EPOCH
from headwater.log.storage.topic_config import LISTS, TopicConfig, parse_config
from headwater.protocol.kafka.codec import Message, layout

_configs_response = layout("DescribeConfigs", "response")
_alter_response = layout("AlterConfigs", "response")
_increment_response = layout("IncrementalAlterConfigs", "response")
_partitions_response = layout("CreatePartitions", "response")
_delete_response = layout("DeleteRecords", "response")
_folders_response = layout("DescribeLogDirs", "response")
_cluster_response = layout("DescribeCluster", "response")
_producers_response = layout("DescribeProducers", "response")
_topics_response = layout("DescribeTopicPartitions", "response")
_resources_response = layout("ListConfigResources", "response")

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT, DYNAMIC_GROUP = 1, 4, 5, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


# ---- settings ------------------------------------------------------------------------------------------


@serves("DescribeConfigs", 1, 4)
def describe_configs(request: Request) -> Answer:
    return _configs_response.struct()(
        results=[_describe_config(request.broker, resource) for resource in request.body.resources]
    )


def _describe_config(broker: Broker, resource: Message) -> Message:
    result = _configs_response.struct("results")
    names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        values, changed, source = _settings_of(broker, resource)
    except RequestError as refused:
        return result(error_code=refused.code, error_message=str(refused), **names)
    entry = _configs_response.struct("results.configs")
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
    """All settings of a resource, the names of those that were set, and their source."""
    if resource.resource_type == TOPIC:
        check_name(resource.resource_name)
        topic = broker.topic(resource.resource_name, create=False)
        return parse_config(topic.config).texts(), set(topic.config), DYNAMIC_TOPIC
    if resource.resource_type == GROUP:
        shares, group = broker.shares, _group_name(resource)
        return shares.config(group).texts(), set(shares.settings(group)), DYNAMIC_GROUP
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
    raise RequestError(
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource.resource_type} has no settings, expected topic 2, broker 4 or group 32",
    )


def _group_name(resource: Message) -> str:
    name: str = resource.resource_name
    if not name:
        raise RequestError(ErrorCode.INVALID_REQUEST, "the name of the group is empty")
    return name


@serves("AlterConfigs", 0, 2)
def alter_configs(request: Request) -> Answer:
    def replaced(_: dict[str, str], resource: Message) -> dict[str, str]:
        empty = [config.name for config in resource.configs if config.value is None]
        if empty:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{empty[0]} has no value")
        return {config.name: config.value for config in resource.configs}

    entry = _alter_response.struct("responses")
    altered = [_alter(request, resource, replaced, entry) for resource in request.body.resources]
    return _when_stored(request, _alter_response.struct()(responses=altered))


@serves("IncrementalAlterConfigs", 0, 1)
def increment_configs(request: Request) -> Answer:
    entry = _increment_response.struct("responses")
    altered = [_alter(request, resource, _incremented_config, entry) for resource in request.body.resources]
    return _when_stored(request, _increment_response.struct()(responses=altered))


def _when_stored(request: Request, answer: Message) -> Answer:
    """The answer, once the settings of groups are durable; those of topics are already."""
    groups = [entry for entry in answer.responses if entry.resource_type == GROUP and not entry.error_code]
    if request.body.validate_only or not groups:
        return answer
    later = Later()

    def stored() -> Message:
        if request.broker.shares.is_offline:
            for entry in groups:
                entry.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer

    request.broker.committed().add_done_callback(lambda _: later.resolve(stored))
    return later


def _alter(
    request: Request,
    resource: Message,
    change: Callable[[dict[str, str], Message], dict[str, str]],
    entry: type[Message],
) -> Message:
    names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        if resource.resource_type not in {TOPIC, GROUP}:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, "only the settings of topics and groups can be changed at run time"
            )
        if not resource.resource_name:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the name of the topic is empty")
        if len({config.name for config in resource.configs}) < len(resource.configs):
            raise RequestError(ErrorCode.INVALID_REQUEST, "a setting is named twice")
        dry_run = request.body.validate_only
        if resource.resource_type == GROUP:
            shares, group = request.broker.shares, _group_name(resource)
            shares.configure(group, change(shares.settings(group), resource), dry_run=dry_run)
        else:
            topic = request.broker.topic(resource.resource_name, create=False)
            config = change(topic.config, resource)
            if topic.internal and config.get("cleanup.policy") != topic.config.get("cleanup.policy"):
                what = f"{topic.name} is internal, so its cleanup.policy is fixed"
                raise RequestError(ErrorCode.INVALID_CONFIG, what)
            request.broker.catalog.configure(topic, config, dry_run=dry_run)
    except RequestError as refused:
        return entry(error_code=refused.code, error_message=str(refused), **names)
    return entry(error_message=None, **names)


@serves("ListConfigResources", 0, 1)
def list_config_resources(request: Request) -> Answer:
    broker, entry = request.broker, _resources_response.struct("config_resources")
    names: dict[int, list[str]] = {
        TOPIC: sorted(broker.catalog.topics),
        BROKER: [str(NODE_ID)],
        BROKER_LOGGER: [str(NODE_ID)],
        CLIENT_METRICS: [],
        GROUP: sorted(broker.shares.configured()),
    }
    wanted = (request.body.resource_types or names) if request.version >= 1 else [CLIENT_METRICS]
    if not set(wanted) <= set(names):
        return _resources_response.struct()(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources = [
        entry(resource_name=name, resource_type=kind) for kind in sorted(set(wanted)) for name in names[kind]
    ]
    return _resources_response.struct()(config_resources=resources)


def _incremented_config(current: dict[str, str], resource: Message) -> dict[str, str]:
    config = dict(current)
    for change in resource.configs:
        key, value = change.name, change.value or ""
        if change.value is None and change.config_operation != DELETE:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{key} has no value")
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
            raise RequestError(
                ErrorCode.INVALID_CONFIG, f"{key} is not a list, so items cannot be added or removed"
            )
    return config


# ---- partitions and records ----------------------------------------------------------------------------


@serves("CreatePartitions", 0, 3)
def create_partitions(request: Request) -> Answer:
    entry = _partitions_response.struct("results")
    results = []
    for wanted in request.body.topics:
        try:
            topic = request.broker.topic(wanted.name, create=False)
            request.broker.catalog.add_partitions(topic, wanted.count, dry_run=request.body.validate_only)
            results.append(entry(name=wanted.name))
        except RequestError as refused:
            results.append(entry(name=wanted.name, error_code=refused.code, error_message=str(refused)))
    return _partitions_response.struct()(results=results)


@serves("DeleteRecords", 0, 2)
def delete_records(request: Request) -> Answer:
    entry = _delete_response.struct("topics.partitions")
    topics = []
    for topic in request.body.topics:
        parts = []
        for part in topic.partitions:
            try:
                partition = request.broker.catalog.partition(topic.name, part.partition_index)
                if topic.name in INTERNAL:
                    raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
                if partition.config.compacts and not partition.config.deletes:
                    raise RequestError(
                        ErrorCode.POLICY_VIOLATION,
                        f"{topic.name} is compacted, so its records are not deleted",
                    )
                offset = partition.high_watermark if part.offset == -1 else part.offset
                needed_from = partition.needed_from(request.broker.clock.now_ms())
                if needed_from < offset <= partition.high_watermark:
                    what = f"a queue has not settled what {topic.name} has from offset {needed_from} on"
                    raise RequestError(ErrorCode.POLICY_VIOLATION, what)
                partition.delete_records(offset)
                parts.append(
                    entry(partition_index=part.partition_index, low_watermark=partition.log_start_offset)
                )
            except RequestError as refused:
                parts.append(
                    entry(partition_index=part.partition_index, low_watermark=-1, error_code=refused.code)
                )
        topics.append(_delete_response.struct("topics")(name=topic.name, partitions=parts))
    return _delete_response.struct()(topics=topics)


# ---- descriptions --------------------------------------------------------------------------------------


@serves("DescribeLogDirs", 1, 4)
def describe_log_dirs(request: Request) -> Answer:
    broker, wanted = request.broker, request.body.topics
    chosen = None if wanted is None else {topic.topic: set(topic.partitions) for topic in wanted}
    entry = _folders_response.struct("results.topics.partitions")
    topics = []
    for topic in broker.catalog.topics.values():
        if chosen is not None and topic.name not in chosen:
            continue
        parts = [
            entry(partition_index=index, partition_size=topic.partitions.size_bytes(index))
            for index in range(len(topic.partitions))
            if chosen is None or index in chosen[topic.name]
        ]
        topics.append(_folders_response.struct("results.topics")(name=topic.name, partitions=parts))
    return _folders_response.struct()(
        results=[_folders_response.struct("results")(log_dir=str(broker.folder), topics=topics)]
    )


@serves("DescribeCluster", 0, 1)
def describe_cluster(request: Request) -> Answer:
    host, port = request.address
    node = _cluster_response.struct("brokers")(broker_id=NODE_ID, host=host, port=port)
    return _cluster_response.struct()(
        cluster_id=request.broker.cluster_id, controller_id=NODE_ID, brokers=[node]
    )


@serves("DescribeProducers", 0, 0)
def describe_producers(request: Request) -> Answer:
    topics = []
    for topic in request.body.topics:
        parts = [_describe_producers(request.broker, topic.name, index) for index in topic.partition_indexes]
        topics.append(_producers_response.struct("topics")(name=topic.name, partitions=parts))
    return _producers_response.struct()(topics=topics)


def _describe_producers(broker: Broker, topic: str, index: int) -> Message:
    result = _producers_response.struct("topics.partitions")
    try:
        producers = broker.catalog.partition(topic, index).producers
    except RequestError as refused:
        return result(partition_index=index, error_code=refused.code, error_message=str(refused))
    entry = _producers_response.struct("topics.partitions.active_producers")
    active = [
        entry(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=0,
            current_txn_start_offset=producers.open.get(producer_id, -1),
        )
        for producer_id, producer in producers.by_id.items()
    ]
    return result(partition_index=index, active_producers=active)


@serves("DescribeTopicPartitions", 0, 0)
def describe_topic_partitions(request: Request) -> Answer:
    """Topics in the order of their names, up to a limit of partitions.

    The cursor says where the next page begins.
    """
    body, broker = request.body, request.broker
    names = sorted(topic.name for topic in body.topics) or sorted(broker.catalog.topics)
    first = 0
    if body.cursor is not None:
        names = [name for name in names if name >= body.cursor.topic_name]
        first = body.cursor.partition_index if names and names[0] == body.cursor.topic_name else 0
    budget, topics, cursor = max(body.response_partition_limit, 1), [], None
    for name in names:
        topic = broker.catalog.topics.get(name)
        count = len(topic.partitions) if topic else 0
        if budget <= 0 or (cursor is not None):
            break
        last = min(count, first + budget)
        topics.append(_page(name, topic, range(first, last)))
        budget -= last - first
        if last < count:
            cursor = _topics_response.struct("next_cursor")(topic_name=name, partition_index=last)
        elif budget <= 0 and name != names[-1]:
            cursor = _topics_response.struct("next_cursor")(
                topic_name=names[names.index(name) + 1], partition_index=0
            )
        first = 0
    return _topics_response.struct()(topics=topics, next_cursor=cursor)


def _page(name: str, topic: Topic | None, indexes: range) -> Message:
    if topic is None:
        return _topics_response.struct("topics")(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    entry = _topics_response.struct("topics.partitions")
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
    return _topics_response.struct("topics")(
        name=name, topic_id=topic.id, is_internal=topic.internal, partitions=parts
    )
