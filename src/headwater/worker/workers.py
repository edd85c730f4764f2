"""Workers: the workers of an application in one process, each with a loop in a thread of its own."""

import contextlib
import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from headwater.access import Log
from headwater.declare.graph import Graph
from headwater.declare.spec import Worker
from headwater.errors import HeadwaterError, UsageError, one_line
from headwater.health.board import BoardFile
from headwater.health.condition import Condition, PartStatus, WorkStatus
from headwater.health.pauses import Pauses
from headwater.worker.loop import Loop

__all__ = ["KIND", "Workers"]

KIND = "workers"
"""The process, and the folder of its pauses."""
JOIN_S = 15.0
LOOK_S = 0.2

logger = logging.getLogger(__name__)


class Workers:
    """Runs the named workers, or all. One that can never run logs why, and does not disturb the others.

    One that ended for another reason than a wrong declaration is started again, after a pause that grows up
    to a minute. If the handlers of one hang, the whole process ends: nothing else frees their threads.
    """

    def __init__(
        self, log: Log, graph: Graph, data: Path, names: Sequence[str] = (), *, partitions: int = 2
    ) -> None:
        unknown = [name for name in names if name not in graph.workers]
        if unknown:
            raise UsageError(
                f"application {graph.name!r} has no worker {unknown[0]!r}",
                hint=f"workers are: {', '.join(graph.workers) or 'none'}",
            )
        if not graph.workers:
            raise UsageError(
                f"application {graph.name!r} has no workers", hint="declare one with @app.worker(...)"
            )
        self._log = log
        self._graph = graph
        self._partitions = partitions
        self._pauses = Pauses(data, KIND)
        self._workers = [worker for name, worker in graph.workers.items() if not names or name in names]
        self._failures: dict[str, UsageError] = {}
        self._hung: HeadwaterError | None = None
        self._conditions = {worker.name: Condition() for worker in self._workers}
        self._lock = threading.Lock()
        """For the conditions."""
        self._loops: dict[str, Loop] = {}

    def run(self, stop: threading.Event, *, forever: bool = False, board: BoardFile | None = None) -> None:
        """Runs until ``stop`` is set, and says on the board how each worker is.

        Without ``forever`` it also ends when no worker can run any more, with the error of the first.
        """
        with contextlib.suppress(OSError):  # a full disk: only the check of names in commands needs it
            self._pauses.note(worker.name for worker in self._workers)
        over = threading.Event()
        threads = []
        for worker in self._workers:
            name = f"worker {worker.name}"
            threads.append(threading.Thread(target=self._follow, args=(worker, over), name=name, daemon=True))
            threads[-1].start()
        while not stop.wait(LOOK_S) and self._hung is None:
            if not forever and not any(thread.is_alive() for thread in threads):
                break
            if board is not None:
                board.write(self._statuses())
        over.set()
        for loop in list(self._loops.values()):
            loop.stop()
        for thread in threads:
            thread.join(JOIN_S)
        if board is not None:
            board.remove()
        if self._hung is not None:
            raise self._hung
        if self._failures and not stop.is_set():
            raise next(iter(self._failures.values()))

    def _follow(self, worker: Worker, over: threading.Event) -> None:
        condition = self._conditions[worker.name]
        while not over.is_set():
            with self._lock:
                condition.begin()
            try:
                loop = self._loop(worker)
                if not over.is_set():
                    loop.run()
            except UsageError as error:
                logger.error("worker %s cannot run: %s", worker.name, error)  # noqa: TRY400  it says enough
                self._failures[worker.name] = error
                with self._lock:
                    condition.end(one_line(error), heals=False)
                return
            except Exception as error:
                ours = isinstance(error, HeadwaterError)
                logger.log(logging.ERROR, "worker %s ended: %s", worker.name, error, exc_info=not ours)
                with self._lock:
                    condition.end(one_line(error) or repr(error))
                if isinstance(error, HeadwaterError) and self._loops[worker.name].is_hung:
                    self._hung = error
                    return
                while not condition.is_due and not over.wait(LOOK_S):
                    pass

    def _loop(self, worker: Worker) -> Loop:
        loop = self._loops[worker.name] = Loop(
            self._log,
            self._graph,
            worker,
            partitions=self._partitions,
            paused=partial(self._pauses.is_paused, worker.name),
        )
        return loop

    def _statuses(self) -> list[PartStatus]:
        with self._lock:
            return [self._status(worker.name) for worker in self._workers]

    def _status(self, name: str) -> PartStatus:
        condition, loop = self._conditions[name], self._loops.get(name)
        if loop is None:
            return condition.status("worker", name)
        if not condition.has_ended:
            if self._pauses.is_paused(name):
                condition.pause()
            elif loop.trouble:
                condition.fail(loop.trouble)
            elif loop.is_running:  # before that it is starting
                condition.work()
        counts = loop.counts
        status = condition.status("worker", name, lag_records=loop.lag_records)
        work = WorkStatus(counts.handled, counts.retried, counts.dead, counts.in_work)
        return msgspec.structs.replace(status, work=work)
