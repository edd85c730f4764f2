"""A running `headwater demo` as a test sees it: a process, a folder, a console."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from support.servers import free_port, wait_until

READY_S = 150


class DemoProcess:
    """Started in a session of its own, so that every process it leaves is noticed."""

    def __init__(self, folder, seconds):
        self.folder = Path(folder)
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.out = self.folder.parent / "demo.out"
        command = [sys.executable, "-m", "headwater", "demo", "--data", str(self.folder), "--port", str(port)]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADWATER_")}
        environ |= {"HEADWATER_BROKER_PORT": "0", "TERM": "dumb", "COLUMNS": "150"}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--seconds", str(seconds)],
                stdout=out,
                stderr=out,
                env=environ,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def said(self):
        return self.out.read_text(errors="replace")

    def wait_for_rows(self, view, count):
        """Returns when the console has so many rows of a view."""
        wait_until(lambda: self._ended() or self._rows(view) >= count, READY_S, f"{count} rows of {view}")
        assert not self._ended(), self.said()

    def wait_for_end(self, seconds):
        return self.process.wait(seconds)

    def pid(self, part):
        return int((self.folder / "run" / f"{part}.pid").read_text())

    def driver(self):
        """The Spark driver's JVM: the Java process below the pipeline's."""
        return next(pid for pid in descendants(self.pid("pipeline")) if name(pid) == "java")

    def has_driver(self):
        return (self.folder / "run" / "pipeline.pid").exists() and any(
            name(pid) == "java" for pid in descendants(self.pid("pipeline"))
        )

    def parts(self):
        """Every process of the demo that is alive, found by the mark that all of them carry."""
        mark = f"HW_PART={self.folder}/".encode()
        return [pid for pid in processes() if mark in environ_of(pid)]

    def _ended(self):
        return self.process.poll() is not None

    def _rows(self, view):
        try:
            views = httpx.get(f"{self.url}/views", timeout=10).json()
        except httpx.HTTPError:
            return 0
        return {found["name"]: found["rows"] for found in views}.get(view, 0)


def processes():
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def environ_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(pid):
    parents = {}
    for other in processes():
        try:
            status = Path(f"/proc/{other}/status").read_text()
        except OSError:
            continue
        parents[other] = int(re.search(r"PPid:\s+(\d+)", status)[1])
    found, wave = [], [pid]
    while wave := [other for other, parent in parents.items() if parent in wave]:
        found += wave
    return found
