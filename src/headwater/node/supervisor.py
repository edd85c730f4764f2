"""The supervisor: it starts, watches, restarts and ends child processes together.

A child has its own session, and one end of a pipe as its standard input. If the supervisor dies, for whatever
reason, the pipe closes and the child ends itself, so no process is orphaned. If a child dies, its remaining
processes (a Spark JVM, Python workers) are killed before its successor starts, so that they cannot write at
the same time.

A child that fails takes no other with it, and the supervisor never gives up: it starts a child again after
pauses that grow to a minute (`headwater.health.condition`). Only a child that says that it cannot run as it
is, by its exit code, stays stopped.
"""

import contextlib
import logging
import math
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater.child_log import ChildLog
from headwater.clock import Clock, SystemClock
from headwater.errors import HeadwaterError, MachineError, UsageError, one_line
from headwater.health.board import UP, BoardFile
from headwater.health.condition import Condition, PartStatus
from headwater.health.report import Report, read
from headwater.node.exits import ERROR_TYPES, FINAL, error_of
from headwater.node.processes import MARK, end_marked
from headwater.node.up_lock import UpLock

__all__ = ["Interrupted", "Part", "Supervisor"]

STOP_S = 20.0
TICK_S = 0.1
PROBE_S = 2.0
SILENT_PROBES = 3
"""After so many probes without an answer a child that runs counts as failing."""

START_S_MAX = 300.0
"""A child that is not ready after so long counts as failing; it is ready whenever it says so."""

logger = logging.getLogger(__name__)


