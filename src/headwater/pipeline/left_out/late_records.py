"""Late records: their event time is before the watermark; ``<view>.late`` has them with that watermark.

They are read from the log again, by position. The transaction of their batch publishes them, so each is there
once.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from headwater.client.client import Client
from headwater.declare.graph import Graph
from headwater.declare.schema import wire
from headwater.declare.spec import View
from headwater.decoders import from_json
from headwater.pipeline.engine.engine import Engine
from headwater.pipeline.left_out.side_records import SideRecord
from headwater.pipeline.topics import Positions, Topics

__all__ = ["LateRecord", "LateRecords", "published", "topic"]


class LateRecord(SideRecord, frozen=True):
    """One late record as its topic holds it."""

    time: str
    watermark: str
    reason: str
    value: str | None
    run: str = ""
    """The run of the view that has left it out."""


def topic(view: str) -> str:
    """The topic of a view's late records."""
    return f"{view}.late"


def published(client: Client, view: str) -> Iterator[LateRecord]:
    """The late records that are published for a view, of all its runs."""
    for record in client.read([topic(view)]):
        yield from_json(record.value(), LateRecord)


class LateRecords:
    """Reads the late records of a batch from the log."""

    def __init__(self, topics: Topics, graph: Graph, engine: Engine) -> None:
        self._engine = engine
        self._topics = topics
        self._graph = graph

    def read(
        self,
        view: View,
        streams: Iterable[str],
        stretch: tuple[Positions, Positions],
        *,
        run: str,
        watermark: int,
    ) -> Iterator[LateRecord]:
        """The late records of a batch, of the streams that had some.

        ``stretch`` is where its input starts and ends.
        """
        starts, read = stretch
        before_us = watermark - view.late.horizon_us
        reason = f"it came after the watermark{f' and {view.late.horizon}' if view.late.horizon_us else ''}"
        for name in sorted(set(streams)):
            stream = self._graph.streams[name]
            ends = {topic: read[topic] for topic in self._topics.of(stream, self._graph) if topic in read}
            for row in self._engine.late(stream, starts, ends, before_us=before_us):
                yield LateRecord(
                    row.topic,
                    row.partition,
                    row.offset,
                    _iso(row.time_us),
                    _iso(watermark),
                    reason,
                    row.value,
                    run,
                )


def _iso(time_us: int) -> str:
    return str(wire(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)))
