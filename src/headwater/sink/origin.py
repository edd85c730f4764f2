"""Whether the rows of a store still belong to its topic: what happened to a topic while no sink ran."""

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from headwater.access import Log
from headwater.change import Change
from headwater.client import admin
from headwater.clock import Clock
from headwater.errors import Away
from headwater.sink.store import Batch, Dated, Feed
from headwater.sink.topics import Topic

__all__ = ["known_ms", "outdated"]

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


def known_ms(batch: Batch, fresh: Iterable[Change], begun: Mapping[int, int], now_ms: int) -> dict[int, int]:
    """By partition of a batch, since when at the earliest deletions may have gone that the store has not seen.

    What comes behind a record was written after it; a batch without changes for a partition was at its end; and the log keeps deletions for
    a reader that has ``begun`` at its start. So a store that is being filled from old records is as young as its beginning.
    """
    times = {change.partition: min(change.timestamp_ms, now_ms) for change in fresh}
    return {p: max(times.get(p, now_ms), begun.get(p, 0)) for p in batch.upto}


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
