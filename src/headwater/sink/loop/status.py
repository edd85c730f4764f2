"""The status of sinks, from the log alone: offsets and members of their groups, and dead letters."""

from collections import Counter

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client, admin
from headwater.declare.graph import Graph
from headwater.declare.spec import SINK_GROUP, Sink
from headwater.errors import MachineError
from headwater.sink.dead_letters import places
from headwater.sink.loop.feeds import sink_topic

__all__ = ["PartitionStatus", "partition_statuses"]


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition of one sink.

    ``position`` is the committed offset, at most a second older than the store's own.
    """

    sink: str
    topic: str
    partition: int
    position: int
    lag: int
    dead: int
    """Dead letters of the sink; a letter that was written twice counts once."""
    holder: str
    """Host and process of the loop that holds it; empty if no loop does."""


def partition_statuses(log: Log, graph: Graph) -> list[PartitionStatus]:
    """The partitions of all sinks; a sink whose topic does not exist has none."""
    client = Client(log)
    admin_client = admin(log)
    statuses = []
    try:
        for sink in graph.sinks.values():
            name = sink_topic(graph, sink)
            ends = client.end_offsets([name])
            dead = Counter(partition for partition, _ in places(client, sink.name, name))
            positions, holders = _positions(admin_client, sink, name), _holders(admin_client, sink, name)
            for (_, partition), end in sorted(ends.items()):
                position = positions.get(partition, 0)
                lag = max(end - position, 0)
                holder = holders.get(partition, "")
                statuses.append(
                    PartitionStatus(sink.name, name, partition, position, lag, dead[partition], holder)
                )
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
    finally:
        client.close()
    return statuses


def _positions(asked: AdminClient, sink: Sink, name: str) -> dict[int, int]:
    group = SINK_GROUP + sink.name
    answer = asked.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    committed = answer.result(TIMEOUT_S).topic_partitions
    return {place.partition: place.offset for place in committed if place.topic == name and place.offset >= 0}


def _holders(asked: AdminClient, sink: Sink, name: str) -> dict[int, str]:
    group = SINK_GROUP + sink.name
    try:
        members = asked.describe_consumer_groups([group])[group].result(TIMEOUT_S).members
    except KafkaException:  # no process has ever joined it
        return {}
    return {
        place.partition: member.client_id
        for member in members
        for place in (member.assignment.topic_partitions if member.assignment else [])
        if place.topic == name
    }
