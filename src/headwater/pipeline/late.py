"""Late: records that came after their time, for ``<view>.late``, each with the watermark that it missed.

They are read from the log once more, by position; the transaction of their batch publishes them, so each is there once.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from headwater.client import Client
from headwater.decoders import from_json
from headwater.graph import Graph, View
from headwater.pipeline.engine import Engine
from headwater.pipeline.topics import Positions, Topics
from headwater.schema import wire

__all__ = ["LateRecord", "LateRecords", "published", "topic"]


class LateRecord(msgspec.Struct, frozen=True):
    """One late record as its topic holds it."""

    topic: str
    partition: int
    offset: int
    time: str
    watermark: str
    reason: str
    value: str | None
    run: str = ""
    """The run of the view that has left it out."""

    @property
    def key(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


def topic(view: str) -> str:
    """The topic of a view's late records."""
    return f"{view}.late"


def published(client: Client, view: str) -> Iterator[LateRecord]:
    """The late records that stand beside a view, of all its runs."""
    for record in client.read([topic(view)]):
        yield from_json(record.value(), LateRecord)


class LateRecords:
    """Finds the late records of a batch again."""

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
        """Those of a batch, in the streams in which it met some; ``stretch`` is what it has read, from and up to."""
        starts, read = stretch
        before_us = watermark - view.late.horizon_us
        reason = f"it came after the watermark{f' and {view.late.horizon}' if view.late.horizon_us else ''}"
        for name in sorted(set(streams)):
            stream = self._graph.streams[name]
            ends = {each: read[each] for each in self._topics.of(stream, self._graph) if each in read}
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
