"""Graph: what an application declares, checked as a whole and drawn.

Every check is one sentence that says what is wrong and what to write instead; nothing has started by then.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, Literal

import msgspec

from headwater.errors import UsageError
from headwater.late import ARRIVAL, DURATION, Late, duration_us, side
from headwater.refusal import Refusal, refusal
from headwater.schema import Column, Event, columns

__all__ = ["RESERVED", "SINK_GROUP", "VIEW_GROUP", "WATERMARK", "Capture", "Graph", "Sink", "Stream", "View"]

RESERVED = (".progress", ".late", ".failed", ".ledger", ".invalid", ".dead", ".shed", ".shadow")
"""Endings of topics that Headwater writes beside a view or stream."""

VIEW_GROUP = "headwater."
SINK_GROUP = "headwater.sink."
"""What the consumer groups of views and sinks begin with; their names follow."""

NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
EXACT = re.compile(r"BIGINT|STRING|BOOLEAN|TIMESTAMP|DATE|DECIMAL|BINARY")
"""Kinds of columns that are the same whenever their text is."""


WATERMARK = refusal(
    Refusal(
        what="{view} calls withWatermark",
        why="which records are late is decided before Spark sees them, for all steps of a view alike",
        instead="say how late records may come where the stream is declared: delay=",
        example='orders.withWatermark("at", "1 second")',
    )
)


class Stream(msgspec.Struct, frozen=True):
    """A declared stream or table: one topic, or all topics that match a pattern. A view that others read is one to them."""

    name: str
    type: type[Event]
    key: tuple[str, ...]
    time: str
    delay: str
    topic_name: str | None = None
    pattern: str | None = None
    idle: str = "1 minute"
    table: bool = False
    """Whether the newest record of a key is its row, and one without value deletes it."""
    view: bool = False
    """Whether a view writes it."""
    fields: tuple[Column, ...] = ()
    """The columns of a view, which has no type."""
    envelope: Literal["", "debezium"] = ""
    """What the rows of a table are wrapped in by whoever captures them."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.fields if self.view else columns(self.type)

    @property
    def topic(self) -> str:
        """The topic of a stream without a pattern."""
        return self.topic_name or self.name


class View(msgspec.Struct, frozen=True):
    """A declared view: a function or a query, its key, and its inputs as {parameter: stream, table or view}."""

    name: str
    key: tuple[str, ...]
    inputs: dict[str, str]
    latency: Literal["batch", "realtime"] = "batch"
    function: Callable[..., Any] | None = None
    query: str | None = None
    late: Late = side()
    forget: str | None = None
    """How long a row stays that does not change; None: for ever."""
    append: bool = False
    """Whether each row is a record of its own, and none replaces another."""
    emit: Literal["changes", "ready"] = "changes"
    """Whether rows are published whenever they change, or once they are complete."""
    pace: Literal["", "sink"] = ""
    """Whether it reads no faster than those who follow its rows."""
    on_error: Literal["skip", "stop"] = "stop"
    """Whether a record that its query fails on is left out and published to ``<view>.failed``, or stops the view."""


class Sink(msgspec.Struct, frozen=True):
    """A declared sink: a stream, table or view, and the store that is kept in step with it."""

    name: str
    source: str
    target: Any
    """Where to (``headwater.sink.store.Target``)."""


class Capture(msgspec.Struct, frozen=True):
    """A declared capture: a database whose tables become the topics ``<name>.<schema>.<table>``."""

    name: str
    database: Any
    """Where from (``headwater.capture.declared.Database``)."""


