"""What a declared sink reads: its topic, and the feed that its store is opened with.

Streams and tables say their columns by their type, views by their newest result. A real-time view has no results, so its target says them,
unless it takes rows as they are.
"""

from collections.abc import Mapping

from headwater import result
from headwater.client import Client
from headwater.errors import UsageError
from headwater.graph import Graph, Sink, Stream, View
from headwater.schema import columns
from headwater.sink.store import Feed

__all__ = ["check", "feed", "topic"]


def topic(graph: Graph, sink: Sink) -> str:
    source = _source(graph, sink)
    return source.topic if isinstance(source, Stream) else source.name


def check(graph: Graph, sink: Sink) -> None:
    """UsageError, before anything starts, for a sink that cannot be; of a view much is only known with its first result."""
    source = _source(graph, sink)
    given = _given(sink)
    if isinstance(source, View) and source.latency == "realtime" and given is None:
        raise UsageError(
            f"sink {sink.name!r}: the real-time view {source.name!r} does not say its columns",
            expected='columns={"total": "DOUBLE"} in its target, key columns included',
        )
    if isinstance(source, Stream) or given is not None:
        sink.target.check(_feed(source, sink, {}))


def feed(graph: Graph, sink: Sink, client: Client) -> Feed | None:
    """None while a view has no result yet."""
    source = _source(graph, sink)
    if isinstance(source, Stream) or _given(sink) is not None:
        return _feed(source, sink, {})
    newest = result.newest(client, source.name)
    if newest is None:
        return None
    if not newest.columns:
        raise UsageError(
            f"sink {sink.name!r}: the last result of view {source.name!r} does not say its columns",
            hint='start the pipeline anew, or give them: columns={"total": "DOUBLE"}',
        )
    return _feed(source, sink, newest.columns)


def _source(graph: Graph, sink: Sink) -> Stream | View:
    return graph.streams[sink.source] if sink.source in graph.streams else graph.views[sink.source]


def _given(sink: Sink) -> Mapping[str, str] | None:
    """The columns that a target says, none at all where it takes rows as they are; None where the source must say them."""
    said: Mapping[str, str] | None = getattr(sink.target, "columns", None)
    return said or (None if getattr(sink.target, "typed", True) else {})


def _feed(source: Stream | View, sink: Sink, found: dict[str, str]) -> Feed:
    given = _given(sink)
    if isinstance(source, Stream):
        kinds = given or {column.name: column.kind for column in columns(source.type)}
        return Feed(
            sink.name,
            source.topic,
            source.key,
            dict(kinds),
            append=not source.table,
            enveloped=bool(source.envelope),
        )
    shown = {name: kind for name, kind in (given or found).items() if not name.startswith("_")}
    realtime = source.latency == "realtime"
    return Feed(sink.name, source.name, source.key, shown, append=source.append, versioned=realtime)
