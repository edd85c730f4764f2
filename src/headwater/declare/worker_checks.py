"""Checks of the workers of an application: their sources, groups, handlers and the types of messages."""

import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, NamedTuple

from headwater.declare.backoff import Backoff
from headwater.declare.checks import check_name
from headwater.declare.duration import DURATION, duration_us
from headwater.declare.schema import Event, columns
from headwater.declare.spec import RESERVED, VIEW_GROUP, Stream, View, Worker
from headwater.errors import UsageError

__all__ = ["Handler", "check_workers", "handler_of", "message_type", "worker_topic"]

CONCURRENCY_MAX = 1_000
TIMEOUT_US_MAX = 86_400_000_000
GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""The group's dead letters are in a topic of its name."""

Sources = Mapping[str, Stream | View]


class Handler(NamedTuple):
    """How a handler is called."""

    takes_work: bool
    """Whether its second parameter is the message's `hw.Work`."""
    is_async: bool
    annotation: Any
    """Of its first parameter; None without one."""


def check_workers(workers: Sequence[Worker], sources: Sources) -> None:
    """Checks the workers: UsageError says what is wrong with the first bad one."""
    seen: set[str] = set()
    groups: dict[str, str] = {}
    for worker in workers:
        check_name("worker", worker.name, seen, hint="give one of them another name with name=")
        what = f"worker {worker.name!r}"
        _check_options(worker, what)
        other = groups.setdefault(worker.group, worker.name)
        if other != worker.name:
            raise UsageError(
                f"workers {other!r} and {worker.name!r} have one group and would take each other's messages",
                got=f"group {worker.group!r}",
                hint="give one of them another group=",
            )
        _check_source(worker, sources, what)
        message_type(worker, sources)


def worker_topic(worker: Worker, sources: Sources) -> str:
    """The topic whose messages a worker handles."""
    source = sources.get(worker.source)
    if source is None:
        return worker.topic
    return source.topic if isinstance(source, Stream) else source.name


def handler_of(worker: Worker) -> Handler:
    """How the worker's function is called; UsageError if it cannot be."""
    what = f"worker {worker.name!r}"
    try:
        parameters = list(inspect.signature(worker.function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what}: its handler is not a function", got=repr(worker.function)) from error
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variable]
    if not positional or any(p not in positional[:2] for p in needed):
        raise UsageError(
            f"{what}: its handler takes other parameters than a message",
            got=f"def {worker.function.__name__}{inspect.signature(worker.function)}",
            expected=f"def {worker.function.__name__}(message), or (message, ctx: hw.Work)",
        )
    try:
        hints = typing.get_type_hints(worker.function)
    except (NameError, TypeError, AttributeError) as error:
        raise UsageError(f"{what}: the types of its handler are not known", got=str(error)) from error
    return Handler(
        len(positional) > 1,
        inspect.iscoroutinefunction(worker.function),
        hints.get(positional[0].name),
    )


def message_type(worker: Worker, sources: Sources) -> type:
    """What a handler gets: a class derived from `hw.Event`, ``dict`` or ``bytes``."""
    what = f"worker {worker.name!r}"
    wanted = _without_none(handler_of(worker).annotation)
    source = sources.get(worker.source)
    declared = source.type if isinstance(source, Stream) else None
    if wanted is None or wanted is Any:
        if declared is None and source is None:
            raise UsageError(
                f"{what}: the type of the messages of topic {worker.topic!r} is not known",
                hint=f"annotate the first parameter of {worker.function.__name__}:"
                " with a class derived from hw.Event, dict or bytes",
            )
        return declared or dict
    if typing.get_origin(wanted) is dict:
        wanted = dict
    is_event = isinstance(wanted, type) and issubclass(wanted, Event)
    if wanted not in {bytes, dict} and not is_event:
        raise UsageError(
            f"{what}: its handler takes messages of a type that no record has",
            got=repr(wanted),
            expected="a class derived from hw.Event, dict or bytes",
        )
    if is_event and declared is not None and wanted is not declared:
        raise UsageError(
            f"{what}: its handler takes another type than stream {worker.source!r} has",
            got=wanted.__name__,
            expected=f"{declared.__name__}, dict or bytes",
        )
    if is_event:
        columns(wanted)
    kind: type = wanted
    return kind


