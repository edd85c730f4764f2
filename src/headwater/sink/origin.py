"""Whether the rows of a store still belong to its topic: what happened to a topic while no sink ran."""

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from headwater.access import Log
from headwater.client import admin
from headwater.clock import Clock
from headwater.errors import Away
from headwater.sink.store import Dated, Feed
from headwater.sink.topics import Topic

__all__ = ["outdated"]

ANSWER_S = 10.0


def outdated(store: Dated, feed: Feed, topic: Topic, log: Log, clock: Clock) -> str:
    """Why the store must be filled anew; empty when it need not. Away when the log does not say."""
    origin = store.origin()
    if topic.id and origin and origin != topic.id:
        return f"topic {feed.topic} was deleted and made again"
    if topic.id and not origin:
        store.adopt(topic.id)
    oldest = None if feed.append else min(store.at_ms().values(), default=None)
    if oldest is None:
        return ""
    kept_ms = _tombstones_ms(log, feed.topic)
    # A deletion that compaction has removed since cannot be learned of any more.
    if kept_ms is not None and clock.now_ms() - oldest > kept_ms:
        return f"the store is older than deletions stay in topic {feed.topic}"
    return ""


def _tombstones_ms(log: Log, topic: str) -> int | None:
    """How long deletions stay in a topic that is compacted."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked = admin(log)  # kept until the answer: a client without owner ends its requests
    try:
        config = asked.describe_configs([resource])[resource].result(ANSWER_S)
    except (KafkaException, TimeoutError) as error:
        raise Away(f"log {log}", got=str(error)) from error
    if "compact" not in config["cleanup.policy"].value:
        return None
    return int(config["delete.retention.ms"].value)
