"""Doctor: looks at this machine and says what Headwater lacks on it, and what to do."""

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

from headwater import java
from headwater.access import Access
from headwater.client import Client
from headwater.config import Settings, load
from headwater.errors import HeadwaterError, MachineError
from headwater.pipeline import classes, jars

__all__ = ["Finding", "examine", "report"]

PYTHON_MIN = (3, 11)
DISK_FREE_MIN = 2 * 1024**3
MEMORY_MIN = 2 * 1024**3


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at: whether it is well, what was found, and what to do if not."""

    name: str
    ok: bool
    found: str
    advice: str = ""


def report() -> int:
    """Prints all findings as a table; 0 when all are well, else 1."""
    findings = list(examine())
    table = Table(title="headwater doctor", title_justify="left")
    for heading in ("", "looked at", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        sign = "[green]ok[/green]" if finding.ok else "[red]fail[/red]"
        table.add_row(sign, finding.name, finding.found, "" if finding.ok else finding.advice)
    Console().print(table)
    return 0 if all(finding.ok for finding in findings) else 1


def examine() -> Iterator[Finding]:
    """Everything that can be looked at; wrong settings end the list, since the rest depends on them."""
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
            advice="run 'make setup' or 'pip install headwater'",
        )
    return Finding("PySpark", wanted == f"pyspark=={version}", version, f"pip install '{wanted}'")


def _jars() -> Finding:
    folder = jars.cache()
    bad = [jar.file for jar in jars.COORDINATES if not _is_sound(folder / jar.file, jar.sha256)]
    found = f"{len(jars.COORDINATES) - len(bad)} of {len(jars.COORDINATES)} in {folder}"
    return Finding(
        "connector jars", not bad, found, f"missing or damaged: {', '.join(bad)}; 'make setup' fetches them"
    )


def _classes() -> Finding:
    """Nothing fails without them, so it is only said."""
    found = java.find()
    path = None if found is None else classes.find(found)
    if path is not None:
        return Finding("Spark's classes", ok=True, found=f"kept in {path}")
    return Finding(
        "Spark's classes",
        ok=True,
        found="not kept: 'headwater doctor --prepare' lets Spark start in half the time",
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
        yield _port("broker port", settings.host, settings.broker_port, "HEADWATER_BROKER_PORT")
        yield from _folder("data folder", settings.embedded)
    else:
        yield _server(settings.access)
    yield _port("console port", settings.console_host, settings.console_port, "HEADWATER_CONSOLE_PORT")
    yield from _folder("view folder", settings.views)


def _port(name: str, host: str, port: int, variable: str) -> Finding:
    try:
        with socket.create_server((host, port)):
            return Finding(name, ok=True, found=f"{port} is free")
    except OSError as error:
        return Finding(
            name,
            ok=False,
            found=f"{port}: {error.strerror}",
            advice=f"set {variable} to another port, or to 0",
        )


def _server(log: Access) -> Finding:
    try:
        Client(log, timeout_s=5).partitions()
    except MachineError as error:
        advice = "start that Kafka, or correct HEADWATER_LOG"
        return Finding("log", ok=False, found=f"{error.what}: {error.got}", advice=advice)
    return Finding("log", ok=True, found=f"{log} answers")


def _folder(name: str, folder: Path) -> Iterator[Finding]:
    """Can be written, and has room; the folder itself is not made, only what is above it is tried."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    yield _tried(
        name, existing, f"{folder} can be written", lambda: tempfile.TemporaryFile(dir=existing).close()
    )
    free = shutil.disk_usage(existing).free
    yield Finding(
        f"{name}: room", free >= DISK_FREE_MIN, f"{free / 1024**3:.0f} GiB free", "free at least 2 GiB"
    )


def _tried(name: str, place: Path, well: str, act: Callable[[], None]) -> Finding:
    try:
        act()
    except OSError as error:
        return Finding(
            name,
            ok=False,
            found=f"{place}: {error.strerror}",
            advice="give yourself the right to write there",
        )
    return Finding(name, ok=True, found=well)
