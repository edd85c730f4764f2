"""Whether the rows of a store still belong to its topic, after a time in which no sink ran."""

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from headwater.access import Log
from headwater.client.client import admin
from headwater.client.topic_watch import Topic, TopicWatch
from headwater.clock import Clock
from headwater.errors import UnavailableError, UsageError
from headwater.sink.store import DatedStore, SinkFeed, Superseded

__all__ = ["LostOffsets", "outdated"]

ANSWER_S = 10.0


def outdated(store: DatedStore, feed: SinkFeed, topic: Topic, log: Log, clock: Clock) -> str:
    """Why the store must be filled again; empty if it need not.

    UnavailableError if the log does not answer.
    """
    origin = store.origin()
    if topic.id and origin and origin != topic.id:
        return f"topic {feed.topic} was deleted and created again"
    if topic.id and not origin:
        store.adopt(topic.id)
    oldest = None if feed.append else min(store.at_ms().values(), default=None)
    if oldest is None:
        return ""
    kept_ms = _tombstones_ms(log, feed.topic)
    # Compaction may have removed a tombstone since then, and nothing else reports the deletion.
    if kept_ms is not None and clock.now_ms() - oldest > kept_ms:
        return f"the store is older than the time for which topic {feed.topic} keeps tombstones"
    return ""


class LostOffsets:
    """The store's offsets that the log no longer has. It belongs to the loop's thread."""

    def __init__(self, feed: SinkFeed, watch: TopicWatch) -> None:
        self._feed = feed
        self._watch = watch
        self._doubted = False
        self._confirmed_id: str | None = None
        """The id of a topic that is shorter than the store and, as the log has confirmed, still the same."""

    def confirm(self, topic: Topic) -> None:
        """The log has answered which topic it has."""
        if self._doubted:
            self._confirmed_id = topic.id

    def find(
        self, stored: Mapping[int, int], topic: Topic, bounds: Callable[[int], tuple[int, int]]
    ) -> dict[int, str]:
        """The partitions of which the log no longer has the store's offset, each with a sentence for it.

        UsageError if the topic of an append feed ends before the store's offset: new records would be
        skipped as duplicates until it has grown past it, and to empty the store would remove rows that no
        log has. The topic may just have been created again, so the log is asked for it first: Superseded
        until it has answered.
        """
        lost = {}
        for partition, offset in stored.items():
            first, end = bounds(partition)
            if offset > end and self._feed.append:
                self._refuse(partition, offset, end, topic)
            if not first <= offset <= end:
                lost[partition] = f"the log no longer has offset {offset} of {self._feed.topic}-{partition}"
        return lost

    def _refuse(self, partition: int, offset: int, end: int, topic: Topic) -> None:
        what = (
            f"partition {partition} of {self._feed.topic} ends at offset {end}, and the store is at {offset}"
        )
        if self._confirmed_id != topic.id:
            self._doubted = True
            self._watch.hurry()
            raise Superseded(what)
        raise UsageError(
            f"sink {self._feed.sink!r}: {what}",
            hint="the topic is another one, or has lost its end: give the sink another store,"
            " or empty this one with its offsets",
        )


def _tombstones_ms(log: Log, topic: str) -> int | None:
    """How long a compacted topic keeps tombstones; None for a topic that is not compacted."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(log)  # kept until the answer: a client without owner ends its requests
    try:
        config = client.describe_configs([resource])[resource].result(ANSWER_S)
    except (KafkaException, TimeoutError) as error:
        raise UnavailableError(f"log {log}", got=str(error)) from error
    if "compact" not in config["cleanup.policy"].value:
        return None
    return int(config["delete.retention.ms"].value)
