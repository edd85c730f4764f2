"""Invalid: records that do not fit their stream's type, published to ``<topic>.invalid`` with the reason.

The key is topic-partition-offset and the topic is compacted, so that any number of views, and any number of
repetitions of a batch, leave one record.
"""

from typing import Any

import msgspec

from headwater.graph import Graph, Stream, View
from headwater.pipeline import source
from headwater.pipeline.beside import Beside
from headwater.pipeline.engine import Engine
from headwater.pipeline.plan import observed
from headwater.pipeline.topics import Positions, Topics
from headwater.schema import reason

__all__ = ["Invalid", "InvalidRecords", "topic"]

VALUE_CHARACTERS_MAX = 1_000


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

    def __init__(self, topics: Topics, graph: Graph, partitions: int, engine: Engine) -> None:
        self._engine = engine
        self._topics = topics
        self._graph = graph
        self._partitions = partitions
        self._beside = Beside(topics.log)

    def publish(
        self,
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
                self._publish(stream, starts, stretch)

    def close(self) -> None:
        self._beside.close()

    def _publish(self, stream: Stream, starts: Positions, ends: Positions) -> None:
        self._topics.ensure([topic(name) for name in ends], self._partitions, compact=True)
        records = (_invalid(row, stream) for row in self._engine.invalid(stream, starts, ends))
        self._beside.send(
            f"invalid records of stream {stream.name!r}",
            ((topic(each.topic), each.key, msgspec.json.encode(each)) for each in records),
        )


def _invalid(row: Any, stream: Stream) -> Invalid:
    value = None if row.value is None else bytes(row.value)
    return Invalid(row.topic, row.partition, row.offset, _reason(value, stream), _text(value))


def _reason(value: bytes | None, stream: Stream) -> str:
    if stream.table and value is None:
        return f"it deletes a row, and its key is no {', '.join(stream.key)} of table {stream.name!r}"
    return "a row of another kind" if stream.view else reason(value, stream.type)


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    return value[: 4 * VALUE_CHARACTERS_MAX].decode(errors="replace")[:VALUE_CHARACTERS_MAX]