class Graph:
    """Streams and views by name, in build order. Building one checks it; a wrong one cannot be had."""

    def __init__(
        self,
        name: str,
        streams: Sequence[Stream],
        views: Sequence[View],
        sinks: Sequence[Sink] = (),
        captures: Sequence[Capture] = (),
    ) -> None:
        self.name = name
        _check_names([*streams, *views])
        self.streams = {stream.name: stream for stream in streams}
        self.views = {view.name: view for view in views}
        self._fields: dict[str, tuple[Column, ...]] = {}
        for stream in streams:
            _check_stream(stream)
        _check_topics(streams, views)
        for view in views:
            _check_view(view)
            _check_inputs(view, [*self.streams, *self.views])
        self.views = _ordered(self.views)
        for view in views:
            _check_tier(view, self.views, self.inputs(view).values())
            _check_horizon(view, self.inputs(view).values())
        self.sinks = {sink.name: sink for sink in sinks}
        _check_sinks(sinks, {**self.streams, **self.views})
        self.captures = {capture.name: capture for capture in captures}
        _check_captures(captures)

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
        """The views, in parts that read only what the parts before them write."""
        level: dict[str, int] = {}
        for name, view in self.views.items():
            level[name] = 1 + max((level[each.name] for each in self.upstream(view)), default=-1)
        return [
            [view for name, view in self.views.items() if level[name] == number]
            for number in range(max(level.values(), default=-1) + 1)
        ]

    def knows(self, view: View) -> bool:
        """Whether the columns of a view were learned."""
        return view.name in self._fields

    def learn(self, view: View, fields: tuple[Column, ...]) -> None:
        """Notes the columns of a view, which are known once Spark has seen its query: who reads it needs them."""
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

    def text(self, steps: Mapping[str, Sequence[str]] | None = None) -> str:
        """The drawing that ``headwater graph`` prints: each stream, table and view with the views that read it, and the steps of views if given."""
        lines = [self.name]
        width = max((len(view) for view in self.views), default=0)
        read = {name for view in self.views.values() for name in view.inputs.values()}
        sources: list[Stream | View] = [*self.streams.values()]
        sources += [view for view in self.views.values() if view.name in read]
        for source in sources:
            lines += ["", f"{source.name}  view" if isinstance(source, View) else _stream_line(source)]
            readers = [view for view in self.views.values() if source.name in view.inputs.values()]
            for view in readers:
                edge = "└─►" if view is readers[-1] else "├─►"
                lines.append(f"  {edge} {view.name:<{width}}  {_view_line(view, source.name)}")
        for sink in self.sinks.values():
            lines += ["", f"{sink.name}  sink · {sink.source} ─► {sink.target.kind}"]
        for name, each in (steps or {}).items():
            lines += ["", f"{name}  keeps", *(f"  {step}" for step in each or ["nothing but its rows"])]
        return "\n".join(lines)


def _stream_line(stream: Stream) -> str:
    if stream.table:
        time = f" · time {stream.time} · delay {stream.delay}" if stream.time else ""
        wrapped = f" · in {stream.envelope}'s envelope" if stream.envelope else ""
        return f"{stream.name}  table · topic {stream.topic} · key {', '.join(stream.key)}{time}{wrapped}"
    where = f"topics {stream.pattern}" if stream.pattern else f"topic {stream.topic}"
    time = "of arrival" if stream.time == ARRIVAL else stream.time
    return f"{stream.name}  {where} · key {', '.join(stream.key)} · time {time} · delay {stream.delay}"


def _view_line(view: View, shown: str) -> str:
    tier = "real time" if view.latency == "realtime" else "micro-batch"
    parts = [f"key {', '.join(view.key)}", "SQL" if view.query is not None else "Python", tier]
    if view.append:
        parts.append("append")
    if view.pace:
        parts.append(f"pace of its {view.pace}s")
    others = sorted({name for name in view.inputs.values() if name != shown})
    return " · ".join([*parts, f"with {', '.join(others)}"] if others else parts)


def _check_names(specs: Iterable[Stream | View]) -> None:
    seen: dict[str, Stream | View] = {}
    for spec in specs:
        kind = _kind(spec)
        if not NAME.fullmatch(spec.name) or spec.name in {".", ".."}:
            raise UsageError(
                f"{kind} name {spec.name!r} is no topic name",
                expected="letters, digits, '.', '_' and '-', without '/'",
            )
        for ending in RESERVED:
            if spec.name.endswith(ending):
                raise UsageError(
                    f"{kind} name {spec.name!r} ends in {ending!r}",
                    hint="that ending is reserved, choose another name",
                )
        if spec.name in seen:
            raise UsageError(
                f"two declarations are named {spec.name!r}",
                hint="each stream, table and view needs a name of its own",
            )
        seen[spec.name] = spec


def _check_sinks(sinks: Sequence[Sink], sources: Mapping[str, Stream | View]) -> None:
    seen: set[str] = set()
    places: dict[tuple[str, str], str] = {}
    for sink in sinks:
        if not NAME.fullmatch(sink.name):
            raise UsageError(
                f"sink name {sink.name!r} is no name", expected="letters, digits, '.', '_' and '-'"
            )
        if sink.name in seen:
            raise UsageError(f"two sinks are named {sink.name!r}", hint="give one of them another with name=")
        seen.add(sink.name)
        source = sources.get(sink.source)
        if source is None:
            raise UsageError(
                f"sink {sink.name!r}: {sink.source!r} is no stream, table or view",
                hint=_nearest(sink.source, sources),
            )
        if isinstance(source, Stream) and source.pattern is not None:
            raise UsageError(
                f"sink {sink.name!r}: stream {sink.source!r} is a pattern of topics", expected="one topic"
            )
        if hasattr(sink.target, "place"):
            place = sink.target.place(source.topic if isinstance(source, Stream) else source.name)
            other = places.setdefault((sink.target.kind, place), sink.name)
            if other != sink.name:
                raise UsageError(
                    f"sinks {other!r} and {sink.name!r} write to one place, and each would undo what the other does",
                    got=place,
                    hint="give one of them a table, path, index or topic of its own",
                )


