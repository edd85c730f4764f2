"""The doctor: it examines this machine for what Headwater needs, and says how to get what is missing."""

import hashlib
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from headwater.access import Access
from headwater.client.client import Client
from headwater.config import Settings, load
from headwater.declare.graph import Graph
from headwater.declare.spec import Stream
from headwater.errors import HeadwaterError, MachineError
from headwater.operate.machine.port_user import port_user
from headwater.pipeline.spark import class_archive, jars, java
from headwater.pipeline.topics import Topics

__all__ = ["Finding", "examine", "report"]

PYTHON_MIN = (3, 11)
DISK_FREE_MIN = 2 * 1024**3
MEMORY_MIN = 2 * 1024**3
ANSWER_S = 2.0
DAY_MS = 86_400_000
FOR_EVER = "for ever"
TOPICS_SHOWN_MAX = 10
"""How many topics of a pattern are shown."""
PIPE_WIDTH = 10_000
"""Only a terminal has a width: in a pipe no name is broken."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was examined: whether it is in order, what was found, and what to do if it is not."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def report(graph: Graph | None = None) -> int:
    """Prints all findings as a table; returns 0 if all are in order, else 1.

    ``graph``: an application whose streams are compared with the log.
    """
    findings = list(examine(graph))
    table = Table(title="headwater doctor", title_justify="left")
    for heading in ("", "examined", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        sign = "[green]ok[/green]" if finding.ok else "[red]fail[/red]"
        table.add_row(sign, finding.name, finding.found, "" if finding.ok else finding.advice)
    Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH).print(table)
    return 0 if all(finding.ok for finding in findings) else 1


def examine(graph: Graph | None = None) -> Iterator[Finding]:
    """All findings. Wrong settings end the list, since the rest depends on them."""
    yield from (_python(), _java(), _spark(), _jars(), _classes(), _memory())
    try:
        settings = load()
    except HeadwaterError as error:
        yield Finding(
            "settings", ok=False, found=error.what, advice=error.hint or f"expected {error.expected}"
        )
        return
    yield Finding("settings", ok=True, found=f"log {settings.log}, spark {settings.spark}")
    yield from _places(settings)
    if graph is not None:
        yield from _retention(graph, settings)


def _python() -> Finding:
    wanted = ".".join(map(str, PYTHON_MIN))
    return Finding(
        "Python",
        sys.version_info >= PYTHON_MIN,
        platform.python_version(),
        f"install Python {wanted} or newer",
    )


def _java() -> Finding:
    found = java.find()
    if found is None:
        return Finding("Java", ok=False, found="none that runs", advice=java.INSTALL)
    return Finding(
        "Java", found.version >= java.VERSION_MIN, f"{found.version} at {found.path}", java.INSTALL
    )


def _spark() -> Finding:
    try:
        version = metadata.version("pyspark")
        wanted = next(need for need in metadata.requires("headwater") or () if need.startswith("pyspark"))
    except metadata.PackageNotFoundError as error:
        return Finding(
            "PySpark",
            ok=False,
            found=f"{error.name} is not installed",
            advice="run 'pip install headwater'",
        )
    return Finding("PySpark", wanted == f"pyspark=={version}", version, f"pip install '{wanted}'")


def _jars() -> Finding:
    folder = jars.cache()
    bad = [jar.file for jar in jars.COORDINATES if not _is_sound(folder / jar.file, jar.sha256)]
    found = f"{len(jars.COORDINATES) - len(bad)} of {len(jars.COORDINATES)} in {folder}"
    return Finding(
        "connector jars",
        not bad,
        found,
        f"missing or damaged: {', '.join(bad)}; 'headwater doctor --prepare' fetches them",
    )


def _classes() -> Finding:
    """The archive of Spark's classes only makes it start faster, so its absence is not a failure."""
    found = java.find()
    path = None if found is None else class_archive.find(found)
    if path is not None:
        return Finding("Spark's classes", ok=True, found=f"archived in {path}")
    return Finding(
        "Spark's classes",
        ok=True,
        found="not archived: with 'headwater doctor --prepare' Spark starts in half the time",
    )


