"""Server-sent events: the change stream of one view, and the activity of all.

A stream of changes begins with a ``snapshot`` event (the newest rows), or with the changes since the
position that the reader last saw; then every commit is one ``changes`` event. The id of an event is the
position after it. A reader that is too slow gets a new snapshot. A ``complete`` event has the time up to
which the rows that it was sent are complete (`headwater.view.tables.completeness`), each time that it
moves. Nothing is polled: between commits only a comment is sent now and then, so that proxies do not close
the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from headwater.errors import UsageError
from headwater.position import Position
from headwater.view.hub import Hub, Subscription, TableCommit
from headwater.view.results import ViewProgress
from headwater.view.tables.reader import TableRow, TableSnapshot, ViewTable
from headwater.view.wakeup import Wakeup

__all__ = ["Activities", "activity", "changes"]

HEARTBEAT_SECONDS = 15.0
RETRY_MS = 1000
"""How soon a browser connects again."""
SNAPSHOT_ROWS = 10_000
"""The rows of a first event at most; ``more`` is set if the view has more."""
ACTIVITY_SECONDS = 0.5
"""The shortest time between two events of `activity`."""
COMPLETE_SECONDS = 0.5
"""The shortest time between two ``complete`` events."""

_HEARTBEAT = b": still here\n\n"

Activities = Callable[[], Awaitable[Any]]


class RowEvent(msgspec.Struct, frozen=True):
    """A key with its new columns, or with null if it was deleted."""

    key: str
    row: msgspec.Raw | dict[str, Any] | None
    at: int
    until: str | None
    """When the row is complete; null if it is neither ready nor provisional."""


class SnapshotEvent(msgspec.Struct, frozen=True):
    view: str
    key: tuple[str, ...]
    """The columns that make up the key."""
    rows: list[RowEvent]
    more: bool
    total: int
    complete: str | None
    columns: dict[str, str]
    """The types of the columns in Spark's notation; empty for a view whose results do not say them."""


class ChangesEvent(msgspec.Struct, frozen=True):
    changes: list[RowEvent]
    total: int
    """The present number of rows of the view."""


class CompleteEvent(msgspec.Struct, frozen=True):
    complete: str


class _Completeness:
    """The time up to which the rows of one reader are complete, as it was sent to the reader."""

    def __init__(self, progress: ViewProgress, view: str, wake: Callable[[], None]) -> None:
        self._progress = progress
        self._view = view
        self._wake = wake
        self._held = Position()
        self._sent: str | None = None
        self._not_before = 0.0

    def columns(self) -> dict[str, str]:
        """The types of the view's columns, as far as they are known by now."""
        return dict(self._progress.columns(self._view))

    def hold(self, position: Position) -> None:
        """The reader has all rows up to a position."""
        self._held = position

    def send(self) -> str | None:
        """The present time, which is sent with another event."""
        self._sent = self._progress.complete(self._view, self._held)
        return self._sent

    def moved(self) -> bytes:
        """The event if the time has moved, or nothing.

        Too soon after the last one, it wakes the reader later.
        """
        complete = self._progress.complete(self._view, self._held)
        if complete is None or complete == self._sent:
            return b""
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            loop.call_at(self._not_before, self._wake)
            return b""
        self._sent = complete
        self._not_before = loop.time() + COMPLETE_SECONDS
        return _event("complete", None, CompleteEvent(complete))


