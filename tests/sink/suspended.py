"""A call that is suspended at one of its lines, as by SIGSTOP or a paused machine, while others continue."""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Suspended", "lines_run"]

LIMIT_S = 60.0


def lines_run(act: Callable[[], Any], file: str) -> int:
    """How many lines of a file are run by a call."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    _traced(act, file, step)
    return count


class Suspended:
    """Calls ``act`` in a thread and stops it before the n-th line of ``file`` that it runs.

    ``first`` is called in that thread before, and its result passed to ``act``: it creates objects that
    belong to one thread.
    """

    def __init__(self, first: Callable[[], Any], act: Callable[[Any], Any], file: str, line: int) -> None:
        self.error: Exception | None = None
        self._first = first
        self._act = act
        self._file = file
        self._left = line
        self._reached = threading.Event()
        self._resumed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the line is reached."""
        assert self._reached.wait(LIMIT_S)

    def resume(self) -> None:
        """Lets it continue, and waits for its end; ``error`` is what it ended with."""
        self._resumed.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            made = self._first()
            _traced(lambda: self._act(made), self._file, self._step)
        except Exception as error:  # noqa: BLE001  the test looks at it
            self.error = error
        finally:
            self._reached.set()

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._reached.set()
            assert self._resumed.wait(LIMIT_S)


def _traced(act: Callable[[], Any], file: str, step: Callable[[], None]) -> None:
    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            step()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
