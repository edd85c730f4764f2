"""What each test costs in CPU-seconds, over all processes that it starts: ``pytest --cpu-report FILE``.

Wall time says little where rows of tests share a machine. A process belongs to the run if it has inherited MARK in its environment, however
its ancestors ended. A sample is taken every PAUSE_S and at the end of each test; what a process uses between the last sample and its end
is lost, which is a few hundredths of a second.
"""

import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["CpuReport"]

MARK = "TEST_CPU_REPORT"
PAUSE_S = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {
    b"SparkSubmit": "spark",
    b".daemon": "workers",
    b"kafka": "kafka",
    b"broker": "broker",
    b"java": "java",
    b"headwater": "headwater",
    b"postgres": "databases",
    b"mariadb": "databases",
    b"pytest": "pytest",
}
"""What a command line is called in the report, the first that fits."""


class Processes:
    """CPU-seconds by kind of process, of this process and all that descend from it."""

    def __init__(self) -> None:
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        os.environ[MARK] = self._mark.partition("=")[2]
        self._own = os.getpid()
        self._kinds: dict[tuple[int, int], tuple[bytes, str | None]] = {}
        """By process and its start: its name, and its kind; None is a stranger."""
        self._used: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()

    def sample(self) -> Counter[str]:
        with self._lock:
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    self._look(folder)
                except OSError:  # it has ended meanwhile
                    continue
            seconds_by_kind: Counter[str] = Counter()
            for process, seconds in self._used.items():
                seconds_by_kind[self._kinds[process][1] or ""] += seconds
            return seconds_by_kind

    def _look(self, folder: Path) -> None:
        name, _, rest = (folder / "stat").read_bytes().rpartition(b")")
        fields = rest.split()
        process = int(folder.name), int(fields[19])
        if process not in self._kinds or self._kinds[process][0] != name:  # it may have begun another program
            self._kinds[process] = name, self._kind(folder)
        if self._kinds[process][1] is not None:
            self._used[process] = (int(fields[11]) + int(fields[12])) / TICKS

    def _kind(self, folder: Path) -> str | None:
        environ = (folder / "environ").read_bytes()
        if not environ:  # a program that is just beginning has none yet, and a kernel thread never has
            raise ProcessLookupError
        if int(folder.name) != self._own and self._mark.encode() not in environ.split(b"\0"):
            return None
        command = (folder / "cmdline").read_bytes()
        return next((kind for part, kind in KINDS.items() if part in command), "others")


class CpuReport:
    """A plugin of pytest: a JSON object of tests, each with its seconds by kind of process, and its seconds by the clock as ``wall``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._processes = Processes()
        self._tests: dict[str, dict[str, float]] = {}
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sampling, daemon=True)

    def _sampling(self) -> None:
        while not self._ended.wait(PAUSE_S):
            self._processes.sample()

    def pytest_sessionstart(self) -> None:
        self._sampler.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before, began = self._processes.sample(), time.monotonic()
        try:
            return (yield)
        finally:
            used = self._processes.sample()
            used.subtract(before)
            cost = {kind: round(seconds, 2) for kind, seconds in used.items() if round(seconds, 2)}
            self._tests[item.nodeid] = cost | {"wall": round(time.monotonic() - began, 2)}
            self._file.write_text(json.dumps(self._tests, indent=0))

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
