"""Topics of a log: creating, deleting and describing them."""

import msgspec
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from headwater.access import Log, access
from headwater.client.client import TIMEOUT_S, Client, admin
from headwater.errors import MachineError, UsageError

__all__ = ["PartitionShape", "TopicShape", "create", "delete", "describe", "partition_count"]

SET_FOR_TOPIC = 1
"""Kafka's number for a setting of the topic itself."""


class PartitionShape(msgspec.Struct, frozen=True):
    """The first and the next offset of a partition.

    It may hold fewer records, because of compaction and markers.
    """

    index: int
    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start


class TopicShape(msgspec.Struct, frozen=True):
    """A topic's own settings and its partitions."""

    config: dict[str, str]
    partitions: tuple[PartitionShape, ...]

    @property
    def records(self) -> int:
        return sum(p.records for p in self.partitions)

    @property
    def skew(self) -> float:
        """The size of the largest partition divided by the mean: 1 if all are equal."""
        mean = self.records / len(self.partitions)
        return max(p.records for p in self.partitions) / mean if mean else 1.0


def partition_count(log: Log, name: str) -> int:
    """The number of partitions of a topic. UsageError if it does not exist."""
    partitions = Client(log).partitions()
    if name not in partitions:
        raise UsageError(f"there is no topic {name!r}", hint="headwater topic list shows all topics")
    return partitions[name]


def describe(log: Log, name: str) -> TopicShape:
    """The settings and partitions of a topic. UsageError if it does not exist."""
    count = partition_count(log, name)
    client = admin(log)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        settings = client.describe_configs([resource])[resource].result(TIMEOUT_S)
        starts, ends = (
            _offsets(client, name, count, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
    except (KafkaException, TimeoutError) as error:
        raise MachineError(f"log {log} does not answer", got=str(error)) from error
    config = {key: entry.value for key, entry in settings.items() if entry.source == SET_FOR_TOPIC}
    return TopicShape(config, tuple(PartitionShape(i, starts[i], ends[i]) for i in range(count)))


def create(log: Log, name: str, partitions: int, config: dict[str, str]) -> None:
    """Creates a topic and waits until it exists."""
    topics = Client(log)
    topics.partitions()  # its error says what is wrong with the log; that of an admin request does not
    client = admin(log)
    new = NewTopic(name, partitions, access(log).replication, config=config)
    try:
        client.create_topics([new])[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise UsageError(f"topic {name!r} cannot be created", got=error.args[0].str()) from error
    topics.await_topics({name})


def delete(log: Log, name: str) -> None:
    """Deletes a topic with its records. UsageError if it does not exist."""
    partition_count(log, name)
    client = admin(log)
    try:
        client.delete_topics([name])[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise UsageError(f"topic {name!r} cannot be deleted", got=error.args[0].str()) from error


def _offsets(client: AdminClient, name: str, partitions: int, spec: OffsetSpec) -> dict[int, int]:
    answers = client.list_offsets({TopicPartition(name, index): spec for index in range(partitions)})
    return {place.partition: answer.result(TIMEOUT_S).offset for place, answer in answers.items()}
