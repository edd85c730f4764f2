"""The console's HTTP: views as JSON, changes as server-sent events, and two pages.

    GET /                       the page that lists the views
    GET /live/NAME              the page that draws one view
    GET /views                  all views: name, key columns, rows, position
    GET /views/NAME?…           the rows of one (filters, order, limit, at_least, merge: see `tables.query`)
    GET /views/NAME/changes     its changes as they commit; ``Last-Event-ID`` or ``?since=`` resumes
    GET /queues…                queues and their messages: see `headwater.view.queues`
    GET /activity               the numbers of the first page, as they change
    GET /health                 200 while no part of the application fails, otherwise 503; with all parts
    GET /ready                  200 once every part runs, otherwise 503; with all parts

`headwater.view.guard` decides who may ask. Rows and views have the time up to which they are ``complete``
(`headwater.view.tables.completeness`). Errors are JSON: ``{"error": one line, "what", "got", "expected",
"hint"}``.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headwater.errors import HeadwaterError, MachineError, NotReachedError, StorageError, UsageError
from headwater.health.report import Report
from headwater.result import LeftOut
from headwater.view import at_least, events, merged_sketches
from headwater.view.guard import AccessGuard
from headwater.view.hub import Hub
from headwater.view.queues import QueuePages, QueueReader, UnknownQueueError, no_queues
from headwater.view.results import ViewProgress
from headwater.view.tables import completeness
from headwater.view.tables.query import parse, parse_at_least, parse_merge
from headwater.view.tables.reader import ViewTable

__all__ = ["Info", "ViewInfo", "build"]

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


class ViewInfo(msgspec.Struct, frozen=True):
    """What the console knows of a view before its first row."""

    name: str
    key: tuple[str, ...]


class Info(msgspec.Struct, frozen=True):
    """The system that the console belongs to."""

    app: str
    log: str
    views: tuple[ViewInfo, ...]


class ViewStatus(msgspec.Struct, frozen=True):
    """A view in a list: ``changes`` counts since the console started, ``changed_at`` is in milliseconds.

    ``minute`` has the changes in each of the last sixty seconds, this one last. ``left_out`` counts the
    records that are late or invalid, or on which the query fails.
    """

    name: str
    key: tuple[str, ...]
    rows: int
    position: str
    changes: int
    changed_at: int | None
    complete: str | None
    minute: tuple[int, ...]
    left_out: LeftOut | None


class Status(msgspec.Struct, frozen=True):
    app: str
    log: str
    views: tuple[ViewStatus, ...]


class Rows(msgspec.Struct, frozen=True):
    view: str
    key: tuple[str, ...]
    position: str
    rows: list[dict[str, Any]]
    """Rows that become complete have ``_ready``: whether they are."""
    more: bool
    complete: str | None = None
    """Up to when; null if that is not known."""


def build(
    folder: Path,
    hub: Hub,
    progress: ViewProgress,
    info: Callable[[], Info],
    report: Callable[[], Report] = lambda: Report.of(()),
    *,
    queues: QueueReader | None = None,
    names: Collection[str] = (),
    token: str = "",
    heartbeat_seconds: float = events.HEARTBEAT_SECONDS,
) -> Starlette:
    """The ASGI application over the tables in ``folder``.

    ``hub`` passes on commits, ``progress`` knows how far views have read, ``report`` how all parts of the
    application are, ``queues`` what is in the queues of the log. The console answers under its addresses and
    ``names``. With a ``token``, it answers only requests that have it.
    """
    pages = Pages(folder, hub, progress, info, report, heartbeat_seconds=heartbeat_seconds)
    queue_pages = QueuePages(queues or no_queues())
    routes = [
        Route("/", pages.index),
        Route("/live/{name}", pages.live),
        Route("/views", pages.views),
        Route("/views/{name}", pages.rows),
        Route("/queues", _as_json(queue_pages.queues)),
        Route("/queues/{name}", _as_json(queue_pages.queue)),
        Route("/queues/{name}/messages", _as_json(queue_pages.messages)),
        Route("/activity", pages.activity),
        Route("/views/{name}/changes", pages.changes),
        Route("/health", pages.health),
        Route("/ready", pages.ready),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: Any = {HeadwaterError: _on_error, HTTPException: _on_http_error}
    middleware = [Middleware(AccessGuard, names=names, token=token), Middleware(GZipMiddleware)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)


class Pages:
    """The handlers. They keep no state between requests: it is in the tables and in the hub."""

    def __init__(
        self,
        folder: Path,
        hub: Hub,
        progress: ViewProgress,
        info: Callable[[], Info],
        report: Callable[[], Report],
        *,
        heartbeat_seconds: float,
    ) -> None:
        self._folder = folder
        self._hub = hub
        self._progress = progress
        self._info = info
        self._report = report
        self._heartbeat_seconds = heartbeat_seconds

    async def index(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    async def live(self, request: Request) -> Response:
        self._view(request)
        return FileResponse(STATIC / "live.html", headers=HEADERS)

    async def views(self, _request: Request) -> Response:
        status = await self._status()
        return _json(status.views)

    async def rows(self, request: Request) -> Response:
        view = self._view(request)
        minimum, parameters = parse_at_least(request.query_params.multi_items())
        ready, parameters = completeness.parse_ready(parameters)
        sketches, parameters = parse_merge(parameters)
        query, table = msgspec.structs.replace(parse(parameters), ready=ready), self._table(view)
        if sketches is not None:
            query = merged_sketches.query(query, sketches)
        await self._progress.settle(view.name)
        if minimum is None:
            snapshot = await run_in_threadpool(table.rows, query)
        else:
            snapshot = await at_least.rows(self._progress, self._hub, table, query, minimum)
        position, complete = str(snapshot.position), snapshot.complete
        if sketches is not None:
            merged = await run_in_threadpool(merged_sketches.answers, snapshot, sketches)
            return _json(Rows(view.name, sketches.by, position, merged, more=False, complete=complete))
        rows = [row.marked(view.key, complete) for row in snapshot.rows]
        return _json(Rows(view.name, view.key, position, rows, snapshot.more, complete))

    async def changes(self, request: Request) -> Response:
        view = self._view(request)
        token = request.headers.get("last-event-id") or request.query_params.get("since")
        table = self._table(view)
        return _stream(events.changes(self._hub, self._progress, table, token, self._heartbeat_seconds))

    async def activity(self, _request: Request) -> Response:
        return _stream(events.activity(self._hub, self._status, self._heartbeat_seconds))

    async def health(self, request: Request) -> Response:
        report = await self._reported(request)
        return _json(report, 200 if report.is_healthy else 503)

    async def ready(self, request: Request) -> Response:
        report = await self._reported(request)
        return _json(report, 200 if report.is_ready else 503)

    async def _reported(self, request: Request) -> Report:
        """The report on all parts, or with ``?part=NAME`` on one."""
        report = await run_in_threadpool(self._report)
        wanted = request.query_params.get("part")
        if wanted is None:
            return report
        part = report.part(wanted)
        if part is None:
            names = ", ".join(part.name for part in report.parts)
            raise UnknownPartError(f"unknown part {wanted!r}", hint=f"parts are: {names or 'none yet'}")
        return part

    async def _status(self) -> Status:
        info = self._info()
        await asyncio.gather(*(self._progress.settle(view.name) for view in info.views))
        return Status(info.app, info.log, await run_in_threadpool(self._view_statuses, info))

    def _view_statuses(self, info: Info) -> tuple[ViewStatus, ...]:
        left_out = {view.name: self._progress.left_out(view.name) for view in info.views}
        if None in left_out.values():  # real-time views have no results: they say it themselves
            reported = {part.name: part.left_out for part in self._report().parts if part.kind == "view"}
            left_out = {name: counts or reported.get(name) for name, counts in left_out.items()}
        return tuple(self._view_status(view, left_out[view.name]) for view in info.views)

    def _view_status(self, view: ViewInfo, left_out: LeftOut | None) -> ViewStatus:
        extent = self._table(view).extent()
        activity = self._hub.activity(view.name)
        changed_at = activity.changed_at_ms or extent.changed_at_ms
        complete = self._progress.complete(view.name, extent.position)
        return ViewStatus(
            view.name,
            view.key,
            extent.rows,
            str(extent.position),
            activity.changes,
            changed_at,
            complete,
            self._hub.minute(view.name),
            left_out,
        )

    def _table(self, view: ViewInfo) -> ViewTable:
        complete = partial(self._progress.complete, view.name)
        columns = partial(self._progress.columns, view.name)
        return ViewTable(self._folder / f"{view.name}.db", view.key, complete, columns)

    def _view(self, request: Request) -> ViewInfo:
        name = request.path_params["name"]
        views = {view.name: view for view in self._info().views}
        if name not in views:
            near = difflib.get_close_matches(name, views, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"views are: {', '.join(views) or 'none yet'}"
            raise UnknownViewError(f"unknown view {name!r}", hint=hint)
        return views[name]


class UnknownViewError(UsageError):
    """A name that no view has: 404; other usage errors are 400."""


class UnknownPartError(UsageError):
    """A name that no part has: 404."""


async def _on_error(_request: Request, error: Exception) -> Response:
    statuses: dict[type[Exception], int] = {
        UnknownViewError: 404,
        UnknownPartError: 404,
        UnknownQueueError: 404,
        UsageError: 400,
        StorageError: 503,
        MachineError: 503,
        NotReachedError: 504,
    }
    status = statuses.get(type(error), 500)
    fields = {name: getattr(error, name, "") for name in ("what", "got", "expected", "hint")}
    return _json({"error": str(error), **fields}, status)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}: {error.detail}"
    return Response(
        msgspec.json.encode(
            {"error": what, "what": what, "got": "", "expected": "", "hint": "GET /views lists the views"}
        ),
        error.status_code,
        {**HEADERS, **(error.headers or {})},
        "application/json",
    )


def _as_json(answer: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return _json(await answer(request))

    return respond


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, HEADERS, "application/json")


def _stream(chunks: Any) -> Response:
    return StreamingResponse(
        chunks, headers={**HEADERS, "X-Accel-Buffering": "no"}, media_type="text/event-stream"
    )
