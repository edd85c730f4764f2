"""Lag offsets: commits the positions of views to consumer groups, so that every Kafka lag tool sees them.

One Kafka client in the JVM does it for all views; it survives a restart of the log.
"""

import functools
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headwater.access import Log, access
from headwater.declare.spec import VIEW_GROUP
from headwater.pipeline.engine.engine import Notes
from headwater.pipeline.spark import catalyst
from headwater.pipeline.topics import Positions

__all__ = ["Groups", "group"]

COMMIT_SECONDS_MAX = 5


def group(view: str) -> str:
    """The consumer group under which lag tools see a view."""
    return VIEW_GROUP + view


class Groups:
    """The groups of all views of a log.

    Any thread may call. Spark continues from its checkpoints, never from here.
    """

    def __init__(self, spark: SparkSession, log: Log) -> None:
        self._log = access(log)
        self._map = catalyst.of(spark, "java.util.HashMap")
        self._place = catalyst.of(spark, "org.apache.kafka.common.TopicPartition")
        self._offset = catalyst.of(spark, "org.apache.kafka.clients.consumer.OffsetAndMetadata")
        self._seconds = catalyst.of(spark, "java.util.concurrent.TimeUnit").SECONDS
        self._duration = catalyst.of(spark, "java.time.Duration")
        self._client = catalyst.of(spark, "org.apache.kafka.clients.admin.AdminClient")

    def commit(
        self, view: str, positions: Positions, notes: Notes | None = None, *, wait: bool = True
    ) -> bool:
        """Commits a view's positions, with notes beside them.

        False if the log has not confirmed it in time, or if the call does not wait. That does no harm.
        """
        offsets, notes = self._map(), notes or {}
        for topic, partitions in positions.items():
            for partition, offset in partitions.items():
                note = notes.get(topic, {}).get(partition, "")
                offsets.put(self._place(topic, partition), self._offset(offset, note))
        try:
            answer = self._admin.alterConsumerGroupOffsets(group(view), offsets)
            if not wait:
                return False
            answer.all().get(COMMIT_SECONDS_MAX, self._seconds)
        except Py4JJavaError:
            return False
        return True

    def committed(self, view: str) -> tuple[Positions, Notes]:
        """The committed positions of a view and the notes beside them; empty if there are none."""
        answer = self._admin.listConsumerGroupOffsets(group(view)).partitionsToOffsetAndMetadata().get()
        positions: Positions = {}
        notes: Notes = {}
        for place in answer.keySet():
            topic, partition, committed = place.topic(), place.partition(), answer.get(place)
            positions.setdefault(topic, {})[partition] = committed.offset()
            notes.setdefault(topic, {})[partition] = committed.metadata()
        return positions, notes

    def close(self) -> None:
        """Ends the connection; otherwise it would look for its log for ever."""
        admin = self.__dict__.pop("_admin", None)
        if admin is not None:
            admin.close(self._duration.ofSeconds(COMMIT_SECONDS_MAX))

    @functools.cached_property
    def _admin(self) -> Any:
        settings = self._map()
        for name, value in self._log.java().items():
            settings.put(name, value)
        settings.put("client.id", "headwater-groups")
        return self._client.create(settings)
