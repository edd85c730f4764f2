"""Processes: what /proc says of a process and all that it has started."""

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Of one process, or of several together."""

    memory_mb: float
    files: float
    threads: float


def usage(pid: int) -> Usage | None:
    """None for a process that has ended."""
    try:
        status = _status(pid)
        files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return Usage(int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"]))
    except (OSError, KeyError):
        return None


def together(pids: list[int]) -> Usage | None:
    """The sums of several; None when all have ended."""
    found = [each for each in map(usage, pids) if each is not None]
    if not found:
        return None
    return Usage(*(sum(values) for values in zip(*found, strict=True)))


def mean(pids: list[int]) -> Usage | None:
    """Of processes that come and go: what one of them uses."""
    found = [each for each in map(usage, pids) if each is not None]
    if not found:
        return None
    return Usage(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def cpu_s(pids: list[int]) -> float:
    """CPU-seconds of processes so far, with those of their children that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_S


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def family(pid: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(_status(int(folder.name))["PPid"])
        except (OSError, KeyError):
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found, wave = [], [pid]
    while wave:
        found += wave
        wave = [child for each in wave for child in children.get(each, ())]
    return found


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
