"""Supervisor: child processes that are started, watched, restarted and ended together.

A child lives in a session of its own and holds one end of a pipe as its standard input. When the
supervisor dies, however it dies, the pipe closes and the child ends itself: nothing is orphaned. When
a child dies, all that is left of it (a Spark JVM, Python workers) is killed before its successor
starts, so that no ghost writes beside it.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from headwater.clock import Clock, SystemClock
from headwater.errors import CaptureError, Fenced, HeadwaterError, MachineError, StorageError, UsageError

__all__ = ["MARK", "Interrupted", "Part", "Supervisor", "end_marked", "end_with_supervisor", "marked"]

MARK = "HW_PART"
"""Environment variable that a child and all its descendants carry: how the leftovers are found."""
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits before each restart in a row; a child that fails once more is given up."""
STEADY_S = 60.0
"""A child that lived this long starts over with no failures counted."""
STOP_S = 20.0
ORPHAN_GRACE_S = 10.0
END_S = 10.0
TICK_S = 0.1
LOG_LINES = 12
LOG_TAIL_BYTES = 8_192


class Interrupted(Exception):  # noqa: N818 (not an error: somebody wants the end)
    """Raised out of a wait when ``stop`` is set."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of child: how to start it and how to tell that it is ready.

    ``ready`` may block for a second and must not raise. ``restart=False`` is for work that ends.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool] = lambda: True
    environ: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 60.0
    restart: bool = True


@dataclass(slots=True)
class _Child:
    part: Part
    process: subprocess.Popen[bytes] | None = None
    wanted: bool = True
    was_ready: bool = False
    ready_after_s: float = 0.0
    started: float = 0.0
    failures: int = 0
    restarts: int = 0
    retry_at: float = 0.0
    code: int | None = None


class Supervisor:
    """Owns its children: nobody else starts, stops or reaps them. Safe to call from any thread.

    Logs go to ``<folder>/logs/<name>.log``, process ids to ``<folder>/run/<name>.pid``. A child that
    fails more often in a row than ``backoff_s`` has waits, or at its first start for a reason that will not go away,
    makes the supervisor give up: ``check`` then raises the child's own last words.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock | None = None,
        *,
        stop: threading.Event | None = None,
        backoff_s: Sequence[float] = BACKOFF_S,
        stop_s: float = STOP_S,
    ) -> None:
        self.folder = folder.absolute()
        self._stop = stop or threading.Event()
        self._backoff_s = backoff_s
        self._stop_s = stop_s
        self._clock = clock or SystemClock()
        self._children: dict[str, _Child] = {}
        self._failure: HeadwaterError | None = None
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        for sub in ("logs", "run"):
            (self.folder / sub).mkdir(parents=True, exist_ok=True)

    def start(self, *parts: Part) -> None:
        """Starts the parts together and returns when all are ready; raises when one cannot be, or ``Interrupted``."""
        with self._lock:
            for part in parts:
                end_marked(self._mark(part.name))  # what a killed supervisor may have left behind
                self._log(part.name).unlink(missing_ok=True)
                child = self._children[part.name] = _Child(part)
                self._spawn(child)
        if not self._watcher.is_alive():
            self._watcher.start()
        for part in parts:
            self._await_ready(self._children[part.name])

    def ready_after_s(self, name: str) -> float:
        """Seconds from the first start of a child until it was ready."""
        return self._children[name].ready_after_s

    def restarts(self) -> dict[str, int]:
        """The children that were started again, and how often."""
        return {name: child.restarts for name, child in self._children.items() if child.restarts}

    def exit_code(self, name: str) -> int | None:
        """How a child without restart ended; None while it runs."""
        return self._children[name].code

    def check(self) -> None:
        """Raises what made the supervisor give up, if anything did."""
        if self._failure is not None:
            raise self._failure

    def stop(self, name: str) -> None:
        """Asks a child to end, waits ``stop_s`` and then kills it with all its descendants."""
        with self._lock:
            child = self._children.get(name)
            if child is None:
                return
            child.wanted = False
            process, child.process = child.process, None
        if process is not None:
            process.terminate()
            try:
                child.code = process.wait(self._stop_s)
            except subprocess.TimeoutExpired:
                process.kill()
                child.code = process.wait()
            _close(process)
        end_marked(self._mark(name))
        (self.folder / "run" / f"{name}.pid").unlink(missing_ok=True)

    def close(self) -> None:
        """Ends all children, the last one started first."""
        self._closing.set()
        for name in reversed(self._children):
            self.stop(name)
        if self._watcher.is_alive():
            self._watcher.join(STOP_S)

    def tail(self, name: str) -> str:
        """The last lines of a child's log."""
        return "\n".join(_last_lines(self._log(name)))

    def _await_ready(self, child: _Child) -> None:
        part, begun = child.part, self._clock.monotonic()
        while not child.was_ready:
            self.check()
            if part.ready():
                child.was_ready, child.ready_after_s = True, self._clock.monotonic() - begun
                return
            if self._clock.monotonic() - begun > part.ready_s:
                raise MachineError(
                    f"{part.name} was not ready within {part.ready_s:.0f} s",
                    got=self._words(part.name),
                    hint=f"see {self._log(part.name)}",
                )
            if self._stop.wait(TICK_S / 2):
                raise Interrupted

    def _watch(self) -> None:
        while not self._closing.wait(TICK_S):
            with self._lock:
                for child in list(self._children.values()):
                    if child.wanted and self._failure is None:
                        self._look_after(child)

    def _look_after(self, child: _Child) -> None:
        now = self._clock.monotonic()
        if child.process is None:
            if now >= child.retry_at:
                child.restarts += 1
                self._spawn(child)
            return
        code = child.process.poll()
        if code is None:
            return
        _close(child.process)
        child.process = None
        end_marked(self._mark(child.part.name))
        self._after_death(child, code, now)

    def _after_death(self, child: _Child, code: int, now: float) -> None:
        """Decides whether a child comes back: not when it was to end, nor when it will fail again."""
        if not child.part.restart:
            child.wanted, child.code = False, code
            if code != 0:
                self._failure = self._failed(child.part.name, code)
            return
        if now - child.started >= STEADY_S:
            child.failures = 0
        child.failures += 1
        hopeless = code in _FINAL or (not child.was_ready and code in _MEANING)
        if hopeless or child.failures > len(self._backoff_s):
            self._failure = self._failed(child.part.name, code)
            return
        child.retry_at = now + self._backoff_s[child.failures - 1]

    def _spawn(self, child: _Child) -> None:
        part = child.part
        with self._log(part.name).open("ab") as log:
            child.process = subprocess.Popen(
                part.argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **part.environ, MARK: self._mark(part.name)},
            )
        child.started = self._clock.monotonic()
        self._note_pid(part.name, child.process.pid)

    def _note_pid(self, name: str, pid: int) -> None:
        """Renamed into place: who reads the file sees the old number or the new one, never an empty file."""
        fresh = self.folder / "run" / f".{name}.pid"
        fresh.write_text(str(pid))
        fresh.replace(self.folder / "run" / f"{name}.pid")

    def _failed(self, name: str, code: int) -> HeadwaterError:
        """A child that speaks our language is quoted; of any other the log is shown."""
        words = self._words(name)
        ours = words.removeprefix("headwater: ")
        if code in _MEANING and ours != words:
            return _MEANING[code](ours)
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return MachineError(f"{name} ended with {how}", got=words, hint=f"see {self._log(name)}")

    def _words(self, name: str) -> str:
        lines = _last_lines(self._log(name))
        return next(
            (line for line in reversed(lines) if line.startswith("headwater: ")), lines[-1] if lines else ""
        )

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _mark(self, name: str) -> str:
        return f"{self.folder}/{name}"


_MEANING: dict[int, type[HeadwaterError]] = {
    kind.exit_code: kind for kind in (UsageError, MachineError, StorageError, CaptureError, Fenced)
}
_FINAL = {UsageError.exit_code, CaptureError.exit_code, Fenced.exit_code}
"""Exit codes of children that must not come back: nothing would be different, or a successor is at work."""


def end_with_supervisor(stdin: BinaryIO | None = None) -> None:
    """For a child: ends this process and its descendants once the supervisor's end of the pipe closes."""
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
    """Kills every process that carries the mark, and returns when none is left (or ``END_S`` have passed)."""
    clock = SystemClock()
    limit = clock.monotonic() + END_S
    while (left := [pid for pid in marked(mark) if pid != spare]) and clock.monotonic() < limit:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        threading.Event().wait(TICK_S / 10)


def marked(mark: str) -> list[int]:
    """Processes with the mark in their environment; a zombie has none and does not count."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environ:
            found.append(int(folder.name))
    return found


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def _last_lines(log: Path) -> list[str]:
    try:
        text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-LOG_LINES:]
