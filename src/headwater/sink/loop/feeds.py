"""What a declared sink reads: its topic, and the feed with which its store is opened.

Streams and tables have their columns in their type, views in their newest result. A real-time view has no
results, so its target names them, unless the target takes rows with any columns.
"""

from collections.abc import Mapping

from headwater.client.client import Client
from headwater.declare.field_types import field_type
from headwater.declare.graph import Graph
from headwater.declare.schema import columns
from headwater.declare.spec import Sink, Stream, View
from headwater.errors import UsageError
from headwater.follow import results
from headwater.sink.store import SinkFeed

__all__ = ["check_sink", "sink_feed", "sink_topic"]


def sink_topic(graph: Graph, sink: Sink) -> str:
    source = _source(graph, sink)
    return source.topic if isinstance(source, Stream) else source.name


def check_sink(graph: Graph, sink: Sink) -> None:
    """UsageError, before anything starts, for an impossible sink.

    Columns of a view are checked with its first result.
    """
    source = _source(graph, sink)
    target_columns = _target_columns(sink)
    if isinstance(source, View) and source.latency == "realtime" and target_columns is None:
        raise UsageError(
            f"sink {sink.name!r}: the real-time view {source.name!r} has no result that names its columns",
            expected='columns={"total": "DOUBLE"} in its target, key columns included',
        )
    if isinstance(source, Stream) or target_columns is not None:
        sink.target.check(_feed(source, sink, {}))


def sink_feed(graph: Graph, sink: Sink, client: Client) -> SinkFeed | None:
    """The feed of a sink; None while a view has no result yet."""
    source = _source(graph, sink)
    if isinstance(source, Stream) or _target_columns(sink) is not None:
        return _feed(source, sink, {})
    newest = results.newest(client, source.name)
    if newest is None:
        return None
    if not newest.columns:
        raise UsageError(
            f"sink {sink.name!r}: the last result of view {source.name!r} does not name its columns",
            hint='restart the pipeline, or name them in the target: columns={"total": "DOUBLE"}',
        )
    return _feed(source, sink, newest.columns)


def _source(graph: Graph, sink: Sink) -> Stream | View:
    return graph.streams[sink.source] if sink.source in graph.streams else graph.views[sink.source]


def _target_columns(sink: Sink) -> Mapping[str, str] | None:
    """The columns that a target names, no columns if it takes any rows, None if the source must name them."""
    named: Mapping[str, str] | None = getattr(sink.target, "columns", None)
    return named or (None if getattr(sink.target, "typed", True) else {})


def _feed(source: Stream | View, sink: Sink, result_columns: dict[str, str]) -> SinkFeed:
    target_columns = _target_columns(sink)
    if isinstance(source, Stream):
        kinds = target_columns or {column.name: column.kind for column in columns(source.type)}
        return SinkFeed(
            sink.name,
            source.topic,
            source.key,
            dict(kinds),
            append=not source.table,
            enveloped=bool(source.envelope),
            type=field_type(source.type, lenient=bool(source.envelope)),
        )
    named = target_columns or result_columns
    shown = {name: kind for name, kind in named.items() if not name.startswith("_")}
    realtime = source.latency == "realtime"
    return SinkFeed(sink.name, source.name, source.key, shown, append=source.append, versioned=realtime)
