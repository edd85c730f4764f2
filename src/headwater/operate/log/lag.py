"""The lag of consumer groups, in records and in seconds, and the time left until retention passes them."""

import msgspec
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client, admin, consumer
from headwater.clock import Clock, SystemClock
from headwater.errors import MachineError
from headwater.operate.log.group import check_group

__all__ = ["Lag", "lags"]

HIDDEN_SUFFIX = ".ledger"
"""The suffix of groups that do not consume: their offsets are entries of a ledger."""
WARN_SHARE = 0.2
"""A group is in danger when less than this share of the retention time is left."""
LOOK_TIMEOUT_S = 2.0


class Lag(msgspec.Struct, frozen=True):
    """One group in one partition. Records that retention has removed do not count as lag."""

    group: str
    topic: str
    partition: int
    committed: int
    log_start: int
    end: int
    seconds: float | None = None
    """The age of the oldest unread record; None if there is none."""
    lost_in_seconds: float | None = None
    """The time until retention removes that record; None without retention by time."""
    retention_seconds: float | None = None

    @property
    def records(self) -> int:
        return self.end - max(self.committed, self.log_start)

    @property
    def missed(self) -> int:
        """The number of offsets that were removed before the group had read them."""
        return max(self.log_start - self.committed, 0)

    @property
    def in_danger(self) -> bool:
        if self.lost_in_seconds is None or self.retention_seconds is None:
            return False
        return self.lost_in_seconds < WARN_SHARE * self.retention_seconds


def lags(log: Log, group: str | None = None, clock: Clock | None = None) -> list[Lag]:
    """The lag of every group, or of one, in each partition for which it has committed an offset."""
    Client(log).partitions()  # its error says what is wrong with the log; that of an admin request does not
    client = admin(log)
    try:
        names = sorted(g.group_id for g in client.list_consumer_groups().result(TIMEOUT_S).valid)
        if group is not None:
            check_group(group, names)
            names = [group]
        committed = {
            (name, place.topic, place.partition): place.offset
            for name in names
            if not name.endswith(HIDDEN_SUFFIX)
            for place in client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name]
            .result(TIMEOUT_S)
            .topic_partitions
            if place.offset >= 0
        }
        places = {(topic, partition) for _, topic, partition in committed}
        starts, ends = (
            _offsets(client, places, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        retention = {topic: _retention_seconds(client, topic) for topic, _ in places}
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
    reader = consumer(log)
    now_ms = (clock or SystemClock()).now_ms()
    try:
        return [
            _lag(
                reader,
                key,
                offset,
                bounds=(starts[key[1:]], ends[key[1:]]),
                retention=retention[key[1]],
                now_ms=now_ms,
            )
            for key, offset in sorted(committed.items())
            if key[1:] in ends
        ]
    finally:
        reader.close()


def _lag(
    reader: Consumer,
    key: tuple[str, str, int],
    committed: int,
    *,
    bounds: tuple[int, int],
    retention: float | None,
    now_ms: int,
) -> Lag:
    start, end = bounds
    next_offset = max(committed, start)
    if next_offset >= end:
        return Lag(*key, committed, start, end)
    written_ms = _timestamp(reader, key[1], key[2], next_offset)
    if written_ms is None:
        return Lag(*key, committed, start, end)
    seconds = max(now_ms - written_ms, 0) / 1000
    left = None if retention is None else max(retention - seconds, 0)
    return Lag(*key, committed, start, end, seconds, left, retention)


def _offsets(client: object, places: set[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    if not places:
        return {}
    wanted = {TopicPartition(*place): spec for place in places}
    offsets = {}
    for place, answer in client.list_offsets(wanted).items():  # type: ignore[attr-defined]
        try:
            offsets[place.topic, place.partition] = answer.result(TIMEOUT_S).offset
        except KafkaException:  # the topic was deleted, and its groups still have offsets of it
            continue
    return offsets


def _retention_seconds(client: object, topic: str) -> float | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        config = client.describe_configs([resource])[resource].result(TIMEOUT_S)  # type: ignore[attr-defined]
    except KafkaException:
        return None
    limit_ms = int(config["retention.ms"].value)
    return limit_ms / 1000 if limit_ms >= 0 and "delete" in config["cleanup.policy"].value else None


def _timestamp(reader: Consumer, topic: str, partition: int, offset: int) -> int | None:
    """The timestamp of the first record at an offset or after it."""
    reader.assign([TopicPartition(topic, partition, offset)])
    clock = SystemClock()
    limit = clock.monotonic() + LOOK_TIMEOUT_S
    while clock.monotonic() < limit:
        message = reader.poll(LOOK_TIMEOUT_S)
        if message is None or (message.topic(), message.partition()) != (topic, partition):
            continue  # nothing yet, or a message of the partition that was looked at before
        return None if message.error() else int(message.timestamp()[1])
    return None
