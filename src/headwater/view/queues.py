"""Queues over HTTP: how much waits in each, and the messages themselves, read without locking them.

GET /queues                          all queues, as ``headwater queue list --json``
GET /queues/NAME                     one of them, partition by partition
GET /queues/NAME/messages            its first messages; ``?state=delayed``, ``?limit=20``
"""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from headwater.errors import UsageError

__all__ = ["QueuePages", "QueueReader", "UnknownQueueError", "no_queues"]

LIMIT, LIMIT_MAX = 20, 1_000


class UnknownQueueError(UsageError):
    """A name that no queue has: 404."""


class QueueReader(NamedTuple):
    """What reads the queues of the log. Each may be slow."""

    names: Callable[[], Sequence[str]]
    statuses: Callable[[str | None], Sequence[Any]]
    messages: Callable[[str, str | None, int], Sequence[Any]]


class QueuePages:
    """The answers, before they are written as JSON."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader

    async def queues(self, _request: Request) -> Any:
        return await run_in_threadpool(self._reader.statuses, None)

    async def queue(self, request: Request) -> Any:
        (status,) = await run_in_threadpool(self._reader.statuses, await self._name(request))
        return status

    async def messages(self, request: Request) -> Any:
        text = request.query_params.get("limit", str(LIMIT))
        if not text.isdecimal() or not 1 <= int(text) <= LIMIT_MAX:
            raise UsageError("limit is wrong", got=repr(text), expected=f"1 to {LIMIT_MAX}")
        wanted = await self._name(request), request.query_params.get("state"), int(text)
        return await run_in_threadpool(self._reader.messages, *wanted)

    async def _name(self, request: Request) -> str:
        name: str = request.path_params["name"]
        names = await run_in_threadpool(self._reader.names)
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"queues are: {', '.join(names) or 'none yet'}"
            raise UnknownQueueError(f"unknown queue {name!r}", hint=hint)
        return name


def no_queues() -> QueueReader:
    """For a console that knows no log."""
    return QueueReader(list, lambda _: (), lambda *_: ())
