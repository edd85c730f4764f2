"""Call: one message given to its handler, and what came of it as an outcome."""

import logging
from collections.abc import Callable
from typing import Any

from headwater import own_frames
from headwater.declare.duration import pause_ms
from headwater.declare.graph import Graph
from headwater.declare.spec import Worker
from headwater.declare.worker_checks import handler_of
from headwater.errors import RejectError, RetryError, UsageError, one_line
from headwater.worker.message import InvalidError, reader_of
from headwater.worker.outcome import Deferred, Failed, Outcome, Rejected, Retry, Succeeded
from headwater.worker.work import Work
from headwater.worker.work_list import Task

__all__ = ["Call", "make_work"]

FRAMES_MAX = 20

logger = logging.getLogger(__name__)


class Call:
    """The handler of a worker. Any thread may call it; ``is_async`` says which method to use."""

    def __init__(self, graph: Graph, worker: Worker) -> None:
        handler = handler_of(worker)
        self.is_async = handler.is_async
        self._name = worker.name
        self._function: Callable[..., Any] = worker.function
        self._takes_work = handler.takes_work
        self._read = reader_of(graph, worker)
        self._has_warned = False

    def run(self, task: Task) -> Outcome:
        """Calls the handler in this thread."""
        try:
            self._check(self._function(*self._arguments(task)))
        except BaseException as error:  # noqa: BLE001  also SystemExit: a handler does not end the process
            return outcome_of(error)
        return _success(task.work)

    async def run_async(self, task: Task) -> Outcome:
        """Calls the handler on the event loop."""
        try:
            self._check(await self._function(*self._arguments(task)))
        except BaseException as error:  # noqa: BLE001  also CancelledError: it was given up
            return outcome_of(error)
        return _success(task.work)

    def _arguments(self, task: Task) -> tuple[Any, ...]:
        message = self._read(task.record.value)
        return (message, task.work) if self._takes_work else (message,)

    def _check(self, returned: object) -> None:
        if returned is not None and not self._has_warned:
            self._has_warned = True
            kind = type(returned).__name__
            what = "which is ignored; ctx.write(...) writes"
            logger.warning("worker %s: its handler returns a %s, %s", self._name, kind, what)


def make_work(task: Task, attempts: int) -> Work:
    return Work(task.topic, task.place[1], task.record, attempt=task.attempt, attempts=attempts)


def _success(work: Work) -> Outcome:
    return Succeeded() if work.deferred_ms is None else Deferred(work.deferred_ms)


def outcome_of(error: BaseException) -> Outcome:
    """What an exception of a handler, or of reading its message, means."""
    if isinstance(error, InvalidError):
        return Rejected(f"invalid: {error}")
    reason = f"{type(error).__name__}: {one_line(error)}"
    stack = "\n".join(map(str, own_frames.of_error(error)[-FRAMES_MAX:]))
    if isinstance(error, RejectError):
        return Rejected(reason, stack)
    if isinstance(error, RetryError):
        try:
            return Retry(pause_ms(error.after), reason, stack)
        except UsageError as wrong:
            return Failed(f"{type(error).__name__}: {wrong}", stack)
    return Failed(reason, stack)
