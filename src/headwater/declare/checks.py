"""Checks of what an application declares, before anything starts."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType

import msgspec

from headwater.declare.duration import DURATION, duration_us
from headwater.declare.lateness import ARRIVAL, Late
from headwater.declare.refusal import Refusal, refusal
from headwater.declare.schema import Row, columns
from headwater.declare.spec import RESERVED, Capture, Sink, Stream, View
from headwater.errors import UsageError

__all__ = [
    "WATERMARK",
    "check_captures",
    "check_horizon",
    "check_inputs",
    "check_kinds",
    "check_name",
    "check_names",
    "check_sinks",
    "check_stream",
    "check_tier",
    "check_topics",
    "check_view",
]


NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
EXACT = re.compile(r"BIGINT|STRING|BOOLEAN|TIMESTAMP|DATE|DECIMAL|BINARY")
"""Types whose values are equal exactly if their texts are equal."""
A_DURATION = "a whole number and a unit, like '10 minutes'"
WATERMARK = refusal(
    Refusal(
        what="{view} calls withWatermark",
        why="Headwater decides which records are late before Spark reads them, for all steps of a view",
        instead="declare how late records may be with the stream: delay=",
        example='orders.withWatermark("at", "1 second")',
    )
)


def check_name(kind: str, name: str, seen: set[str], hint: str = "choose another name") -> None:
    """UsageError for a name that topics cannot have, or that is in ``seen`` already. Adds it to ``seen``."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in {".", ".."}:
        raise UsageError(
            f"{kind} name {name!r} is not allowed",
            expected="1 to 200 letters, digits, '.', '_' or '-'",
        )
    if name in seen:
        raise UsageError(f"{kind} name {name!r} is already used", hint=hint)
    seen.add(name)


def check_kinds(spec: Stream | View) -> None:
    """UsageError for an argument that should be a text, or True or False, and is something else."""
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        expected = {str: "a text", str | None: "a text", bool: "True or False"}.get(field.type)
        is_right = isinstance(value, bool) if field.type is bool else isinstance(value, str | None)
        if expected is not None and not is_right:
            argument = "topic" if field.name == "topic_name" else field.name
            raise UsageError(
                f"{_kind(spec)} {spec.name!r}: {argument}= is wrong", got=repr(value), expected=expected
            )


def check_names(specs: Iterable[Stream | View]) -> None:
    """Checks the names of streams, tables and views, which are also names of topics."""
    seen: set[str] = set()
    for spec in specs:
        kind = _kind(spec)
        check_name(kind, spec.name, seen, hint="each stream, table and view needs a name of its own")
        for ending in RESERVED:
            if spec.name.endswith(ending):
                raise UsageError(
                    f"{kind} name {spec.name!r} ends in {ending!r}, which is reserved",
                    hint="choose another name",
                )


def check_sinks(sinks: Sequence[Sink], sources: Mapping[str, Stream | View]) -> None:
    """Checks the names of sinks, their sources, and that no two of them write to the same place."""
    seen: set[str] = set()
    places: dict[tuple[str, str], str] = {}
    for sink in sinks:
        check_name("sink", sink.name, seen, hint="give one of them another name with name=")
        source = sources.get(sink.source)
        if source is None:
            raise UsageError(
                f"sink {sink.name!r}: there is no stream, table or view {sink.source!r}",
                hint=_nearest(sink.source, sources),
            )
        if isinstance(source, Stream) and source.pattern is not None:
            raise UsageError(
                f"sink {sink.name!r}: stream {sink.source!r} has a pattern of topics",
                expected="a stream with one topic",
            )
        if hasattr(sink.target, "place"):
            place = sink.target.place(source.topic if isinstance(source, Stream) else source.name)
            other = places.setdefault((sink.target.kind, place), sink.name)
            if other != sink.name:
                raise UsageError(
                    f"sinks {other!r} and {sink.name!r} write to one place and would overwrite each other",
                    got=place,
                    hint="give one of them a table, path, index or topic of its own",
                )


def check_captures(captures: Sequence[Capture]) -> None:
    """Checks the names of captures and their databases."""
    seen: set[str] = set()
    for capture in captures:
        check_name("capture", capture.name, seen)
        capture.database.check(capture.name)


def _kind(spec: Stream | View) -> str:
    return "view" if isinstance(spec, View) else "table" if spec.table else "stream"


