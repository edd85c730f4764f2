"""The console's HTTP: views as JSON, changes as server-sent events, two pages.

    GET /                       the page that lists the views
    GET /live/NAME              the page that draws one view
    GET /views                  all views: name, key columns, rows, position
    GET /views/NAME?…           the rows of one (filters, order, limit, at_least, merge: see `headwater.view.query`)
    GET /views/NAME/changes     its changes as they commit; ``Last-Event-ID`` or ``?since=`` resumes
    GET /activity               the numbers of the first page, as they change
    GET /health                 200 while the console works, 503 with the reason when it does not

Who may ask is the business of `headwater.view.guard`. Rows and views say up to when they are ``complete`` (`headwater.view.ready`).
Errors are JSON: ``{"error": one line, "what", "got", "expected", "hint"}``.
"""

import asyncio
import difflib
from collections.abc import Callable, Collection
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

from headwater.errors import Behind, HeadwaterError, MachineError, StorageError, UsageError
from headwater.view import fresh, merged, ready, stream
from headwater.view.guard import Guard
from headwater.view.push import Hub
from headwater.view.query import at_least, merge, parse
from headwater.view.reach import Reach
from headwater.view.table import ViewTable

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
    """What the console says about the system that it belongs to."""

    app: str
    log: str
    views: tuple[ViewInfo, ...]
    problem: str = ""
    """Why the console does not work; empty while it does."""


class ViewStatus(msgspec.Struct, frozen=True):
    """A view in a list: ``changes`` counts since the console started, ``changed_at`` is in milliseconds."""

    name: str
    key: tuple[str, ...]
    rows: int
    position: str
    changes: int
    changed_at: int | None
    complete: str | None


class Status(msgspec.Struct, frozen=True):
    app: str
    log: str
    problem: str
    views: tuple[ViewStatus, ...]


class Rows(msgspec.Struct, frozen=True):
    view: str
    key: tuple[str, ...]
    position: str
    rows: list[dict[str, Any]]
    """Those that become complete say with ``_ready`` whether they are."""
    more: bool
    complete: str | None = None
    """Up to when; null when the view does not say."""


def build(
    folder: Path,
    hub: Hub,
    reach: Reach,
    info: Callable[[], Info],
    *,
    names: Collection[str] = (),
    token: str = "",
    heartbeat_seconds: float = stream.HEARTBEAT_SECONDS,
) -> Starlette:
    """The ASGI application over the tables in ``folder``; ``hub`` tells it of commits, ``reach`` how far views have read.

    It answers under ``names`` beside its addresses and, where there is a ``token``, only who has it.
    """
    pages = Pages(folder, hub, reach, info, heartbeat_seconds)
    routes = [
        Route("/", pages.index),
        Route("/live/{name}", pages.live),
        Route("/views", pages.views),
        Route("/views/{name}", pages.rows),
        Route("/activity", pages.activity),
        Route("/views/{name}/changes", pages.changes),
        Route("/health", pages.health),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: Any = {HeadwaterError: _on_error, HTTPException: _on_http_error}
    middleware = [Middleware(Guard, names=names, token=token), Middleware(GZipMiddleware)]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)


class Pages:
    """The handlers. They keep nothing between requests: all state is in the tables and in the hub."""

    def __init__(
        self, folder: Path, hub: Hub, reach: Reach, info: Callable[[], Info], heartbeat_seconds: float
    ) -> None:
        self._folder = folder
        self._hub = hub
        self._reach = reach
        self._info = info
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
        asked, parameters = at_least(request.query_params.multi_items())
        only, parameters = ready.wanted(parameters)
        wanted, parameters = merge(parameters)
        query, table = msgspec.structs.replace(parse(parameters), ready=only), self._table(view)
        if wanted is not None:
            query = merged.query(query, wanted)
        await self._reach.settle(view.name)
        if asked is None:
            found = await run_in_threadpool(table.rows, query)
        else:
            found = await fresh.rows(self._reach, self._hub, table, query, asked)
        if wanted is not None:
            answers = await run_in_threadpool(merged.answers, found, wanted)
            return _json(
                Rows(view.name, wanted.by, str(found.position), answers, more=False, complete=found.complete)
            )
        rows = [row.marked(view.key, found.complete) for row in found.rows]
        return _json(Rows(view.name, view.key, str(found.position), rows, found.more, found.complete))

    async def changes(self, request: Request) -> Response:
        view = self._view(request)
        token = request.headers.get("last-event-id") or request.query_params.get("since")
        table = self._table(view)
        return _events(stream.changes(self._hub, self._reach, table, token, self._heartbeat_seconds))

    async def activity(self, _request: Request) -> Response:
        return _events(stream.activity(self._hub, self._status, self._heartbeat_seconds))

    async def health(self, _request: Request) -> Response:
        info = self._info()
        body = {"status": "failing" if info.problem else "ok", "problem": info.problem, "log": info.log}
        return _json(body, 503 if info.problem else 200)

    async def _status(self) -> Status:
        info = self._info()
        await asyncio.gather(*(self._reach.settle(view.name) for view in info.views))
        views = await run_in_threadpool(lambda: tuple(self._view_status(view) for view in info.views))
        return Status(info.app, info.log, info.problem, views)

    def _view_status(self, view: ViewInfo) -> ViewStatus:
        extent = self._table(view).extent()
        seen = self._hub.activity(view.name)
        changed_at = seen.changed_at_ms or extent.changed_at_ms
        complete = self._reach.complete(view.name, extent.position)
        return ViewStatus(
            view.name, view.key, extent.rows, str(extent.position), seen.changes, changed_at, complete
        )

    def _table(self, view: ViewInfo) -> ViewTable:
        complete = partial(self._reach.complete, view.name)
        columns = partial(self._reach.columns, view.name)
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
    """A name that no view has: 404, where other usage errors are 400."""


async def _on_error(_request: Request, error: Exception) -> Response:
    statuses: dict[type[Exception], int] = {
        UnknownViewError: 404,
        UsageError: 400,
        StorageError: 503,
        MachineError: 503,
        Behind: 504,
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


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, HEADERS, "application/json")


def _events(events: Any) -> Response:
    return StreamingResponse(
        events, headers={**HEADERS, "X-Accel-Buffering": "no"}, media_type="text/event-stream"
    )
