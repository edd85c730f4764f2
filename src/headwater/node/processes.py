"""Processes with a mark: a child of the supervisor and all its descendants, found by their environment."""

import os
import signal
import threading
from pathlib import Path
from typing import BinaryIO

from headwater.clock import SystemClock

__all__ = ["MARK", "end_marked", "end_with_supervisor", "marked"]

MARK = "HW_PART"
"""Environment variable of a child and all its descendants, by which remaining processes are found."""
ORPHAN_GRACE_S = 10.0
END_S = 10.0
TICK_S = 0.01


def end_with_supervisor(stdin: BinaryIO | None = None) -> None:
    """For a child: ends this process and its descendants when the supervisor's end of the pipe closes."""
    descriptor = stdin.fileno() if stdin else 0

    def wait() -> None:
        while os.read(descriptor, 1_024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(ORPHAN_GRACE_S)
        end_marked(os.environ.get(MARK, ""), spare=os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="pipe to the supervisor", daemon=True).start()


def end_marked(mark: str, spare: int = 0) -> None:
    """Kills every process with the mark, and returns when none is left, or after ``END_S``."""
    clock = SystemClock()
    limit = clock.monotonic() + END_S
    while (left := [pid for pid in marked(mark) if pid != spare]) and clock.monotonic() < limit:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        threading.Event().wait(TICK_S)


def marked(mark: str) -> list[int]:
    """The processes with the mark in their environment; zombies have no environment and do not count."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environ:
            pids.append(int(folder.name))
    return pids
