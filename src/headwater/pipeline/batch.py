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
from headwater.pipeline import kinds, operator, query, session, source, weights, wire
from headwater.pipeline.plain import query as plain_query
from headwater.pipeline.plain import tables as plain_tables
from headwater.pipeline.plain.moment import At
from headwater.pipeline.topics import Positions, Topics
from headwater.position import Position

__all__ = ["Place", "batch", "keys_alone", "records", "rows"]


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
    *,
    plain: At | None = None,
) -> DataFrame:
    """The rows of a view over the log up to a position (None: all that it holds now), but for the records that are named.

    With ``plain`` they are computed by Spark's plain operators, at that moment of the view.

    Of a topic or partition that the position does not name nothing is read. A view among its inputs is read from its topic if the position
    names that, and otherwise made in batch too. UsageError when the log does not reach so far.
    """
    graph = app.graph()
    if view not in graph.views:
        raise UsageError(f"unknown view {view!r}", expected=", ".join(graph.views))
    spark = session.start(settings, import_folder=app.folder)
    left_out = spark.createDataFrame([*without], source.PLACE) if without else None
    making = _Making(spark, settings, graph, upto, left_out=left_out, plain=plain)
    if upto is not None:
        making.check(graph.views[view], upto)
    return making.answer(graph.views[view])


def keys_alone(spark: SparkSession, settings: Settings, graph: Graph, view: View, place: Place) -> list[str]:
    """The keys of the rows that a view makes of one record, while all its inputs are empty otherwise. Raises what Spark has against the record."""
    starts, ends = (
        {place.topic: {place.partition: place.offset}},
        {place.topic: {place.partition: place.offset + 1}},
    )
    streams, topics = graph.inputs(view), Topics(settings.access)
    try:
        here = {name: place.topic in topics.of(stream, graph) for name, stream in streams.items()}
    finally:
        topics.close()
    inputs = {
        name: source.batch(
            spark, settings.access, stream, graph, starts=starts, ends=ends if here[name] else {}
        )
        for name, stream in streams.items()
    }
    made = weights.carried(f"view {view.name!r}", query.build(spark, view, inputs, streams))
    return sorted({key for key, _ in records(made, view)})


class _Making:
    """The rows of views, each made of its inputs up to one position of the log."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        graph: Graph,
        upto: Position | None,
        *,
        left_out: DataFrame | None = None,
        plain: At | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._graph = graph
        self._upto = upto
        self._left_out = left_out
        self._plain = plain

    def answer(self, view: View) -> DataFrame:
        """The rows that a reader of the view would see: without columns of ours, and without what is gone."""
        streams = self._graph.inputs(view)
        inputs = {parameter: self._input(stream) for parameter, stream in streams.items()}
        if self._plain is None:
            made = weights.carried(f"view {view.name!r}", query.build(self._spark, view, inputs, streams))
        else:
            made = plain_query.build(self._spark, view, inputs, streams, self._plain)
        wire.check(made, view)
        if wire.GONE in made.columns:
            made = made.where(~F.coalesce(F.col(wire.GONE), F.lit(False)))
        shown = made.drop(*[name for name in made.columns if name.startswith("_")])
        self._graph.learn(view, kinds.columns_of(shown.schema))
        return shown

    def _input(self, stream: Stream) -> DataFrame:
        if stream.view:
            view = self._graph.views[stream.name]
            if self._upto is None or stream.topic not in self._upto.offsets:
                made = self.answer(view)
                weighs = stream.table and self._plain is None
                return made.withColumn(wire.WEIGHT, F.lit(1)) if weighs else made
            # Its rows are those of its topic: only their types are asked for.
            made = _Making(self._spark, self._settings, self._graph, self._upto).answer(view)
            stream = msgspec.structs.replace(stream, fields=kinds.columns_of(made.schema))
        ends = None if self._upto is None else _ends(self._settings, self._graph, stream, self._upto)
        site = operator.Site(1, lambda: self._spark.range(0).toDF("offset"))
        with operator.building(site):
            rows = source.batch(
                self._spark, self._settings.access, stream, self._graph, ends=ends, without=self._left_out
            )
        if self._plain is None or not stream.table:
            return rows
        return plain_tables.final(rows, site.tables[-1].changes)

    def check(self, view: View, upto: Position) -> None:
        """Refuses a position that has nothing to do with a view."""
        topics = Topics(self._settings.access)
        try:
            known = {
                topic
                for stream in self._streams(view)
                for topic in (topics.of(stream, self._graph) if stream.pattern else [stream.topic])
            }
        finally:
            topics.close()
        if not known.intersection(upto.offsets):
            raise UsageError(
                f"the position names no topic of view {view.name!r}",
                got=", ".join(upto.offsets) or "none",
                expected=", ".join(stream.pattern or stream.topic for stream in self._streams(view)),
            )

    def _streams(self, view: View) -> Iterator[Stream]:
        """All that a view is made of, through other views too."""
        yield from self._graph.inputs(view).values()
        for each in self._graph.upstream(view):
            yield from self._streams(each)


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


def _ends(settings: Settings, graph: Graph, stream: Stream, upto: Position) -> Positions:
    """The positions that a stream is to be read up to; a partition with nothing to read is left out."""
    topics = Topics(settings.access)
    try:
        wanted = _checked(topics, graph, stream, upto)
    finally:
        topics.close()
    return {
        topic: kept
        for topic, partitions in wanted.items()
        if (kept := {number: end for number, (start, end) in partitions.items() if end > start})
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