async def changes(
    hub: Hub, progress: ViewProgress, table: ViewTable, token: str | None, heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    """The change stream of one view, from ``token`` on if the table still has the changes since then."""
    wakeup = Wakeup(heartbeat_seconds)
    subscription = hub.subscribe(table.topic, wakeup.set)
    unwatch = progress.watch(table.topic, wakeup.set)
    complete = _Completeness(progress, table.topic, wakeup.set)
    loop = asyncio.get_running_loop()
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        await progress.settle(table.topic)
        yield await _first(hub, subscription, table, complete, token)
        sent = loop.time()
        while True:
            if moved := complete.moved():
                sent = loop.time()
                yield moved
            was_woken = await wakeup.wait()
            await progress.settle(table.topic)
            pending = subscription.take()
            if pending.closed:
                return
            if pending.resync:
                event = await _first(hub, subscription, table, complete, None)
            elif pending.commits:
                complete.hold(pending.commits[-1].position)
                total = await run_in_threadpool(_total, hub, table, pending.commits[-1].position)
                event = _changes_event(pending.commits, table.key, total)
            elif was_woken and loop.time() < sent + heartbeat_seconds:
                continue  # results may come for a long time and move nothing
            else:
                event = _HEARTBEAT
            sent = loop.time()
            yield event
    finally:
        unwatch()
        subscription.close()


async def activity(hub: Hub, load: Activities, heartbeat_seconds: float) -> AsyncIterator[bytes]:
    """What ``load`` returns, now and after commits, at a bounded rate whatever the views do."""
    wakeup = Wakeup(heartbeat_seconds)
    end = hub.watch(wakeup.set)
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        while not hub.closed:
            yield _event("activity", None, await load())
            while not await wakeup.wait():
                yield _HEARTBEAT
            await asyncio.sleep(ACTIVITY_SECONDS)
    finally:
        end()


async def _first(
    hub: Hub, subscription: Subscription, table: ViewTable, complete: _Completeness, token: str | None
) -> bytes:
    """The event that brings a reader up to date; the subscription continues without gap or repeat."""
    resumed = await run_in_threadpool(_since, table, token)
    if resumed is not None:
        subscription.begin(resumed.position)
        complete.hold(resumed.position)
        changed = [_row_event(row, table.key) for row in resumed.rows]
        total = await run_in_threadpool(_total, hub, table, resumed.position)
        return _event("changes", resumed.position, ChangesEvent(changed, total))
    snapshot = await run_in_threadpool(table.newest, SNAPSHOT_ROWS)
    total = (await run_in_threadpool(table.extent)).rows if snapshot.more else len(snapshot.rows)
    subscription.begin(snapshot.position)
    complete.hold(snapshot.position)
    rows = [_row_event(row, table.key) for row in snapshot.rows]
    event = SnapshotEvent(
        table.topic, table.key, rows, snapshot.more, total, complete.send(), complete.columns()
    )
    return _event("snapshot", snapshot.position, event)


def _since(table: ViewTable, token: str | None) -> TableSnapshot | None:
    try:
        return table.since(Position.parse(token), SNAPSHOT_ROWS) if token else None
    except UsageError:
        return None  # not a token of this version: the reader gets a snapshot


def _total(hub: Hub, table: ViewTable, position: Position) -> int:
    """The number of rows that a table has at a position, or later; one reader counts for all."""
    size = hub.size(table.topic)
    if size is None or not size[0].covers(position):
        extent = table.extent()
        size = extent.position, extent.rows
        hub.note_size(table.topic, size)
    return size[1]


def _changes_event(commits: Sequence[TableCommit], key: tuple[str, ...], total: int) -> bytes:
    rows = [TableRow(c.key, c.value, c.timestamp_ms) for commit in commits for c in commit.changes]
    changed = [_row_event(row, key) for row in rows]
    return _event("changes", commits[-1].position, ChangesEvent(changed, total))


def _row_event(row: TableRow, key: tuple[str, ...]) -> RowEvent:
    if row.value is None:
        return RowEvent(row.key, None, row.timestamp_ms, None)
    columns = row.columns() if '"_' in row.value else msgspec.Raw(row.value)
    return RowEvent(row.key, columns, row.timestamp_ms, row.until(key))


def _event(name: str, position: Position | None, data: Any) -> bytes:
    # A line break can only be between two JSON tokens here, and would end the event's data.
    body = msgspec.json.encode(data).replace(b"\n", b" ").replace(b"\r", b" ")
    head = f"event: {name}\n" + (f"id: {position}\n" if position is not None else "")
    return head.encode() + b"data: " + body + b"\n\n"
