"""Samples: what the installation uses, every few seconds, and whether that stays flat.

Flat means: the median of the last third of the time is at most a tenth above that of the middle third, with a little slack for
small numbers. The first third is warming up. All thirds see the same faults at the same moments. Of starts, the median of the last third is at most a
quarter above that of the middle third, with a slack; CPU-seconds are judged, since other work on the machine stretches the wall time.
"""

import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from installation import PARTS, Installation, Start
from processes import Usage, mean, name, together
from scaled import Scaled

SAMPLE_S = 5.0
BLOCK_BYTES = 512
"""Of ``st_blocks``: a sparse file takes less room than its size."""
DISK_EVERY = 3
"""Every third sample walks through the folders too."""
FLAT = 1.1
START_FLAT = 1.25
SLACK = {
    "memory": 20.0,
    "open files": 8.0,
    "threads": 3.0,
    "processes": 2.0,
    "files": 30.0,
    "bytes": 2.0,
    "start": 3.0,
}
UNITS = {
    "memory": "MB",
    "open files": "files",
    "threads": "threads",
    "processes": "processes",
    "files": "files",
    "bytes": "MB",
    "start": "CPU-s",
}
GROWS = {
    "streams kept in full": "every record is kept",
    "stores outside: lake": "a file for each batch that is written",
    "view tables": "a row for each window of the day, and SQLite's write-ahead log up to 4 MB a file",
    "logs": "text for people",
}
"""What may grow with the day, and why."""
FOLDERS = {
    "checkpoints": "checkpoints and state",
    "copies": "copies of state",
    "views": "view tables",
    "logs": "logs",
}
"""Of the data folder."""


class Series(NamedTuple):
    """One measure of one thing, as pairs of seconds and value."""

    thing: str
    measure: str
    points: list[tuple[float, float]]


class Judgement(NamedTuple):
    thing: str
    measure: str
    middle: float
    last: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.last <= self.allowed

    def __str__(self) -> str:
        unit = UNITS[self.measure]
        return f"{self.thing}, {self.measure}: {self.middle:,.1f} {unit} in the middle third, {self.last:,.1f} in the last, allowed {self.allowed:,.1f}"


def judge(series: Series, seconds: float) -> Judgement | None:
    """The last third against the middle one; None when there is too little to compare."""
    return _judged(series.thing, series.measure, series.points, seconds, FLAT)


def judge_starts(starts: Sequence[Start], seconds: float) -> list[Judgement]:
    """Of each part that was started in both thirds."""
    kinds = sorted({each.what for each in starts})
    found = [
        _judged(
            what,
            "start",
            [(each.at_s, each.cpu_s) for each in starts if each.what == what],
            seconds,
            START_FLAT,
        )
        for what in kinds
    ]
    return [each for each in found if each is not None]


def _judged(
    thing: str, measure: str, points: Sequence[tuple[float, float]], seconds: float, factor: float
) -> Judgement | None:
    middle = [value for at, value in points if seconds / 3 <= at < 2 * seconds / 3]
    last = [value for at, value in points if 2 * seconds / 3 <= at]
    if not middle or not last:
        return None
    before, after = statistics.median(middle), statistics.median(last)
    return Judgement(thing, measure, before, after, max(before * factor, before + SLACK[measure]))


class Sampler(threading.Thread):
    """Looks at processes and folders until it is ended."""

    def __init__(self, installation: Installation, scaled: Scaled, elapsed: Callable[[], float]) -> None:
        super().__init__(daemon=True)
        self._installation = installation
        self._scaled = scaled
        self._elapsed = elapsed
        self._ended = threading.Event()
        self._points: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        self.segments: set[str] = set()
        """Every segment that was ever seen, as topic and file."""
        self.alive: set[str] = set()
        self.newest: dict[tuple[str, str], float] = {}

    def run(self) -> None:
        turn = 0
        while not self._ended.wait(SAMPLE_S):
            at = self._elapsed()
            for thing, usage in self._processes():
                for measure, value in zip(("memory", "open files", "threads"), usage, strict=True):
                    self._add(at, thing, measure, value)
            count = sum(len(self._installation.members(part)) for part in PARTS)
            self._add(at, "all parts", "processes", count)
            if turn % DISK_EVERY == 0:
                self._scaled.look()
                self._look_at_disk(at)
            turn += 1

    def end(self) -> None:
        self._ended.set()
        self.join(60)

    def series(self) -> list[Series]:
        return [Series(thing, measure, points) for (thing, measure), points in sorted(self._points.items())]

    def total(self, measure: str) -> float:
        """Of all folders, at the last look."""
        return sum(value for (_, each), value in self.newest.items() if each == measure)

    def _add(self, at: float, thing: str, measure: str, value: float) -> None:
        self._points[thing, measure].append((at, value))
        self.newest[thing, measure] = value

    def _processes(self) -> list[tuple[str, Usage]]:
        found: list[tuple[str, Usage | None]] = []
        for part in PARTS:
            members = self._installation.members(part)
            if part != "pipeline":
                found.append((part, together(members)))
                continue
            java = [pid for pid in members if name(pid) == "java"]
            workers = [pid for pid in members[1:] if pid not in java]
            found.append(("Spark's JVM", together(java)))
            found.append(("pipeline", together(members[:1])))
            found.append(("Spark's Python workers, each", mean(workers)))
        return [(thing, usage) for thing, usage in found if usage is not None]

    def _look_at_disk(self, at: float) -> None:
        sums: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        alive = set()
        for file in _files(self._installation.folder):
            try:
                size = file.stat().st_blocks * BLOCK_BYTES
            except OSError:
                continue
            thing = folder_of(file.relative_to(self._installation.folder), self._scaled.policies)
            sums[thing][0] += 1
            sums[thing][1] += size / 1e6
            if file.suffix == ".log" and file.parent.parent.name == "topics":
                alive.add(f"{topic_of(file.parent.name)}/{file.parent.name}/{file.name}")
        self.segments |= alive
        self.alive = alive
        for thing, (files, megabytes) in sums.items():
            self._add(at, thing, "files", files)
            self._add(at, thing, "bytes", megabytes)


def folder_of(file: Path, policies: Mapping[str, str]) -> str:
    """What a file is counted with, by its path below the folder of the day."""
    parts = file.parts
    if parts[0] == "stores":
        return f"stores outside: {Path(parts[1]).stem}"
    if parts[0] != "data":
        return "logs" if parts[0] == "logs" else "the shop's own files"
    if parts[1] == "topics" and len(parts) > 3:
        return policies.get(topic_of(parts[2]), "topics on the side")
    return FOLDERS.get(parts[1], "the rest of the data folder")


def topic_of(folder: str) -> str:
    """The topic of a partition's folder."""
    return folder.rpartition(".")[0].rpartition("-")[0]


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]