def _check_captures(captures: Sequence[Capture]) -> None:
    seen: set[str] = set()
    for capture in captures:
        if not NAME.fullmatch(capture.name):
            raise UsageError(
                f"capture name {capture.name!r} is no name", expected="letters, digits, '.', '_' and '-'"
            )
        if capture.name in seen:
            raise UsageError(f"two captures are named {capture.name!r}", hint="give one of them another name")
        seen.add(capture.name)
        capture.database.check(capture.name)


def _kind(spec: Stream | View) -> str:
    return "view" if isinstance(spec, View) else "table" if spec.table else "stream"


def _check_stream(stream: Stream) -> None:
    what = f"{_kind(stream)} {stream.name!r}"
    kinds = {column.name: column.kind for column in columns(stream.type)}
    if not stream.key:
        raise UsageError(f"{what} has no key", expected=f"one or more of {', '.join(kinds)}")
    for name in stream.key:
        if name not in kinds:
            raise UsageError(
                f"{what}: key {name!r} is no field of {stream.type.__name__}", hint=_nearest(name, kinds)
            )
        if stream.table and not EXACT.match(kinds[name]):
            raise UsageError(
                f"{what}: key {name!r} has no exact text",
                got=kinds[name],
                expected="text, whole numbers, decimals, booleans, dates, timestamps or bytes",
            )
    if stream.time != ARRIVAL and (stream.time or not stream.table):
        _check_event_time(stream, kinds)
    for name, length in (("delay", stream.delay), ("idle", stream.idle)):
        if not DURATION.fullmatch(length):
            raise UsageError(
                f"{what}: {name} is wrong",
                got=repr(length),
                expected="a number and a unit, like '10 minutes'",
            )
    if stream.pattern is not None:
        _check_pattern(stream, what)
    if stream.envelope not in {"", "debezium"}:
        raise UsageError(
            f"{what}: envelope is wrong", got=repr(stream.envelope), expected="'debezium', or none"
        )


def _check_event_time(stream: Stream, kinds: Mapping[str, str]) -> None:
    what = f"{_kind(stream)} {stream.name!r}"
    times = [name for name, kind in kinds.items() if kind == "TIMESTAMP"]
    if not stream.time:
        raise UsageError(
            f"{what} does not say when its events happened",
            expected=" or ".join(f"time={name!r}" for name in times)
            or f"a datetime field in {stream.type.__name__}",
            hint="time=hw.ARRIVAL goes by when records came into the log, which is hardly ever what you want",
        )
    if stream.time not in kinds:
        raise UsageError(
            f"{what}: time {stream.time!r} is no field of {stream.type.__name__}",
            hint=_nearest(stream.time, kinds),
        )
    if kinds[stream.time] != "TIMESTAMP":
        raise UsageError(
            f"{what}: time {stream.time!r} is no event time",
            got=kinds[stream.time],
            expected="a datetime field",
        )


def _check_pattern(stream: Stream, what: str) -> None:
    if stream.topic_name is not None:
        raise UsageError(f"{what} has both a topic and a pattern", hint="give one of them")
    try:
        re.compile(stream.pattern or "")
    except re.error as error:
        raise UsageError(
            f"{what}: pattern {stream.pattern!r} is no regular expression", got=str(error)
        ) from error


def _check_topics(streams: Sequence[Stream], views: Sequence[View]) -> None:
    taken = {stream.topic: f"{_kind(stream)} {stream.name!r}" for stream in streams if stream.pattern is None}
    for view in views:
        if view.name in taken:
            raise UsageError(
                f"view {view.name!r} would write the topic of {taken[view.name]}",
                hint="rename the view",
            )


