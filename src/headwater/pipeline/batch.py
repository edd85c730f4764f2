"""Batch: the rows of a view from the same function, over the log up to a position, as an ordinary DataFrame.

Nothing is late in batch: all of the log is there. Who compares with a stream names the records that it has left out.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.app import App
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import Graph, Stream, View
from headwater.pipeline import query, session, source, wire
from headwater.pipeline.topics import Positions, Topics
from headwater.position import Position

__all__ = ["Place", "batch", "records", "rows"]


class Place(NamedTuple):
    """Where one record stands in the log."""

    topic: str
    partition: int
    offset: int


def batch(
    app: App,
    settings: Settings,
    view: str,
    upto: Position | None = None,
    without: Collection[Place] = (),
) -> DataFrame:
    """The rows of a view over the log up to a position (None: all that it holds now), but for the records that are named.

    Of a topic or partition that the position does not name nothing is read. UsageError when the log does not reach so far.
    """
    graph = app.graph()
    if view not in graph.views:
        raise UsageError(f"unknown view {view!r}", expected=", ".join(graph.views))
    spec = graph.views[view]
    spark = session.start(settings, import_folder=app.folder)
    ends = None if upto is None else _ends(settings, graph, spec, upto)
    left_out = spark.createDataFrame([*without], source.PLACE) if without else None
    inputs = {
        parameter: source.batch(
            spark,
            settings.access,
            stream,
            graph,
            ends=None if ends is None else ends[stream.name],
            without=left_out,
        )
        for parameter, stream in graph.inputs(spec).items()
    }
    return _answer(spark, spec, inputs)


def records(rows: DataFrame, view: View) -> Iterator[tuple[str, bytes]]:
    """Rows of a view as their topic would have them: key and value."""
    key, value = wire.expressions(rows.schema, view)
    for record in rows.selectExpr(f"{key} AS key", f"{value} AS value").toLocalIterator():
        yield record.key, record.value.encode()


def rows(app: App, settings: Settings) -> dict[str, dict[str, dict[str, Any]]]:
    """The batch answer of every view: {view: {key text: row}}, keys and rows as on the wire."""
    return {
        name: {key: msgspec.json.decode(value) for key, value in records(batch(app, settings, name), view)}
        for name, view in app.graph().views.items()
    }


def _answer(spark: SparkSession, view: View, inputs: dict[str, DataFrame]) -> DataFrame:
    """The rows that a reader of the view would see: without columns of ours, and without what is gone."""
    made = query.build(spark, view, inputs)
    wire.check(made, view)
    if wire.GONE in made.columns:
        made = made.where(~F.coalesce(F.col(wire.GONE), F.lit(False)))
    return made.drop(*[name for name in made.columns if name.startswith("_")])


def _ends(settings: Settings, graph: Graph, view: View, upto: Position) -> dict[str, Positions]:
    """For each stream of the view, the positions that are to be read up to; a partition with nothing to read is left out."""
    topics = Topics(settings.access)
    try:
        found = {stream.name: _checked(topics, graph, stream, upto) for stream in graph.inputs(view).values()}
    finally:
        topics.close()
    if not any(topic in upto.offsets for wanted in found.values() for topic in wanted):
        raise UsageError(
            f"the position names no topic of view {view.name!r}",
            got=", ".join(upto.offsets) or "none",
            expected=", ".join(stream.pattern or stream.topic for stream in graph.inputs(view).values()),
        )
    return {
        name: {
            topic: kept
            for topic, partitions in wanted.items()
            if (kept := {number: end for number, (start, end) in partitions.items() if end > start})
        }
        for name, wanted in found.items()
    }


def _checked(
    topics: Topics, graph: Graph, stream: Stream, upto: Position
) -> dict[str, dict[int, tuple[int, int]]]:
    """By topic and partition, where the log begins and up to where it is to be read."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for topic in topics.of(stream, graph):
        bounds = topics.bounds(topic) if upto.of(topic) else {}
        for number, wanted in upto.of(topic).items():
            start, end = bounds.get(number, (0, 0))
            if wanted > end:
                raise UsageError(
                    "the log does not reach as far as the position",
                    got=f"{topic}-{number} up to {wanted:,}",
                    expected=f"at most {end:,}",
                )
            found.setdefault(topic, {})[number] = (start, wanted)
    return found
