"""The graph of an application as text, for ``headwater graph``."""

import re
from collections.abc import Mapping, Sequence

from headwater.declare.graph import Graph
from headwater.declare.lateness import ARRIVAL
from headwater.declare.spec import Capture, Stream, View, Worker

__all__ = ["drawing"]

EVENTS = "event."
"""What the topics of an outbox have after the name of the capture."""
PUBLIC = "public."
"""The schema of a PostgreSQL table that is declared without one."""


def drawing(graph: Graph, steps: Mapping[str, Sequence[str]] | None = None) -> str:
    """The drawing: streams, tables and views with readers, captures, sinks and workers; steps, if given."""
    lines = [graph.name]
    width = max((len(view) for view in graph.views), default=0)
    read = {name for view in graph.views.values() for name in view.inputs.values()}
    sources: list[Stream | View] = [*graph.streams.values()]
    sources += [view for view in graph.views.values() if view.name in read]
    for source in sources:
        lines += ["", f"{source.name}  view" if isinstance(source, View) else _stream_line(source)]
        readers = [view for view in graph.views.values() if source.name in view.inputs.values()]
        for view in readers:
            edge = "└─►" if view is readers[-1] else "├─►"
            lines.append(f"  {edge} {view.name:<{width}}  {_view_line(view, source.name)}")
    for capture in graph.captures.values():
        lines += ["", *_capture_lines(capture, graph)]
    for sink in graph.sinks.values():
        lines += ["", f"{sink.name}  sink · {sink.source} ─► {sink.target.kind}"]
    for worker in graph.workers.values():
        lines += ["", _worker_line(worker)]
    for name, of_view in (steps or {}).items():
        lines += ["", f"{name}  keeps", *(f"  {step}" for step in of_view or ["nothing but its rows"])]
    return "\n".join(lines)


def _capture_lines(capture: Capture, graph: Graph) -> list[str]:
    """A capture with its tables, and the streams and tables of the application that read its topics."""
    tables = _captured_tables(capture)
    readers = [stream for stream in graph.streams.values() if _is_captured(stream.topic, capture)]
    lines = [f"{capture.name}  capture · {capture.database.kind} · {', '.join(tables)}"]
    for stream in readers:
        edge = "└─►" if stream is readers[-1] else "├─►"
        lines.append(f"  {edge} {stream.name}  topic {stream.topic}")
    return lines


def _captured_tables(capture: Capture) -> list[str]:
    """The tables of a capture, as they are declared."""
    database = capture.database
    return list(map(str, getattr(database, "tables", None) or [getattr(database, "table", "")]))


def _is_captured(topic: str, capture: Capture) -> bool:
    """Whether a topic is that of a captured table, or of events of the outbox."""
    mark, _, name = topic.partition(".")
    if mark != capture.name:
        return False
    if getattr(capture.database, "outbox", None) and name.startswith(EVENTS):
        return True
    declared = [form for table in _captured_tables(capture) for form in (table, f"{PUBLIC}{table}")]
    return any(re.fullmatch(re.escape(form).replace(r"\*", "[^.]*"), name) for form in declared)


def _worker_line(worker: Worker) -> str:
    source = worker.source or f"topic {worker.topic}"
    parts = [f"{worker.name}  worker · {source} ─► {worker.function.__name__}()", f"group {worker.group}"]
    parts.append(f"{worker.concurrency} at once")
    if worker.order_by:
        parts.append(f"in order by {worker.order_by}")
    attempts = worker.retry.attempts
    return " · ".join([*parts, f"{attempts} attempt{'' if attempts == 1 else 's'}"])


def _stream_line(stream: Stream) -> str:
    if stream.table:
        time = f" · time {stream.time} · delay {stream.delay}" if stream.time else ""
        wrapped = f" · in {stream.envelope}'s envelope" if stream.envelope else ""
        return f"{stream.name}  table · topic {stream.topic} · key {', '.join(stream.key)}{time}{wrapped}"
    where = f"topics {stream.pattern}" if stream.pattern else f"topic {stream.topic}"
    time = "of arrival" if stream.time == ARRIVAL else stream.time
    line = f"{stream.name}  {where} · key {', '.join(stream.key)} · time {time} · delay {stream.delay}"
    if stream.pattern is not None:
        return f"{line} · kept as each topic says"
    return f"{line} · kept {'for ever' if stream.retention is None else stream.retention}"


def _view_line(view: View, shown: str) -> str:
    tier = "real time" if view.latency == "realtime" else "micro-batch"
    parts = [f"key {', '.join(view.key)}", "SQL" if view.query is not None else "Python", tier]
    if view.append:
        parts.append("append")
    if view.pace:
        parts.append(f"pace of its {view.pace}s")
    others = sorted({name for name in view.inputs.values() if name != shown})
    return " · ".join([*parts, f"with {', '.join(others)}"] if others else parts)