def _check_options(worker: Worker, what: str) -> None:
    if not isinstance(worker.group, str) or not GROUP.fullmatch(worker.group):
        raise UsageError(
            f"{what}: group= is wrong",
            got=repr(worker.group),
            expected="1 to 200 letters, digits, '.', '_', '-'",
        )
    if worker.group.startswith(VIEW_GROUP):
        raise UsageError(
            f"{what}: group {worker.group!r} begins with {VIEW_GROUP!r}, which is reserved",
            hint="choose another group=",
        )
    concurrency = worker.concurrency
    if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise UsageError(
            f"{what}: concurrency= is wrong",
            got=repr(concurrency),
            expected=f"1 to {CONCURRENCY_MAX} handlers",
        )
    if worker.order_by not in {"", "key"}:
        raise UsageError(f"{what}: order_by= is wrong", got=repr(worker.order_by), expected="'key', or none")
    if not isinstance(worker.park, bool):
        raise UsageError(f"{what}: park= is wrong", got=repr(worker.park), expected="True or False")
    if worker.park and not worker.order_by:
        raise UsageError(
            f"{what}: park=True keeps the order of keys, which this worker does not",
            got="no order_by=",
            expected="order_by='key'",
        )
    if not isinstance(worker.timeout, str) or not DURATION.fullmatch(worker.timeout):
        raise UsageError(
            f"{what}: timeout= is not a duration",
            got=repr(worker.timeout),
            expected="a whole number and a unit, like '1 minute'",
        )
    if not 0 < duration_us(worker.timeout) <= TIMEOUT_US_MAX:
        raise UsageError(f"{what}: timeout= is wrong", got=repr(worker.timeout), expected="at most '1 day'")
    if not isinstance(worker.retry, Backoff):
        raise UsageError(
            f"{what}: retry= is wrong", got=repr(worker.retry), expected="hw.backoff('1s', attempts=5)"
        )


def _check_source(worker: Worker, sources: Sources, what: str) -> None:
    if bool(worker.source) == bool(worker.topic):
        raise UsageError(
            f"{what} has {'both a source and topic=' if worker.source else 'no source'}",
            expected="the name of a stream or of an append view, or topic='name' for any other topic",
        )
    if worker.topic:
        for ending in RESERVED:
            if worker.topic.endswith(ending) and ending != ".dead":
                raise UsageError(f"{what}: topic {worker.topic!r} ends in {ending!r}, which is reserved")
        return
    source = sources.get(worker.source)
    if source is None:
        near = get_close_matches(worker.source, sources, n=1)
        raise UsageError(
            f"{what}: there is no stream, table or view {worker.source!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"for a topic write topic={worker.source!r}",
        )
    if isinstance(source, Stream) and source.pattern is not None:
        raise UsageError(
            f"{what}: stream {worker.source!r} has a pattern of topics", expected="a stream with one topic"
        )
    retracts = source.table if isinstance(source, Stream) else not source.append
    if retracts:
        kind = "table" if isinstance(source, Stream) else "view"
        raise UsageError(
            f"{what}: {kind} {worker.source!r} replaces and removes rows, and its topic is compacted",
            expected="a stream, or a view with append=True",
            hint="a queue needs every record: compaction would remove messages that wait",
        )


def _without_none(annotation: Any) -> Any:
    """``bytes`` for ``bytes | None``."""
    if isinstance(annotation, UnionType) or typing.get_origin(annotation) is typing.Union:
        inner = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return inner[0] if len(inner) == 1 else annotation
    return annotation
