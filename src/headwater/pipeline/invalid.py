"""Invalid: records that do not fit their stream's type, published to ``<topic>.invalid`` with the reason.

The key is topic-partition-offset and the topic is compacted, so that any number of views, and any number of
repetitions of a batch, leave one record.
"""

import functools

import msgspec
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from headwater.client import producer
from headwater.errors import MachineError
from headwater.graph import Graph, Stream, View
from headwater.pipeline import source
from headwater.pipeline.plan import observed
from headwater.pipeline.topics import Positions, Topics
from headwater.schema import reason

__all__ = ["Invalid", "InvalidRecords", "topic"]

VALUE_CHARACTERS_MAX = 1_000
FLUSH_SECONDS_MAX = 120.0
IN_FLIGHT_MAX = 10_000


class Invalid(msgspec.Struct, frozen=True):
    """One invalid record as its topic holds it; ``value`` is its text, cut and with wrong bytes replaced."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: str | None

    @property
    def key(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


def topic(name: str) -> str:
    """The topic of a topic's invalid records."""
    return f"{name}.{source.INVALID}"


class InvalidRecords:
    """Publishes what views have counted as invalid. Any thread may call; what ``publish`` returns from is safe in the log."""

    def __init__(self, topics: Topics, graph: Graph, partitions: int) -> None:
        self._topics = topics
        self._graph = graph
        self._partitions = partitions

    def publish(
        self,
        spark: SparkSession,
        view: View,
        counts: dict[str, int] | None,
        starts: Positions,
        ends: Positions,
    ) -> None:
        """Reads a stretch of the view's inputs again, where ``counts`` says so (None: all), and publishes what is invalid.

        ``counts`` are observations by name, ``invalid STREAM``.
        """
        counted = {observed(name).partition(" ")[2] for name, count in (counts or {}).items() if count}
        for stream in dict.fromkeys(self._graph.inputs(view).values()):
            if counts is not None and stream.name not in counted:
                continue
            topics = self._topics.of(stream, self._graph)
            stretch = {name: ends[name] for name in topics if ends.get(name)}
            if stretch:
                self._publish(spark, stream, starts, stretch)

    def close(self) -> None:
        self.__dict__.pop("_producer", None)

    def _publish(self, spark: SparkSession, stream: Stream, starts: Positions, ends: Positions) -> None:
        self._topics.ensure([topic(name) for name in ends], self._partitions, compact=True)
        failed: list[str] = []
        for row in source.invalid(spark, self._topics.log, stream, starts, ends).toLocalIterator():
            value = None if row.value is None else bytes(row.value)
            self._send(
                Invalid(row.topic, row.partition, row.offset, _reason(value, stream), _text(value)),
                failed,
            )
        if self._producer.flush(FLUSH_SECONDS_MAX) or failed:
            got = failed[0] if failed else "no answer"
            raise MachineError(f"invalid records of stream {stream.name!r} could not be published", got=got)

    def _send(self, record: Invalid, failed: list[str]) -> None:
        while len(self._producer) >= IN_FLIGHT_MAX:
            self._producer.poll(0.1)
        self._producer.produce(
            topic(record.topic),
            msgspec.json.encode(record),
            record.key,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )

    @functools.cached_property
    def _producer(self) -> Producer:
        return producer(self._topics.log)


def _reason(value: bytes | None, stream: Stream) -> str:
    if stream.table and value is None:
        return f"it deletes a row, and its key is no {', '.join(stream.key)} of table {stream.name!r}"
    return "a row of another kind" if stream.view else reason(value, stream.type)


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    return value[: 4 * VALUE_CHARACTERS_MAX].decode(errors="replace")[:VALUE_CHARACTERS_MAX]
