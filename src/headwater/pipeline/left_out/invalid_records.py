"""Invalid records: they do not fit the type of their stream; ``<topic>.invalid`` has them with the reason.

The key is topic-partition-offset and the topic is compacted, so that a record is kept once, however many
views read it and however often a batch is repeated.
"""

from collections import Counter
from typing import Any

import msgspec

from headwater.declare.graph import Graph
from headwater.declare.judge import judge_of
from headwater.declare.schema import ddl
from headwater.declare.spec import Stream, View
from headwater.decoders import from_json
from headwater.pipeline.build.plan_edits import observed
from headwater.pipeline.engine.engine import Engine
from headwater.pipeline.left_out.side_records import SideRecord, SideTopic, encode, tallied, value_text
from headwater.pipeline.topics import Positions, Topics
from headwater.pipeline.wire.wire import INVALID

__all__ = ["InvalidRecord", "InvalidRecords", "topic"]


class InvalidRecord(SideRecord, frozen=True):
    """One invalid record as its topic holds it; ``value`` is its text, cut and with wrong bytes replaced."""

    reason: str
    """The field, what it has, and what was expected."""
    value: str | None
    field: str | None = None
    """The path of the field that does not fit, like ``lines[2].price``; None if it is the whole value."""


class _Envelope(msgspec.Struct, frozen=True):
    """What Debezium wraps around a row."""

    after: msgspec.Raw


def topic(name: str) -> str:
    """The topic of a topic's invalid records."""
    return f"{name}.{INVALID}"


class InvalidRecords:
    """Publishes the records that views have counted as invalid. Any thread may call ``publish``.

    When it returns, the records are safe in the log.
    """

    def __init__(self, topics: Topics, graph: Graph, partitions: int, engine: Engine) -> None:
        self._engine = engine
        self._topics = topics
        self._graph = graph
        self._partitions = partitions
        self._side_topic = SideTopic(topics.log)

    def publish(
        self,
        view: View,
        counts: dict[str, int] | None,
        starts: Positions,
        ends: Positions,
    ) -> Counter[str]:
        """Reads a stretch of the view's inputs again and publishes its invalid records.

        Returns how many there are of each topic.

        ``counts`` are observations by name, ``invalid STREAM``; streams with a count of 0 are not read. None:
        all streams are read.
        """
        published: Counter[str] = Counter()
        counted = {observed(name).partition(" ")[2] for name, count in (counts or {}).items() if count}
        for stream in dict.fromkeys(self._graph.inputs(view).values()):
            if counts is not None and stream.name not in counted:
                continue
            topics = self._topics.of(stream, self._graph)
            stretch = {name: ends[name] for name in topics if ends.get(name)}
            if stretch:
                published += self._publish(stream, starts, stretch)
        return published

    def close(self) -> None:
        self._side_topic.close()

    def _publish(self, stream: Stream, starts: Positions, ends: Positions) -> Counter[str]:
        self._topics.ensure([topic(name) for name in ends], self._partitions, compact=True)
        published: Counter[str] = Counter()
        records = (_invalid(row, stream) for row in self._engine.invalid(stream, starts, ends))
        self._side_topic.send(
            f"invalid records of stream {stream.name!r}",
            ((topic(record.topic), *encode(record)) for record in tallied(records, published)),
        )
        return published


def _invalid(row: Any, stream: Stream) -> InvalidRecord:
    value = None if row.value is None else bytes(row.value)
    reason, field = _reason(value, stream)
    return InvalidRecord(row.topic, row.partition, row.offset, reason, value_text(value), field)


def _reason(value: bytes | None, stream: Stream) -> tuple[str, str | None]:
    """Why a record does not fit, and the field that does not."""
    if stream.table and value is None:
        return (
            f"it deletes a row, and its key is not a {', '.join(stream.key)} of table {stream.name!r}",
            None,
        )
    if stream.view:
        return "a row of another kind", None
    fault = judge_of(stream.type, lenient=bool(stream.envelope)).fault(_opened(value, stream))
    if fault is None:
        return f"a field does not fit {ddl(stream.type)}", None
    return str(fault), fault.field or None


def _opened(value: bytes | None, stream: Stream) -> bytes | None:
    """The row inside an envelope; a value that has none stays as it is."""
    if value is None or not stream.envelope:
        return value
    try:
        return bytes(from_json(value, _Envelope).after)
    except msgspec.MsgspecError:
        return value
