"""How sinks stand, asked of the log alone: offsets and members of their groups, and their dead letters."""

from collections import Counter

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient

from headwater.access import Log
from headwater.client import TIMEOUT_S, Client, admin
from headwater.errors import MachineError
from headwater.graph import SINK_GROUP, Graph, Sink
from headwater.sink.letters import places
from headwater.sink.source import topic

__all__ = ["Standing", "standings"]


class Standing(msgspec.Struct, frozen=True):
    """One partition of one sink. ``position`` is what was last committed for measuring, at most a second behind the store's own."""

    sink: str
    topic: str
    partition: int
    position: int
    lag: int
    dead: int
    """Letters of the sink of this partition; one that was written twice counts once."""
    holder: str
    """Host and process of the loop that has it; empty when none has."""


def standings(log: Log, graph: Graph) -> list[Standing]:
    """Of all sinks, by partition; a sink whose topic does not exist has none."""
    client = Client(log)
    asked = admin(log)
    found = []
    try:
        for sink in graph.sinks.values():
            name = topic(graph, sink)
            ends = client.end_offsets([name])
            dead = Counter(partition for partition, _ in places(client, sink.name, name))
            positions, holders = _positions(asked, sink, name), _holders(asked, sink, name)
            for (_, partition), end in sorted(ends.items()):
                position = positions.get(partition, 0)
                lag = max(end - position, 0)
                holder = holders.get(partition, "")
                found.append(Standing(sink.name, name, partition, position, lag, dead[partition], holder))
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
    finally:
        client.close()
    return found


def _positions(asked: AdminClient, sink: Sink, name: str) -> dict[int, int]:
    group = SINK_GROUP + sink.name
    answer = asked.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    places = answer.result(TIMEOUT_S).topic_partitions
    return {place.partition: place.offset for place in places if place.topic == name and place.offset >= 0}


def _holders(asked: AdminClient, sink: Sink, name: str) -> dict[int, str]:
    group = SINK_GROUP + sink.name
    try:
        members = asked.describe_consumer_groups([group])[group].result(TIMEOUT_S).members
    except KafkaException:  # nobody ever joined it
        return {}
    return {
        place.partition: member.client_id
        for member in members
        for place in (member.assignment.topic_partitions if member.assignment else [])
        if place.topic == name
    }
