"""Retention: topics of declared streams keep records as long as the application says, or for ever."""

import logging
from collections.abc import Sequence

from headwater.client.topic_defaults import FULL
from headwater.config import Settings
from headwater.declare.spec import Stream
from headwater.pipeline.topics import Topics

__all__ = ["keep_streams"]

RETENTION = "retention.ms"

logger = logging.getLogger(__name__)


def keep_streams(topics: Topics, streams: Sequence[Stream], settings: Settings) -> None:
    """Creates the topics of streams, and gives those that an embedded log has already their retention.

    The topics of a Kafka belong to others too: one that keeps records for a shorter time is only reported.
    """
    existing = topics.partitions()
    missing = [stream for stream in streams if stream.topic not in existing]
    for kept_ms in {stream.retention_ms for stream in missing}:
        names = [stream.topic for stream in missing if stream.retention_ms == kept_ms]
        topics.ensure_topics(names, settings.partitions, FULL | {RETENTION: str(kept_ms)})
    for stream in streams:
        if stream not in missing:
            _keep(topics, stream, settings)


def _keep(topics: Topics, stream: Stream, settings: Settings) -> None:
    config = topics.config(stream.topic)
    kept_ms, wanted_ms = int(config[RETENTION]), stream.retention_ms
    if kept_ms == wanted_ms or "delete" not in config["cleanup.policy"]:
        return
    if settings.embedded is not None:
        topics.set_config(stream.topic, RETENTION, str(wanted_ms))
    elif kept_ms >= 0 and (wanted_ms < 0 or kept_ms < wanted_ms):
        logger.warning(
            "stream %s is to be kept %s, and topic %s has %s=%d: a rebuild lacks what was removed",
            stream.name,
            stream.retention or "for ever",
            stream.topic,
            RETENTION,
            kept_ms,
        )