def _is_sound(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding(
        "memory", total >= MEMORY_MIN, f"{total / 1024**3:.1f} GiB", "Spark and the rest need about 2 GiB"
    )


def _places(settings: Settings) -> Iterator[Finding]:
    """Ports and folders of the settings."""
    if settings.embedded is not None:
        yield _port(settings, "broker port", settings.host, settings.broker_port, "HEADWATER_BROKER_PORT")
        yield from _folder("data folder", settings.embedded)
    else:
        yield _server(settings.access)
    yield _port(
        settings, "console port", settings.console_host, settings.console_port, "HEADWATER_CONSOLE_PORT"
    )
    yield from _folder("view folder", settings.views)


def _port(settings: Settings, name: str, host: str, port: int, variable: str) -> Finding:
    try:
        with socket.create_server((host, port)):
            return Finding(name, ok=True, found=f"{port} is free")
    except OSError as error:
        user = port_user(port)
        if user is None:
            return Finding(
                name,
                ok=False,
                found=f"{port}: {error.strerror}",
                advice=f"set {variable} to another port, or to 0",
            )
        ours = user.is_of(settings.data)
        advice = f"end that process, or set {variable} to another port, or to 0"
        return Finding(
            name,
            ok=ours,
            found=f"{port} is used by {'our own' if ours else ''} {user}".replace("  ", " "),
            advice=advice,
        )


def _retention(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """How long the log keeps the streams of an application, as far as it has them."""
    topics = Topics(settings.access, timeout_s=ANSWER_S)
    try:
        existing = topics.partitions()
        for stream in graph.streams.values():
            if stream.pattern is not None:
                yield from _kept_by_topics(topics, stream, graph)
            elif not stream.table and stream.topic in existing:
                yield _kept(topics, stream)
    except MachineError as error:
        yield Finding("streams", ok=True, found=f"not compared: {error.what}")
    finally:
        topics.close()


def _kept(topics: Topics, stream: Stream) -> Finding:
    """How long the topic of a stream is kept, beside what the stream declares."""
    kept_ms = int(topics.config(stream.topic)["retention.ms"])
    return Finding(
        f"stream {stream.name}",
        ok=kept_ms == stream.retention_ms,
        found=f"kept {_time(kept_ms)}",
        advice=f"declared: kept {stream.retention or FOR_EVER}; the start of the application changes an "
        f"embedded log, and in a Kafka set retention.ms={stream.retention_ms} of topic {stream.topic}",
    )


def _kept_by_topics(topics: Topics, stream: Stream, graph: Graph) -> Iterator[Finding]:
    """How long each topic of a pattern is kept. The stream declares nothing, so nothing is wrong."""
    matching = topics.of(stream, graph)
    for name in matching[:TOPICS_SHOWN_MAX]:
        kept_ms = int(topics.config(name)["retention.ms"])
        yield Finding(f"stream {stream.name}", ok=True, found=f"topic {name} is kept {_time(kept_ms)}")
    if len(matching) > TOPICS_SHOWN_MAX:
        left = len(matching) - TOPICS_SHOWN_MAX
        yield Finding(f"stream {stream.name}", ok=True, found=f"and {left} more topics")


def _time(kept_ms: int) -> str:
    return FOR_EVER if kept_ms < 0 else f"{kept_ms / DAY_MS:.3g} days"


def _server(log: Access) -> Finding:
    try:
        Client(log, timeout_s=5).partitions()
    except MachineError as error:
        advice = "start that Kafka, or correct HEADWATER_LOG"
        return Finding("log", ok=False, found=f"{error.what}: {error.got}", advice=advice)
    return Finding("log", ok=True, found=f"{log} answers")


def _folder(name: str, folder: Path) -> Iterator[Finding]:
    """Whether a folder can be written, or the nearest existing one above it, and has room.

    It is not created.
    """
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    yield _try(
        name, existing, f"{folder} can be written", lambda: tempfile.TemporaryFile(dir=existing).close()
    )
    free = shutil.disk_usage(existing).free
    yield Finding(
        f"{name}: room", free >= DISK_FREE_MIN, f"{free / 1024**3:.0f} GiB free", "free at least 2 GiB"
    )


def _try(name: str, place: Path, success: str, act: Callable[[], None]) -> Finding:
    try:
        act()
    except OSError as error:
        return Finding(
            name,
            ok=False,
            found=f"{place}: {error.strerror}",
            advice="get the right to write there, or choose another folder",
        )
    return Finding(name, ok=True, found=success)
