"""Batch: the rows of a view from the same function, over the log up to a position, as an ordinary DataFrame.

Nothing is late in a batch, since all of the log is there. A comparison with a stream names the records that
the stream has left out.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.graph import Graph
from headwater.declare.spec import Stream, View
from headwater.errors import UsageError
from headwater.pipeline.batch.plain import query as plain_query
from headwater.pipeline.batch.plain import tables as plain_tables
from headwater.pipeline.batch.plain.moment import At
from headwater.pipeline.build import inputs as source
from headwater.pipeline.build import query
from headwater.pipeline.operator import weights
from headwater.pipeline.operator.building import Site, building
from headwater.pipeline.spark import session
from headwater.pipeline.topics import Positions, Topics
from headwater.pipeline.wire import view_columns, wire
from headwater.position import Position

__all__ = ["Place", "alone", "batch", "records", "rows"]


class Place(NamedTuple):
    """The place of one record in the log."""

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
    """The rows of a view over the log up to a position (None: all that it has now), without some records.

    With ``plain`` Spark's plain operators compute them, at that moment of the view.

    Topics and partitions that the position does not name are not read. An input that is a view is read from
    its topic if the position names it, and otherwise computed as a batch too. Raises UsageError if the log
    ends before the position.
    """
    graph = app.graph()
    if view not in graph.views:
        raise UsageError(f"unknown view {view!r}", expected=", ".join(graph.views))
    spark = session.start(settings, import_folder=app.folder)
    left_out = spark.createDataFrame([*without], source.PLACE) if without else None
    batches = _Batches(spark, settings, graph, upto, left_out=left_out, plain=plain)
    if upto is not None:
        batches.check(graph.views[view], upto)
    return batches.rows(graph.views[view])


def alone(spark: SparkSession, settings: Settings, graph: Graph, view: View, place: Place) -> DataFrame:
    """The rows that a view makes from one record, with otherwise empty inputs."""
    starts, ends = (
        {place.topic: {place.partition: place.offset}},
        {place.topic: {place.partition: place.offset + 1}},
    )
    streams, topics = graph.inputs(view), Topics(settings.access)
    try:
        reads_it = {name: place.topic in topics.of(stream, graph) for name, stream in streams.items()}
    finally:
        topics.close()
    inputs = {
        name: source.batch(
            spark, settings.access, stream, graph, starts=starts, ends=ends if reads_it[name] else {}
        )
        for name, stream in streams.items()
    }
    return weights.carry_weights(f"view {view.name!r}", query.build(spark, view, inputs, streams))


class _Batches:
    """Computes views, each from its inputs up to one position of the log."""

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

    def rows(self, view: View) -> DataFrame:
        """The rows that a reader of the view would see: without hidden columns, and without deleted rows."""
        streams = self._graph.inputs(view)
        inputs = {parameter: self._input(stream) for parameter, stream in streams.items()}
        if self._plain is None:
            output = weights.carry_weights(
                f"view {view.name!r}", query.build(self._spark, view, inputs, streams)
            )
        else:
            output = plain_query.build(self._spark, view, inputs, streams, self._plain)
        wire.check(output, view)
        if wire.GONE in output.columns:
            output = output.where(~F.coalesce(F.col(wire.GONE), F.lit(False)))
        shown = output.drop(*[name for name in output.columns if name.startswith("_")])
        self._graph.learn(view, view_columns.columns_of(shown.schema))
        return shown

    def _input(self, stream: Stream) -> DataFrame:
        if stream.view:
            view = self._graph.views[stream.name]
            if self._upto is None or stream.topic not in self._upto.offsets:
                output = self.rows(view)
                weighs = stream.table and self._plain is None
                return output.withColumn(wire.WEIGHT, F.lit(1)) if weighs else output
            # Its rows come from its topic: only their types are needed here.
            output = _Batches(self._spark, self._settings, self._graph, self._upto).rows(view)
            stream = msgspec.structs.replace(stream, fields=view_columns.columns_of(output.schema))
        ends = None if self._upto is None else _ends(self._settings, self._graph, stream, self._upto)
        site = Site(1, lambda: self._spark.range(0).toDF("offset"))
        with building(site):
            rows = source.batch(
                self._spark, self._settings.access, stream, self._graph, ends=ends, without=self._left_out
            )
        if self._plain is None or not stream.table:
            return rows
        return plain_tables.final(rows, site.tables[-1].changes)

    def check(self, view: View, upto: Position) -> None:
        """Refuses a position that names no topic of a view."""
        topics = Topics(self._settings.access)
        try:
            input_topics = {
                topic
                for stream in self._streams(view)
                for topic in (topics.of(stream, self._graph) if stream.pattern else [stream.topic])
            }
        finally:
            topics.close()
        if not input_topics.intersection(upto.offsets):
            raise UsageError(
                f"the position names no topic of view {view.name!r}",
                got=", ".join(upto.offsets) or "none",
                expected=", ".join(stream.pattern or stream.topic for stream in self._streams(view)),
            )

    def _streams(self, view: View) -> Iterator[Stream]:
        """All inputs of a view, and those of the views that it reads."""
        yield from self._graph.inputs(view).values()
        for upstream in self._graph.upstream(view):
            yield from self._streams(upstream)


def records(rows: DataFrame, view: View) -> Iterator[tuple[str, bytes]]:
    """Rows of a view as records of its topic: key and value."""
    key, value = wire.expressions(rows.schema, view)
    for record in rows.selectExpr(f"{key} AS key", f"{value} AS value").toLocalIterator():
        yield record.key, record.value.encode()


def rows(app: App, settings: Settings) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of every view: {view: {key text: row}}, keys and rows as on the wire."""
    return {
        name: {key: msgspec.json.decode(value) for key, value in records(batch(app, settings, name), view)}
        for name, view in app.graph().views.items()
    }


def _ends(settings: Settings, graph: Graph, stream: Stream, upto: Position) -> Positions:
    """Where reading of a stream ends; a partition with nothing to read is left out."""
    topics = Topics(settings.access)
    try:
        wanted = _bounds(topics, graph, stream, upto)
    finally:
        topics.close()
    return {
        topic: kept
        for topic, partitions in wanted.items()
        if (kept := {number: end for number, (start, end) in partitions.items() if end > start})
    }


def _bounds(
    topics: Topics, graph: Graph, stream: Stream, upto: Position
) -> dict[str, dict[int, tuple[int, int]]]:
    """By topic and partition, where the log begins and where reading ends."""
    wanted: dict[str, dict[int, tuple[int, int]]] = {}
    for topic in topics.of(stream, graph):
        bounds = topics.bounds(topic) if upto.of(topic) else {}
        for number, offset in upto.of(topic).items():
            start, end = bounds.get(number, (0, 0))
            if offset > end:
                raise UsageError(
                    "the log ends before the position",
                    got=f"{topic}-{number} up to {offset:,}",
                    expected=f"at most {end:,}",
                )
            wanted.setdefault(topic, {})[number] = (start, offset)
    return wanted