def _check_view(view: View) -> None:
    if not view.key:
        raise UsageError(
            f"view {view.name!r} has no key", hint="name the columns that identify a row: key=[...]"
        )
    for name in view.key:
        if not name or name.startswith("_"):
            raise UsageError(
                f"view {view.name!r}: key {name!r} is no column of yours",
                expected="a name that does not begin with '_'",
            )
    if len(set(view.key)) != len(view.key):
        raise UsageError(f"view {view.name!r} names a key column twice", got=", ".join(view.key))
    if not view.inputs:
        raise UsageError(
            f"view {view.name!r} has no input",
            hint="its parameters (or the tables of its query) are its inputs",
        )
    if view.latency not in {"batch", "realtime"}:
        raise UsageError(
            f"view {view.name!r}: latency is wrong", got=repr(view.latency), expected="'batch' or 'realtime'"
        )
    if view.pace not in {"", "sink"}:
        raise UsageError(
            f"view {view.name!r}: pace is wrong", got=repr(view.pace), expected="'sink', or none"
        )
    if view.pace and view.latency == "realtime":
        raise UsageError(
            f"view {view.name!r} runs in real time and cannot wait for its sinks",
            hint="leave out pace='sink', or latency='realtime'",
        )
    _check_rows(view)
    if view.function is not None and _mentions(view.function.__code__, "withWatermark"):
        raise WATERMARK.error(view=f"view {view.name!r}")


def _check_rows(view: View) -> None:
    if view.on_error not in {"skip", "stop"}:
        raise UsageError(
            f"view {view.name!r}: on_error is wrong", got=repr(view.on_error), expected="'skip' or 'stop'"
        )
    if not isinstance(view.late, Late) or not DURATION.fullmatch(view.late.horizon):
        got = view.late.horizon if isinstance(view.late, Late) else view.late
        raise UsageError(
            f"view {view.name!r}: late is wrong",
            got=repr(got),
            expected="hw.drop(), hw.side() or hw.correct('1 day')",
        )
    if view.forget is not None and not DURATION.fullmatch(view.forget):
        raise UsageError(
            f"view {view.name!r}: forget is wrong",
            got=repr(view.forget),
            expected="a number and a unit, like '30 days'",
        )
    if view.emit not in {"changes", "ready"}:
        raise UsageError(
            f"view {view.name!r}: emit is wrong", got=repr(view.emit), expected="'changes' or 'ready'"
        )
    if view.emit == "ready" and (view.forget is not None or view.append or view.latency == "realtime"):
        got = "forget" if view.forget is not None else "append" if view.append else "latency='realtime'"
        raise UsageError(
            f"view {view.name!r} publishes complete rows and does something else",
            got=got,
            expected="emit='ready' alone: a row is published once it is complete, and stays",
        )
    if view.append and (view.forget is not None or view.latency == "realtime"):
        raise UsageError(
            f"view {view.name!r} appends and does something else",
            got="forget" if view.forget is not None else "latency='realtime'",
            expected="append=True alone: its rows are never changed, and Spark's batches publish them",
        )


def _check_horizon(view: View, streams: Iterable[Stream]) -> None:
    for stream in streams:
        if stream.table or stream.view:
            continue
        if view.late.policy == "correct" and view.late.horizon_us < duration_us(stream.delay):
            raise UsageError(
                f"view {view.name!r}: stragglers are waited for less than what is no straggler",
                got=f"late=hw.correct({view.late.horizon!r}), and stream {stream.name!r} has delay={stream.delay!r}",
                expected="a horizon of at least the delay",
            )


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType)
    )


def _check_inputs(view: View, known: list[str]) -> None:
    for name in view.inputs.values():
        if name not in known:
            raise UsageError(f"view {view.name!r}: unknown input {name!r}", hint=_nearest(name, known))


def _ordered(views: Mapping[str, View]) -> dict[str, View]:
    """The views, each behind those that it reads. Meeting one that is still being walked is a circle."""
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


def _check_tier(view: View, views: Mapping[str, View], inputs: Iterable[Stream]) -> None:
    """Rows of real-time views come in any order, and a real-time view itself keeps nothing with which it could follow a table."""
    for source in inputs:
        if view.latency == "realtime" and (source.table or source.view):
            raise UsageError(
                f"view {view.name!r} cannot run in real time: it reads {'view' if source.view else 'table'} {source.name!r}",
                hint="leave out latency='realtime'",
            )
        if source.view and views[source.name].latency == "realtime":
            raise UsageError(
                f"view {view.name!r} reads view {source.name!r}, which runs in real time",
                expected="a view in batches: its topic says up to where it is complete",
                hint=f"leave out latency='realtime' in {source.name!r}, or read {', '.join(views[source.name].inputs.values())}",
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(names) or 'none'}"
