"""Copies: several processes of one command, each started again when it ends, for `headwater worker run`."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from headwater.errors import MachineError
from headwater.health.condition import Condition
from headwater.node.exits import FINAL

__all__ = ["run_copies"]

LOOK_S = 0.1
STOP_S = 30.0
"""Longer than a worker lets its handlers end."""


class _Copy:
    """One of the processes. Its input is a pipe from us, so that it ends when we do, for whatever reason."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self.condition = Condition()
        self.start()

    def start(self) -> None:
        self.condition.begin()
        self.process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, env=dict(os.environ))

    def look(self) -> int | None:
        """Starts it again if it has ended and may; returns the exit code of one that may not."""
        if self.condition.is_due:
            self.start()
        elif not self.condition.has_ended:
            code = self.process.poll()
            if code is None:
                self.condition.work()
            elif code in FINAL:
                return code
            else:
                self.condition.end(f"exit code {code}")
        return None

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.process.terminate()

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def run_copies(arguments: Sequence[str], count: int, stop: threading.Event) -> None:
    """Runs so many processes of a command of ours until ``stop`` is set, and lets each end its work.

    Raises MachineError if one says that it would only fail again; the others are ended then.
    """
    argv = [sys.executable, "-m", "headwater", *arguments]
    copies = [_Copy(argv) for _ in range(count)]
    final = None
    while not stop.wait(LOOK_S) and final is None:
        for copy in copies:
            final = copy.look() if final is None else final
    for copy in copies:
        copy.stop()
    for copy in copies:
        copy.wait()
    if final is not None:
        raise MachineError(f"a process cannot run, exit code {final}", hint="it has printed why")
