"""Cases of topics: creating, changing, deleting, and creating again under the same name."""

from clients.answers import named, record
from clients.case import case
from clients.onelog import Log
from support.servers import wait_until

NOT_ON_BOTH = (
    "compression.gzip.",
    "compression.lz4.",
    "compression.zstd.",
    "follower.replication.",
    "headwater.",
    "leader.replication.",
    "local.retention.",
    "remote.",
)
"""Settings of what one of the logs alone can do: replicas, tiered storage, recompression; topics in memory."""
INTERNAL = ("__consumer_offsets", "__transaction_state")


@case
def names_of_topics(log: Log) -> object:
    wanted = ["", ".", "..", "a" * 249, "a" * 250, "with space", "ümlaut", "a/b", "_one", "__two", "a.b_c-D9"]
    return [log.create(name) for name in wanted]


@case
def names_that_differ_in_dots_and_underscores(log: Log) -> object:
    """Their metrics would have the same name."""
    return [log.create("clash.of_names"), log.create("clash_of.names")]


@case
def numbers_of_partitions(log: Log) -> object:
    return [log.create(log.fresh(), count) for count in (0, -2, -1, 3)]


@case
def replication_factors(log: Log) -> object:
    answers = []
    for factor in (0, -2, -1, 1, 2):
        topic = {"name": log.fresh(), "num_partitions": 1, "replication_factor": factor}
        answers.append(
            named(log.call("CreateTopics", 7, topics=[topic], timeout_ms=30_000).topics[0].error_code)
        )
    return answers


@case
def a_topic_twice_in_one_request(log: Log) -> object:
    topic = {"name": log.fresh(), "num_partitions": 1, "replication_factor": 1}
    answer = log.call("CreateTopics", 7, topics=[topic, topic], timeout_ms=30_000)
    return sorted({(each.name, named(each.error_code)) for each in answer.topics})


@case
def a_topic_that_exists(log: Log) -> object:
    return log.create(log.topic())


@case
def a_topic_that_is_only_validated(log: Log) -> object:
    name = log.fresh()
    topic = {"name": name, "num_partitions": 3, "replication_factor": 1}
    answer = log.call("CreateTopics", 7, topics=[topic], timeout_ms=30_000, validate_only=True)
    return [named(answer.topics[0].error_code), answer.topics[0].num_partitions, log.metadata(name)[0]]


SETTINGS = [
    ("cleanup.policy", "burn"),
    ("cleanup.policy", ""),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "delete, compact"),
    ("cleanup.policy", "compact,compact"),
    ("compression.type", "none"),
    ("delete.retention.ms", "-1"),
    ("max.message.bytes", "-1"),
    ("max.message.bytes", "0"),
    ("message.timestamp.type", "Never"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("min.compaction.lag.ms", "-1"),
    ("max.compaction.lag.ms", "0"),
    ("no.such.setting", "1"),
    ("retention.bytes", "-2"),
    ("retention.ms", "-1"),
    ("retention.ms", "-2"),
    ("retention.ms", "soon"),
    ("segment.bytes", "13"),
    ("segment.ms", "0"),
    ("segment.ms", "1"),
    ("unclean.leader.election.enable", "perhaps"),
]


@case
def settings_of_a_new_topic(log: Log) -> object:
    return {f"{key}={value}": log.create(log.fresh(), **{key: value}) for key, value in SETTINGS}


@case
def segments_smaller_than_a_megabyte(log: Log) -> object:
    return log.create(log.fresh(), segment_bytes="1048575")


@case
def settings_that_contradict_each_other(log: Log) -> object:
    lags = {"min.compaction.lag.ms": "1000", "max.compaction.lag.ms": "10"}
    return log.create(log.fresh(), **lags)


@case
def a_setting_without_a_value(log: Log) -> object:
    configs = [{"name": "retention.ms", "value": None}]
    topic = {"name": log.fresh(), "num_partitions": 1, "replication_factor": 1, "configs": configs}
    return named(log.call("CreateTopics", 7, topics=[topic], timeout_ms=30_000).topics[0].error_code)


@case
def settings_that_are_changed(log: Log) -> object:
    """Set, deleted, appended and taken away; of topics that are there, are not, and are internal."""
    topic = log.topic()
    answers = [
        log.alter(topic, "cleanup.policy", "compact"),
        log.alter(topic, "cleanup.policy", "delete", operation=2),
        log.alter(topic, "cleanup.policy", "delete", operation=2),
        log.alter(topic, "cleanup.policy", "compact", operation=3),
        log.alter(topic, "cleanup.policy", "burn"),
        log.alter(topic, "cleanup.policy", "burn", operation=2),
        log.alter(topic, "retention.ms", "1", operation=2),
        log.alter(topic, "retention.ms", None, operation=1),
        log.alter(topic, "retention.ms", None),
        log.alter(topic, "retention.ms", "soon"),
        log.alter(topic, "no.such.setting", "1"),
        log.alter(topic, "no.such.setting", None, operation=1),
        log.alter("there-is-none", "retention.ms", "1"),
        log.alter("", "retention.ms", "1"),
    ]
    wait_until(lambda: log.setting(topic, "cleanup.policy") == "delete", what="the policy")
    return answers


