"""Batches: the record batches of a topic as the log keeps them, of ours or of Apache Kafka.

A client library hands out records only. What belongs to an aborted transaction, what is a marker and what compaction has taken stands in the
batches, so they are fetched here as they are.
"""

from collections.abc import Iterator
from typing import Any

from headwater.access import Log, access
from headwater.bulk.cluster import Cluster, Retry, Unknown, check
from headwater.bulk.connection import compose
from headwater.clock import SystemClock
from headwater.errors import MachineError
from headwater.record import BatchHeader, whole_batches

__all__ = ["Batches"]

FETCH_BYTES = 4 << 20
WAIT_MS = 500


class Batches:
    """Reads topics of a log. For one thread; `close` ends its connections."""

    def __init__(self, log: Log) -> None:
        self._access = access(log)
        self._cluster = Cluster(log, SystemClock())

    def close(self) -> None:
        self._cluster.close()

    def leaders(self, topic: str) -> dict[int, int]:
        """Which broker has each partition of a topic; none for a topic that does not exist."""
        try:
            return dict(enumerate(self._cluster.leaders(topic)))
        except Unknown:
            return {}
        except (OSError, Retry) as error:
            raise self._away(topic, error) from error

    def read(self, broker: int, topic: str, partition: int, start: int, end: int) -> Iterator[memoryview]:
        """The batches of a partition from one offset up to another, markers and open transactions among them."""
        offset, size = start, FETCH_BYTES
        while offset < end:
            data = self._fetch(broker, topic, partition, offset, size)
            if not data:
                return  # compaction has left nothing up to the end
            found = list(whole_batches(data))
            if not found:
                size *= 2
            for batch in found:
                header = BatchHeader.read(batch)
                if header.base_offset >= end:
                    return
                yield batch
                offset = header.last_offset + 1

    def _fetch(self, broker: int, topic: str, partition: int, offset: int, size: int) -> Any:
        place = compose(
            "Fetch", "topics.partitions", partition=partition, fetch_offset=offset, partition_max_bytes=size
        )
        topics = [compose("Fetch", "topics", topic=topic, partitions=[place])]
        asked = compose("Fetch", max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=size, topics=topics)
        try:
            answer = self._cluster.node(broker).ask("Fetch", asked)
            check(answer.error_code, topic)
            (found,) = answer.responses[0].partitions
            check(found.error_code, f"{topic}-{partition}")
        except (OSError, Retry) as error:
            raise self._away(f"{topic}-{partition}", error) from error
        return found.records

    def _away(self, what: str, error: Exception) -> MachineError:
        return MachineError(
            f"{what} cannot be read from log {self._access}",
            got=str(error),
            hint="ask again: retention or another broker may have taken it meanwhile",
        )
