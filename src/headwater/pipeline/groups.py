"""Groups: commits what views have read, so that every Kafka lag tool sees Spark.

The JVM's own Kafka client does it, one for all views; it rides through a restart of the log.
"""

import functools
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headwater.access import Log, access
from headwater.graph import VIEW_GROUP
from headwater.pipeline.topics import Positions

__all__ = ["Groups", "group"]

COMMIT_SECONDS_MAX = 5


def group(view: str) -> str:
    """The consumer group under which lag tools see a view."""
    return VIEW_GROUP + view


class Groups:
    """The groups of all views of a log. Any thread may call. Spark itself goes on from its checkpoints, never from here."""

    def __init__(self, spark: SparkSession, log: Log) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._log = access(log)

    def commit(self, view: str, positions: Positions, *, wait: bool = True) -> bool:
        """Commits a view's positions; False when the log has not confirmed it in time, or is not waited for: that spoils nothing."""
        kafka = self._jvm.org.apache.kafka
        offsets = self._jvm.java.util.HashMap()
        for topic, partitions in positions.items():
            for partition, offset in partitions.items():
                place = kafka.common.TopicPartition(topic, partition)
                offsets.put(place, kafka.clients.consumer.OffsetAndMetadata(offset))
        try:
            answer = self._admin.alterConsumerGroupOffsets(group(view), offsets)
            if not wait:
                return False
            answer.all().get(COMMIT_SECONDS_MAX, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
        except Py4JJavaError:
            return False
        return True

    def committed(self, view: str) -> Positions:
        """What was committed for a view; empty for one that never was."""
        answer = self._admin.listConsumerGroupOffsets(group(view)).partitionsToOffsetAndMetadata().get()
        found: Positions = {}
        for place in answer.keySet():
            found.setdefault(place.topic(), {})[place.partition()] = answer.get(place).offset()
        return found

    def close(self) -> None:
        """Ends the connection; without that it would look for its log for ever."""
        admin = self.__dict__.pop("_admin", None)
        if admin is not None:
            admin.close(self._jvm.java.time.Duration.ofSeconds(COMMIT_SECONDS_MAX))

    @functools.cached_property
    def _admin(self) -> Any:
        settings = self._jvm.java.util.Properties()
        for name, value in self._log.java().items():
            settings.setProperty(name, value)
        settings.setProperty("client.id", "headwater-groups")
        return self._jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