@case
def a_setting_twice_in_one_request(log: Log) -> object:
    topic = log.topic()
    change = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change, change]}
    return named(log.call("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code)


@case
def all_settings_replaced(log: Log) -> object:
    topic = log.topic(retention_ms="5000000")
    configs = [{"name": "segment.ms", "value": "6000000"}]
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    code = named(log.call("AlterConfigs", 2, resources=[resource]).responses[0].error_code)
    wait_until(lambda: log.setting(topic, "segment.ms") == "6000000", what="the setting")
    empty = resource | {"configs": [{"name": "segment.ms", "value": None}]}
    twice = resource | {"configs": configs * 2}
    codes = [
        named(log.call("AlterConfigs", 2, resources=[each]).responses[0].error_code)
        for each in (empty, twice)
    ]
    return [code, log.setting(topic, "retention.ms"), codes]


@case
def more_and_fewer_partitions(log: Log) -> object:
    topic = log.topic(2)

    def grow(name: str, count: int) -> str:
        answer = log.call(
            "CreatePartitions",
            3,
            topics=[{"name": name, "count": count, "assignments": None}],
            timeout_ms=30_000,
        )
        return named(answer.results[0].error_code)

    answers = [grow(topic, count) for count in (1, 2, 0, -1, 3)] + [grow("there-is-none", 2)]
    wait_until(lambda: len(log.metadata(topic)[1].partitions) == 3, what="three partitions")
    return answers


@case
def internal_topics(log: Log) -> object:
    """Clients neither write to them nor empty them, and a topic's name may begin like theirs."""
    group = log.group()
    log.commit(group, log.topic(), 1)
    log.writer().init()
    answers: list[object] = []
    for name in INTERNAL:
        answers += [
            log.produce(name, record("v"))[0],
            log.delete_records(name, 0)[0],
            log.create(name),
            log.metadata(name)[1].is_internal,
        ]
    other = log.topic(name="__of_our_own")
    answers += [
        log.metadata(other)[1].is_internal,
        log.produce(other, record("v")),
        log.delete_records(other, 1),
    ]
    answers += log.delete(other)
    return answers


@case
def internal_topics_in_a_transaction(log: Log) -> object:
    writer = log.writer()
    writer.init()
    group = log.group()
    log.commit(group, log.topic(), 1)
    return [writer.add("__consumer_offsets"), writer.end(commit=False)]


@case
def a_topic_asked_for_is_created_or_not(log: Log) -> object:
    name, other = log.fresh(), log.fresh()
    log.call("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True)
    wait_until(lambda: log.metadata(name)[0] == "NONE", what="the topic")
    bad = log.call("Metadata", 12, topics=[{"name": "not a name"}], allow_auto_topic_creation=True)
    return [
        log.metadata(other)[0],
        named(bad.topics[0].error_code),
        log.metadata("")[0],
        log.metadata("not a name")[0],
    ]


@case
def settings_that_every_topic_has(log: Log) -> object:
    resource = {"resource_type": 2, "resource_name": log.topic(), "configuration_keys": None}
    found = log.call("DescribeConfigs", 4, resources=[resource]).results[0]
    return {config.name: config.value for config in found.configs if not config.name.startswith(NOT_ON_BOTH)}


@case
def settings_asked_for(log: Log) -> object:
    topic = log.topic(retention_ms="5000000")

    def ask(kind: int, name: str, *keys: str) -> object:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}
        found = log.call("DescribeConfigs", 4, resources=[resource]).results[0]
        return named(found.error_code), [
            (c.name, c.value, c.config_source, c.read_only) for c in found.configs
        ]

    return [
        ask(2, topic, "retention.ms"),
        ask(2, topic, "segment.ms", "no.such"),
        ask(2, "there-is-none", "segment.ms"),
        ask(2, "not a name", "segment.ms"),
        ask(2, "", "segment.ms"),
        ask(3, "x", "y"),
    ]


@case
def partitions_page_by_page(log: Log) -> object:
    first, second = log.topic(3), log.topic(2)
    names = [{"name": name} for name in (second, first, "there-is-none")]

    def ask(limit: int, cursor: dict | None = None) -> object:
        answer = log.wire.call(
            "DescribeTopicPartitions",
            0,
            topics=names,
            response_partition_limit=limit,
            **({"cursor": cursor} if cursor else {}),
        )
        found = [
            (t.name, named(t.error_code), [p.partition_index for p in t.partitions]) for t in answer.topics
        ]
        return found, answer.next_cursor and (
            answer.next_cursor.topic_name,
            answer.next_cursor.partition_index,
        )

    return [ask(100), ask(2), ask(3), ask(4)]