class Interrupted(Exception):  # noqa: N818 (not an error: a requested end)
    """Raised out of a wait when ``stop`` is set."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of child: its command, and the check that it is ready.

    ``ready`` may block for a second. ``restart=False`` is for work that ends. Without a
    command it is nothing that the supervisor runs, but something that it watches.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool] = lambda: True
    environ: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 60.0
    restart: bool = True
    forget: Callable[[], None] = lambda: None
    """Called before each start: removes what an earlier process has left that ``ready`` may look at."""
    kind: str = "process"
    """As in a `PartStatus`."""
    members: tuple[tuple[str, str], ...] | None = None
    """Kind and name of each part that runs in it and has a condition of its own."""
    mended: frozenset[int] = frozenset()
    """Exit codes with which it is tried again, at long pauses, though by itself it would fail again."""
    probe: bool = False
    """Whether ``ready`` also says, while it runs, that it still works."""


@dataclass(slots=True)
class _Child:
    part: Part
    condition: Condition
    process: subprocess.Popen[bytes] | None = None
    is_noted: bool = False
    """Whether its process id is in its file."""
    wanted: bool = True
    was_ready: bool = False
    """Since its last start."""
    is_awaited: bool = True
    """Whether `Supervisor.start` waits for it still, and so raises its error."""
    has_worked: bool = False
    """Since its first one."""
    ready_after_s: float = 0.0
    begun_at: float = 0.0
    probed_at: float = -math.inf
    silent: int = 0
    """Probes in a row without an answer."""
    code: int | None = None


class Supervisor:
    """Owns its children: only it starts, stops or reaps them, and the only supervisor of its folder.

    Safe to call from any thread.

    Logs are in ``<folder>/logs/<name>.log``, process ids in ``<folder>/run/<name>.pid``, and what it knows of
    its children in ``run/up.parts.json``.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock | None = None,
        *,
        stop: threading.Event | None = None,
        condition: Callable[[Clock], Condition] = Condition,
        stop_s: float = STOP_S,
    ) -> None:
        """``condition`` makes the condition of a child, for tests that do not wait for pauses."""
        self.folder = folder.absolute()
        self._stop = stop or threading.Event()
        self._stop_s = stop_s
        self._clock = clock or SystemClock()
        self._new_condition = condition
        self._children: dict[str, _Child] = {}
        self._failure: HeadwaterError | None = None
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for name, run in (("supervisor", self._watch), ("supervisor's probes", self._probe))
        ]
        for sub in ("logs", "run"):
            (self.folder / sub).mkdir(parents=True, exist_ok=True)
        self._board = BoardFile(self.folder, UP, self._clock)
        self._folder_lock: UpLock | None = None

    def start(self, *parts: Part, patient: bool = False) -> None:
        """Starts the parts together and returns when all are ready.

        Raises the error of a part that cannot start, or ``Interrupted``; MachineError after ``ready_s``, and
        StorageError before anything is started or ended if another supervisor has the folder.
        ``patient``: returns instead after that time, and does not wait for a part that fails and will be
        tried again.
        """
        with self._lock:
            if self._folder_lock is None:
                self._folder_lock = UpLock(self.folder)
            for part in parts:
                end_marked(self._mark(part.name))  # processes that a killed supervisor has left running
                BoardFile(self.folder, part.name).remove()
                child = self._children[part.name] = _Child(part, self._new_condition(self._clock))
                self._spawn(child)
        if not self._threads[0].is_alive():
            for thread in self._threads:
                thread.start()
        for part in parts:
            self._await_ready(self._children[part.name], patient=patient)

    def ready_after_s(self, name: str) -> float:
        """The seconds from the first start of a child until it was ready."""
        return self._children[name].ready_after_s

    def restarts(self) -> dict[str, int]:
        """The number of restarts of each child that was restarted."""
        restarts = {name: child.condition.restarts for name, child in self._children.items()}
        return {name: count for name, count in restarts.items() if count}

    def exit_code(self, name: str) -> int | None:
        """The exit code of a child without restart; None while it runs."""
        return self._children[name].code

    def check(self) -> None:
        """Raises the error of a child that could not even start once, or whose work has failed."""
        if self._failure is not None:
            raise self._failure

    def report(self) -> Report:
        """How all parts are, those inside of the children too."""
        self._write_board()
        return read(self.folder, self._clock, own=self._board.said)

    def stop(self, name: str) -> None:
        """Terminates a child, and kills it with all its descendants if it has not ended after ``stop_s``."""
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
        for thread in self._threads:
            if thread.is_alive():
                thread.join(STOP_S)
        if self._folder_lock is not None:  # without it the board is that of another supervisor
            self._board.remove()
            self._folder_lock.release()
            self._folder_lock = None

    def tail(self, name: str) -> str:
        """The last lines of a child's log."""
        return "\n".join(self._log(name).tail())

    def _await_ready(self, child: _Child, *, patient: bool) -> None:
        part, begun = child.part, self._clock.monotonic()
        while not child.was_ready:
            self.check()
            if _is_ready(part):
                with self._lock:
                    child.was_ready, child.ready_after_s = True, self._clock.monotonic() - begun
                return
            is_over = self._clock.monotonic() - begun > part.ready_s
            if patient and (is_over or child.condition.state.is_bad):
                child.is_awaited = False
                return
            if is_over:
                raise MachineError(
                    f"{part.name} was not ready within {part.ready_s:.0f} s",
                    got=self._log(part.name).last_error(),
                    hint=f"see {self._log(part.name).path}",
                )
            if self._stop.wait(TICK_S / 2):
                raise Interrupted

    # ---- watching ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.wait(TICK_S):
            with self._lock:
                for child in list(self._children.values()):
                    if child.wanted:
                        self._keep(child)
            self._write_board()

    def _keep(self, child: _Child) -> None:
        """Looks after a child; whatever the machine refuses to it now is tried again, and ends no other."""
        try:
            self._look_after(child)
            self._log(child.part.name).rotate()
        except Exception as error:
            logger.exception("%s cannot be looked after", child.part.name)
            if child.process is None:
                child.condition.end(one_line(error))

    def _look_after(self, child: _Child) -> None:
        if not child.part.argv:
            return
        if child.process is None:
            if child.condition.is_due:
                self._spawn(child)
            return
        code = child.process.poll()
        if code is None:
            if not child.is_noted:
                self._note(child)
            if child.was_ready and child.silent < SILENT_PROBES:
                child.condition.work()
            return
        _close(child.process)
        child.process = None
        end_marked(self._mark(child.part.name))
        self._after_death(child, code)

    def _after_death(self, child: _Child, code: int) -> None:
        """Decides whether a child is restarted: not if its work is done, nor if it would fail again."""
        part, is_first = child.part, not child.was_ready and not child.condition.restarts
        child.has_worked |= child.was_ready
        child.was_ready, child.silent = False, 0
        error = error_of(part.name, code, self._log(part.name))
        if not part.restart:
            child.wanted, child.code = False, code
            if code != 0:
                self._failure = error
            return
        if is_first and child.is_awaited and code in ERROR_TYPES:
            self._failure = error
        may_be_mended = code in part.mended or (code == UsageError.exit_code and child.has_worked)
        child.condition.end(str(error), heals=may_be_mended or code not in FINAL, slowly=may_be_mended)

    def _probe(self) -> None:
        """Asks the children that can be asked whether they work, and notices that a child is ready again."""
        while not self._closing.wait(PROBE_S if self._all_ready() else TICK_S):
            for child in list(self._children.values()):
                runs = child.wanted and (child.process is not None or not child.part.argv)
                if runs and self._is_to_be_probed(child):
                    child.probed_at = self._clock.monotonic()
                    works = _is_ready(child.part)
                    with self._lock:
                        self._take_probe(child, works=works)

    def _is_to_be_probed(self, child: _Child) -> bool:
        """Always until it is ready, and then every `PROBE_S`, also while others are not."""
        waited_s = self._clock.monotonic() - child.probed_at
        return not child.was_ready or (child.part.probe and waited_s > PROBE_S - TICK_S)

    def _take_probe(self, child: _Child, *, works: bool) -> None:
        if child.condition.has_ended:
            return
        if works:
            child.was_ready, child.silent = True, 0
            child.condition.work()
            return
        child.silent += child.was_ready  # before that it is starting
        if not child.was_ready and self._clock.monotonic() - child.begun_at > START_S_MAX:
            child.condition.fail(f"it is not ready after {START_S_MAX:.0f} s")
        if child.silent >= SILENT_PROBES:
            child.condition.fail("it does not answer")

    def _all_ready(self) -> bool:
        """Whether none is starting now."""
        return all(
            child.was_ready or not child.wanted or child.condition.has_ended
            for child in list(self._children.values())
        )

    def _write_board(self) -> None:
        with self._lock:
            members = {
                child.part.name: list(child.part.members)
                for child in self._children.values()
                if child.part.members is not None
            }
            self._board.write(self._statuses(), members)

    def _statuses(self) -> list[PartStatus]:
        return [
            child.condition.status(
                child.part.kind, child.part.name if child.part.kind == "process" else child.part.kind
            )
            for child in self._children.values()
            if child.part.restart and child.wanted
        ]

    # ---- processes -----------------------------------------------------------------------------------------

    def _spawn(self, child: _Child) -> None:
        part = child.part
        child.condition.begin()
        child.begun_at = self._clock.monotonic()
        part.forget()
        if not part.argv:
            return
        with self._log(part.name).open(part.name, self._clock.now_ms()) as log:
            child.process = subprocess.Popen(
                part.argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **part.environ, MARK: self._mark(part.name)},
            )
        self._note(child)

    def _note(self, child: _Child) -> None:
        """Notes the process id. A full disk keeps no child from running: it is noted once there is room."""
        child.is_noted = False
        if child.process is not None:
            with contextlib.suppress(OSError):
                self._note_pid(child.part.name, child.process.pid)
                child.is_noted = True

    def _note_pid(self, name: str, pid: int) -> None:
        """Writes the process id by a rename, so that a reader never sees an empty file."""
        fresh = self.folder / "run" / f".{name}.pid"
        fresh.write_text(str(pid))
        fresh.replace(self.folder / "run" / f"{name}.pid")

    def _log(self, name: str) -> ChildLog:
        return ChildLog(self.folder / "logs" / f"{name}.log")

    def _mark(self, name: str) -> str:
        return f"{self.folder}/{name}"


def _is_ready(part: Part) -> bool:
    """A check that fails in a way that was not foreseen is one without an answer."""
    try:
        return part.ready()
    except Exception:
        logger.exception("%s cannot be asked whether it works", part.name)
        return False


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