def check_stream(stream: Stream) -> None:
    """Checks a stream or table by itself."""
    what = f"{_kind(stream)} {stream.name!r}"
    kinds = {column.name: column.kind for column in columns(stream.type)}
    _check_type(stream, what)
    if not stream.key:
        raise UsageError(f"{what} has no key", expected=f"one or more of {', '.join(kinds)}")
    for name in stream.key:
        if name not in kinds:
            raise UsageError(
                f"{what}: key {name!r} is not a field of {stream.type.__name__}", hint=_nearest(name, kinds)
            )
        if stream.table and not EXACT.match(kinds[name]):
            raise UsageError(
                f"{what}: key {name!r} has a type that keys cannot have",
                got=kinds[name],
                expected="text, whole number, decimal, boolean, date, timestamp or bytes",
            )
    if stream.time != ARRIVAL and (stream.time or not stream.table):
        _check_event_time(stream, kinds)
    for name, length in (("delay", stream.delay), ("idle", stream.idle), ("retention", stream.retention)):
        if length is not None and not DURATION.fullmatch(length):
            raise UsageError(f"{what}: {name}= is not a duration", got=repr(length), expected=A_DURATION)
    if stream.pattern is not None:
        _check_pattern(stream, what)
    if stream.envelope not in {"", "debezium"}:
        raise UsageError(
            f"{what}: envelope= is wrong", got=repr(stream.envelope), expected="'debezium', or no envelope="
        )


def _check_type(stream: Stream, what: str) -> None:
    if not stream.view and stream.table != issubclass(stream.type, Row):
        base, of = ("hw.Row", "rows of a table") if stream.table else ("hw.Event", "events of a stream")
        raise UsageError(
            f"{what}: {stream.type.__name__} is not a type for the {of}",
            expected=f"class {stream.type.__name__}({base})",
        )


def _check_event_time(stream: Stream, kinds: Mapping[str, str]) -> None:
    what = f"{_kind(stream)} {stream.name!r}"
    times = [name for name, kind in kinds.items() if kind == "TIMESTAMP"]
    if not stream.time:
        raise UsageError(
            f"{what} has no time=, which names the field with the time of an event",
            expected=" or ".join(f"time={name!r}" for name in times)
            or f"a datetime field in {stream.type.__name__}",
            hint="time=hw.ARRIVAL uses the time of writing to the log instead, which is rarely right",
        )
    if stream.time not in kinds:
        raise UsageError(
            f"{what}: time {stream.time!r} is not a field of {stream.type.__name__}",
            hint=_nearest(stream.time, kinds),
        )
    if kinds[stream.time] != "TIMESTAMP":
        raise UsageError(
            f"{what}: time {stream.time!r} is not a datetime field",
            got=kinds[stream.time],
            expected=" or ".join(f"time={name!r}" for name in times) or "a datetime field",
        )


def _check_pattern(stream: Stream, what: str) -> None:
    if stream.topic_name is not None:
        raise UsageError(f"{what} has both topic= and pattern=", hint="give one of them")
    if stream.retention is not None:
        raise UsageError(
            f"{what} has both retention= and pattern=",
            hint="topics of a pattern keep their own settings: leave out retention=",
        )
    try:
        re.compile(stream.pattern or "")
    except re.error as error:
        raise UsageError(
            f"{what}: pattern {stream.pattern!r} is not a regular expression", got=str(error)
        ) from error


def check_topics(streams: Sequence[Stream], views: Sequence[View]) -> None:
    """Checks that no view writes to the topic of a stream or table."""
    taken = {stream.topic: f"{_kind(stream)} {stream.name!r}" for stream in streams if stream.pattern is None}
    for view in views:
        if view.name in taken:
            raise UsageError(
                f"view {view.name!r} would write to the topic of {taken[view.name]}",
                hint="rename the view",
            )


def check_view(view: View) -> None:
    """Checks a view by itself."""
    what = f"view {view.name!r}"
    if not view.key:
        raise UsageError(f"{what} has no key", hint="name the columns that identify a row: key=[...]")
    for name in view.key:
        if not name or name.startswith("_"):
            raise UsageError(
                f"{what}: key {name!r} is not allowed",
                expected="the name of a column, which does not begin with '_'",
            )
    if len(set(view.key)) != len(view.key):
        raise UsageError(f"{what}: key= names a column twice", got=", ".join(view.key))
    if not view.inputs:
        raise UsageError(
            f"{what} has no input",
            hint="its inputs are the parameters of its function, or the tables of its query",
        )
    if view.latency not in {"batch", "realtime"}:
        raise UsageError(
            f"{what}: latency= is wrong", got=repr(view.latency), expected="'batch' or 'realtime'"
        )
    if view.pace not in {"", "sink"}:
        raise UsageError(f"{what}: pace= is wrong", got=repr(view.pace), expected="'sink', or no pace=")
    if view.pace and view.latency == "realtime":
        raise UsageError(
            f"{what} runs in real time and cannot wait for its sinks",
            hint="leave out pace='sink' or latency='realtime'",
        )
    _check_rows(view, what)
    code = getattr(view.function, "__code__", None)
    if code is not None and _mentions(code, "withWatermark"):
        raise WATERMARK.error(view=what)


