"""The record batches of a topic as they are stored, by the embedded broker or by Apache Kafka.

A client library returns only records. Aborted transactions, markers and the gaps of compaction are visible
only in the batches, so this module fetches them itself.
"""

from collections.abc import Iterator
from typing import Any

from headwater.access import Log, access
from headwater.client.bulk.cluster import Cluster, Retry, Unknown, check
from headwater.client.bulk.connection import compose
from headwater.clock import SystemClock
from headwater.errors import MachineError
from headwater.record import BatchHeader, whole_batches

__all__ = ["Batches"]

FETCH_BYTES = 4 << 20
WAIT_MS = 500


class Batches:
    """Reads batches of a log. For use by one thread; `close` closes its connections."""

    def __init__(self, log: Log) -> None:
        self._access = access(log)
        self._cluster = Cluster(log, SystemClock())

    def close(self) -> None:
        self._cluster.close()

    def leaders(self, topic: str) -> dict[int, int]:
        """The broker of each partition of a topic; empty for a topic that does not exist."""
        try:
            return dict(enumerate(self._cluster.leaders(topic)))
        except Unknown:
            return {}
        except (OSError, Retry) as error:
            raise self._unreadable(topic, error) from error

    def read(self, broker: int, topic: str, partition: int, start: int, end: int) -> Iterator[memoryview]:
        """The batches of a partition from ``start`` to before ``end``, with markers and open transactions."""
        offset, size = start, FETCH_BYTES
        while offset < end:
            data = self._fetch(broker, topic, partition, offset, size)
            if not data:
                return  # compaction has removed everything up to the end
            batches = list(whole_batches(data))
            if not batches:
                size *= 2
            for batch in batches:
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
        request = compose("Fetch", max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=size, topics=topics)
        try:
            response = self._cluster.node(broker).ask("Fetch", request)
            check(response.error_code, topic)
            (answer,) = response.responses[0].partitions
            check(answer.error_code, f"{topic}-{partition}")
        except (OSError, Retry) as error:
            raise self._unreadable(f"{topic}-{partition}", error) from error
        return answer.records

    def _unreadable(self, what: str, error: Exception) -> MachineError:
        return MachineError(
            f"{what} cannot be read from log {self._access}",
            got=str(error),
            hint="try again: retention may just have removed it, or another broker has taken it over",
        )
