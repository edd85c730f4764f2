"""The graph of an application: all its declarations, checked together before anything starts."""

from collections.abc import Mapping, Sequence

from headwater.declare.checks import (
    check_captures,
    check_horizon,
    check_inputs,
    check_kinds,
    check_names,
    check_sinks,
    check_stream,
    check_tier,
    check_topics,
    check_view,
    resolved,
)
from headwater.declare.query.checks import check_query, check_sink_columns
from headwater.declare.query.shape import Shape, shape_of
from headwater.declare.schema import Column, Event
from headwater.declare.spec import Capture, Sink, Stream, View, Worker
from headwater.declare.worker_checks import check_workers
from headwater.errors import UsageError

__all__ = ["Graph"]


class Graph:
    """Streams and views by name, in an order in which they can be built.

    The constructor checks everything.
    """

    def __init__(
        self,
        name: str,
        streams: Sequence[Stream],
        views: Sequence[View],
        sinks: Sequence[Sink] = (),
        captures: Sequence[Capture] = (),
        *,
        workers: Sequence[Worker] = (),
    ) -> None:
        self.name = name
        check_names([*streams, *views])
        views = [resolved(view, [*streams, *views]) for view in views]
        for stream in streams:
            check_kinds(stream)
        for view in views:
            check_kinds(view)
        self.streams = {stream.name: stream for stream in streams}
        self.views = {view.name: view for view in views}
        self._fields: dict[str, tuple[Column, ...]] = {}
        for stream in streams:
            check_stream(stream)
        check_topics(streams, views)
        for view in views:
            check_view(view)
            check_inputs(view, [*self.streams, *self.views])
        self.views = _ordered(self.views)
        for view in views:
            check_tier(view, self.views, self.inputs(view).values())
            check_horizon(view, self.inputs(view).values())
        self.sinks = {sink.name: sink for sink in sinks}
        check_sinks(sinks, self.sources)
        self.captures = {capture.name: capture for capture in captures}
        check_captures(captures)
        self.workers = {worker.name: worker for worker in workers}
        check_workers(workers, self.sources)
        self._check_queries()

    def _check_queries(self) -> None:
        """Checks what the views compute, as far as its text shows; views that others read come first."""
        shapes: dict[str, Shape] = {name: shape_of(stream) for name, stream in self.streams.items()}
        for name, view in self.views.items():
            inputs = {parameter: shapes[source] for parameter, source in view.inputs.items()}
            shapes[name] = check_query(view, inputs)
        for sink in self.sinks.values():
            check_sink_columns(sink, shapes[sink.source], self.sources[sink.source].key)

    @property
    def sources(self) -> dict[str, Stream | View]:
        """What sinks and workers can read: streams, tables and views by name."""
        return {**self.streams, **self.views}

    @property
    def needs_spark(self) -> bool:
        """Whether something runs on Spark; nothing does in an application of workers alone."""
        return bool(self.views) or not self.workers

    def inputs(self, view: View) -> dict[str, Stream]:
        """The streams, tables and views that a view reads, by parameter name."""
        return {
            parameter: self.streams[name] if name in self.streams else self._stream_of(self.views[name])
            for parameter, name in view.inputs.items()
        }

    def upstream(self, view: View) -> list[View]:
        """The views that a view reads."""
        return [self.views[name] for name in dict.fromkeys(view.inputs.values()) if name in self.views]

    def levels(self) -> list[list[View]]:
        """The views in levels: a view reads only views of earlier levels."""
        level: dict[str, int] = {}
        for name, view in self.views.items():
            level[name] = 1 + max((level[upstream.name] for upstream in self.upstream(view)), default=-1)
        return [
            [view for name, view in self.views.items() if level[name] == number]
            for number in range(max(level.values(), default=-1) + 1)
        ]

    def knows(self, view: View) -> bool:
        """Whether the columns of a view are known."""
        return view.name in self._fields

    def learn(self, view: View, fields: tuple[Column, ...]) -> None:
        """Sets the columns of a view, which its readers need.

        They are known once Spark has analyzed its query.
        """
        self._fields[view.name] = fields

    def _stream_of(self, view: View) -> Stream:
        return Stream(
            view.name,
            Event,
            view.key,
            "",
            "0 seconds",
            table=not view.append,
            view=True,
            fields=self._fields.get(view.name, ()),
        )


def _ordered(views: Mapping[str, View]) -> dict[str, View]:
    """The views, each after those that it reads. UsageError for views that read each other in a circle."""
    done: dict[str, View] = {}

    def walk(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise UsageError(
                f"views read each other in a circle: {circle}", hint="a view cannot be its own input"
            )
        if name in views and name not in done:
            for source in views[name].inputs.values():
                walk(source, (*path, name))
            done[name] = views[name]

    for name in views:
        walk(name, ())
    return done