def _check_rows(view: View, what: str) -> None:
    if view.on_error not in {"skip", "stop"}:
        raise UsageError(f"{what}: on_error= is wrong", got=repr(view.on_error), expected="'skip' or 'stop'")
    if not isinstance(view.late, Late) or not DURATION.fullmatch(view.late.horizon):
        got = view.late.horizon if isinstance(view.late, Late) else view.late
        raise UsageError(
            f"{what}: late= is wrong",
            got=repr(got),
            expected="hw.late.drop(), hw.late.side() or hw.late.correct('1 day')",
        )
    if view.forget is not None and not DURATION.fullmatch(view.forget):
        raise UsageError(f"{what}: forget= is not a duration", got=repr(view.forget), expected=A_DURATION)
    if view.emit not in {"changes", "ready"}:
        raise UsageError(f"{what}: emit= is wrong", got=repr(view.emit), expected="'changes' or 'ready'")
    others = {
        "forget=": view.forget is not None,
        "append=True": view.append,
        "latency='realtime'": view.latency == "realtime",
    }
    arguments = [argument for argument, is_given in others.items() if is_given]
    if view.emit == "ready" and arguments:
        raise UsageError(
            f"{what}: emit='ready' cannot be combined with {arguments[0]}",
            hint="with emit='ready' a row is published when it is complete, and then stays",
        )
    if view.append and len(arguments) > 1:
        (other,) = (argument for argument in arguments[:2] if argument != "append=True")
        raise UsageError(
            f"{what}: append=True cannot be combined with {other}",
            hint="appended rows never change, and only views in batches can append them",
        )


def check_horizon(view: View, streams: Iterable[Stream]) -> None:
    """Checks that a view corrects at least the records that are not late."""
    for stream in streams:
        if stream.table or stream.view:
            continue
        if view.late.policy == "correct" and view.late.horizon_us < duration_us(stream.delay):
            raise UsageError(
                f"view {view.name!r}: the correction horizon is shorter than the stream's delay",
                got=f"late=hw.late.correct({view.late.horizon!r}),"
                f" and stream {stream.name!r} has delay={stream.delay!r}",
                expected="a horizon of at least the delay",
            )


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _mentions(inner, name) for inner in code.co_consts if isinstance(inner, CodeType)
    )


def resolved(view: View, declared: Iterable[Stream | View]) -> View:
    """A view whose query names its inputs as they are declared; SQL does not distinguish capital letters."""
    if view.query is None:
        return view
    names = [each.name for each in declared]
    inputs = {}
    for parameter, name in view.inputs.items():
        alike = [each for each in names if each.lower() == name.lower()]
        inputs[parameter] = alike[0] if name not in names and len(alike) == 1 else name
    return msgspec.structs.replace(view, inputs=inputs)


def check_inputs(view: View, declared: list[str]) -> None:
    """Checks that the inputs of a view are declared."""
    for name in view.inputs.values():
        if name not in declared:
            raise UsageError(f"view {view.name!r}: unknown input {name!r}", hint=_nearest(name, declared))


def check_tier(view: View, views: Mapping[str, View], inputs: Iterable[Stream]) -> None:
    """Checks what a view reads: a real-time view reads no table, and no view reads a real-time view.

    A real-time view has no state with which it could follow a table, and its own rows are in no defined
    order.
    """
    for source in inputs:
        if view.latency == "realtime" and (source.table or source.view):
            raise UsageError(
                f"view {view.name!r} cannot run in real time:"
                f" it reads {'view' if source.view else 'table'} {source.name!r}",
                hint="leave out latency='realtime'",
            )
        if source.view and views[source.name].latency == "realtime":
            inputs_of_source = ", ".join(views[source.name].inputs.values())
            raise UsageError(
                f"view {view.name!r} reads view {source.name!r}, which runs in real time",
                expected="a view in batches, since only its topic shows how far it is complete",
                hint=f"leave out latency='realtime' in {source.name!r}, or read {inputs_of_source}",
            )


def _nearest(name: str, names: Iterable[str]) -> str:
    listed = list(names)
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of {', '.join(listed)}" if listed else "none is declared"
