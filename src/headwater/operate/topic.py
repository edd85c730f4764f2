"""Topics of a log: making, ending, and how evenly their records are spread."""

import msgspec
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from headwater.access import Log, access
from headwater.client import TIMEOUT_S, Client, admin
from headwater.errors import MachineError, UsageError

__all__ = ["PartitionShape", "TopicShape", "create", "delete", "describe"]

SET_FOR_TOPIC = 1
"""Kafka's number for a setting that was given to the topic itself."""


class PartitionShape(msgspec.Struct, frozen=True):
    """Where one partition begins and ends. Compaction and markers make it hold fewer records than offsets."""

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
        """The fullest partition against the mean: 1 is even."""
        mean = self.records / len(self.partitions)
        return max(p.records for p in self.partitions) / mean if mean else 1.0


def describe(log: Log, name: str) -> TopicShape:
    known = Client(log).partitions()
    if name not in known:
        raise UsageError(f"there is no topic {name!r}", hint="headwater topic list shows what there is")
    client = admin(log)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        settings = client.describe_configs([resource])[resource].result(TIMEOUT_S)
        starts, ends = (
            _offsets(client, name, known[name], spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
    except (KafkaException, TimeoutError) as error:
        raise MachineError(f"log {log} does not answer", got=str(error)) from error
    config = {key: entry.value for key, entry in settings.items() if entry.source == SET_FOR_TOPIC}
    return TopicShape(config, tuple(PartitionShape(i, starts[i], ends[i]) for i in range(known[name])))


def create(log: Log, name: str, partitions: int, config: dict[str, str]) -> None:
    known = Client(log)
    known.partitions()  # says what is wrong with the log, which an admin request does not
    client = admin(log)
    wanted = NewTopic(name, partitions, access(log).replication, config=config)
    try:
        client.create_topics([wanted])[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise UsageError(f"topic {name!r} cannot be created", got=error.args[0].str()) from error
    known.await_topics({name})


def delete(log: Log, name: str) -> None:
    Client(log).partitions()  # same
    client = admin(log)
    try:
        client.delete_topics([name])[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise UsageError(f"topic {name!r} cannot be deleted", got=error.args[0].str()) from error


def _offsets(client: AdminClient, name: str, partitions: int, spec: OffsetSpec) -> dict[int, int]:
    answers = client.list_offsets({TopicPartition(name, index): spec for index in range(partitions)})
    return {place.partition: answer.result(TIMEOUT_S).offset for place, answer in answers.items()}
