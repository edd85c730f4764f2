"""Stores that are folders of this machine: where they are, and the lock that one writer at a time holds."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.clock import SystemClock
from headwater.errors import UnavailableError

__all__ = ["LocalFolder", "locked", "translated"]

RETRY_S = 0.02


class LocalFolder:
    """What the declarations of such stores have in common: each topic has the folder ``PATH/TOPIC``."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"

    def place(self, topic: str) -> str:
        return str((self._path / topic).resolve())


@contextmanager
def locked(file: Path, what: str, wait_s: float) -> Iterator[None]:
    """Holds the kernel's lock on a file, which the kernel releases when the process dies.

    UnavailableError after ``wait_s``, with the number of the process that holds the lock.
    """
    clock, pause = SystemClock(), threading.Event()
    limit = clock.monotonic() + wait_s
    with file.open("a+") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic() > limit:
                    handle.seek(0)
                    raise UnavailableError(
                        f"{what} is being written by another process",
                        got=f"process {handle.read() or 'unknown'}",
                        hint="if it hangs, end it",
                    ) from error
                pause.wait(RETRY_S)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns faults of the disk into UnavailableError: the disk may have room again, or be back, later."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{what} cannot be written", got=error.strerror or str(error)) from error
