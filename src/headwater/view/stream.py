"""Server-sent events: the change stream of one view, and the activity of all.

A stream of changes begins with a ``snapshot`` event (the newest rows), or with what changed since the
position that the reader last saw; then every commit is one ``changes`` event as it happens. The id of an
event is the position after it. A reader that falls behind gets a new snapshot. A ``complete`` event says up
to when the rows that it has been sent are complete (`headwater.view.ready`), each time that this has moved.
Nothing is polled: between commits only a comment is sent now and then, which keeps proxies from closing the
connection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from headwater.errors import UsageError
from headwater.position import Position
from headwater.view.push import Commit, Hub, Subscription
from headwater.view.reach import Reach
from headwater.view.signal import Signal
from headwater.view.table import Row, Snapshot, ViewTable

__all__ = ["Activities", "activity", "changes"]

HEARTBEAT_SECONDS = 15.0
RETRY_MS = 1000
"""How soon a browser connects again."""
SNAPSHOT_ROWS = 10_000
"""At most so many rows begin a stream; the event says when there are more."""
ACTIVITY_SECONDS = 0.5
"""At least so long between two events of `activity`."""
COMPLETE_SECONDS = 0.5
"""At least so long between two ``complete`` events."""

_HEARTBEAT = b": still here\n\n"

Activities = Callable[[], Awaitable[Any]]


class RowEvent(msgspec.Struct, frozen=True):
    """A key with its new columns, or with null when it was deleted."""

    key: str
    row: msgspec.Raw | dict[str, Any] | None
    at: int
    until: str | None
    """When it is complete; null for a row that is neither ready nor provisional."""


class SnapshotEvent(msgspec.Struct, frozen=True):
    view: str
    key: tuple[str, ...]
    """The columns that make up the key."""
    rows: list[RowEvent]
    more: bool
    total: int
    complete: str | None


class ChangesEvent(msgspec.Struct, frozen=True):
    changes: list[RowEvent]
    total: int
    """How many rows the view has by now."""


class CompleteEvent(msgspec.Struct, frozen=True):
    complete: str


class _Completeness:
    """What one reader has been told its rows are complete up to."""

    def __init__(self, reach: Reach, view: str, wake: Callable[[], None]) -> None:
        self._reach = reach
        self._view = view
        self._wake = wake
        self._held = Position()
        self._told: str | None = None
        self._not_before = 0.0

    def hold(self, position: Position) -> None:
        """The reader was sent all rows up to a position."""
        self._held = position

    def tell(self) -> str | None:
        """What the reader is told now."""
        self._told = self._reach.complete(self._view, self._held)
        return self._told

    def moved(self) -> bytes:
        """The event to send, or nothing. An event that comes too soon after the last one wakes the reader when it is due."""
        found = self._reach.complete(self._view, self._held)
        if found is None or found == self._told:
            return b""
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            loop.call_at(self._not_before, self._wake)
            return b""
        self._told = found
        self._not_before = loop.time() + COMPLETE_SECONDS
        return _event("complete", None, CompleteEvent(found))


async def changes(
    hub: Hub, reach: Reach, table: ViewTable, token: str | None, heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    """The change stream of one view, from ``token`` on where the table still can tell."""
    signal = Signal(heartbeat_seconds)
    subscription = hub.subscribe(table.topic, signal.set)
    unwatch = reach.watch(table.topic, signal.set)
    complete = _Completeness(reach, table.topic, signal.set)
    loop = asyncio.get_running_loop()
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        await reach.settle(table.topic)
        yield await _first(hub, subscription, table, complete, token)
        sent = loop.time()
        while True:
            if moved := complete.moved():
                sent = loop.time()
                yield moved
            news = await signal.wait()
            await reach.settle(table.topic)
            pending = subscription.take()
            if pending.closed:
                return
            if pending.resync:
                event = await _first(hub, subscription, table, complete, None)
            elif pending.commits:
                complete.hold(pending.commits[-1].position)
                total = await run_in_threadpool(_total, hub, table, pending.commits[-1].position)
                event = _changes_event(pending.commits, table.key, total)
            elif (
                news and loop.time() < sent + heartbeat_seconds
            ):  # results may come for long and move nothing
                continue
            else:
                event = _HEARTBEAT
            sent = loop.time()
            yield event
    finally:
        unwatch()
        subscription.close()


async def activity(hub: Hub, load: Activities, heartbeat_seconds: float) -> AsyncIterator[bytes]:
    """What ``load`` says, now and after commits, bundled so that busy views cost no more than calm ones."""
    signal = Signal(heartbeat_seconds)
    end = hub.watch(signal.set)
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        while not hub.closed:
            yield _event("activity", None, await load())
            while not await signal.wait():
                yield _HEARTBEAT
            await asyncio.sleep(ACTIVITY_SECONDS)
    finally:
        end()


async def _first(
    hub: Hub, subscription: Subscription, table: ViewTable, complete: _Completeness, token: str | None
) -> bytes:
    """The event that brings a reader up to date, after which the subscription goes on without gap or repeat."""
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
    event = SnapshotEvent(table.topic, table.key, rows, snapshot.more, total, complete.tell())
    return _event("snapshot", snapshot.position, event)


def _since(table: ViewTable, token: str | None) -> Snapshot | None:
    try:
        return table.since(Position.parse(token), SNAPSHOT_ROWS) if token else None
    except UsageError:
        return None  # a token of another version or of nobody: the reader gets a snapshot


def _total(hub: Hub, table: ViewTable, position: Position) -> int:
    """The number of rows that a table has at a position, or later; one reader looks it up for all."""
    known = hub.size(table.topic)
    if known is None or not known[0].covers(position):
        extent = table.extent()
        known = extent.position, extent.rows
        hub.note_size(table.topic, known)
    return known[1]


def _changes_event(commits: Sequence[Commit], key: tuple[str, ...], total: int) -> bytes:
    found = [Row(c.key, c.value, c.timestamp_ms) for commit in commits for c in commit.changes]
    changed = [_row_event(row, key) for row in found]
    return _event("changes", commits[-1].position, ChangesEvent(changed, total))


def _row_event(row: Row, key: tuple[str, ...]) -> RowEvent:
    if row.value is None:
        return RowEvent(row.key, None, row.timestamp_ms, None)
    columns = row.columns() if '"_' in row.value else msgspec.Raw(row.value)
    return RowEvent(row.key, columns, row.timestamp_ms, row.until(key))


def _event(name: str, position: Position | None, data: Any) -> bytes:
    # A line break can only stand between two JSON tokens here, and would end the event's data.
    body = msgspec.json.encode(data).replace(b"\n", b" ").replace(b"\r", b" ")
    head = f"event: {name}\n" + (f"id: {position}\n" if position is not None else "")
    return head.encode() + b"data: " + body + b"\n\n"
