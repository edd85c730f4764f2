"""Server-sent events: the change stream of one view, and the activity of all.

A stream of changes begins with a ``snapshot`` event (the newest rows), or with what changed since the
position that the reader last saw; then every commit is one ``changes`` event as it happens. The id of an
event is the position after it. A reader that falls behind gets a new snapshot. Nothing is polled: between
commits only a comment is sent now and then, which keeps proxies from closing the connection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from headwater.errors import UsageError
from headwater.position import Position
from headwater.view.push import Commit, Hub, Subscription
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

_HEARTBEAT = b": still here\n\n"

Activities = Callable[[], Awaitable[Any]]


class RowEvent(msgspec.Struct, frozen=True):
    """A key with its new columns, or with null when it was deleted."""

    key: str
    row: msgspec.Raw | dict[str, Any] | None
    at: int


class SnapshotEvent(msgspec.Struct, frozen=True):
    view: str
    key: tuple[str, ...]
    """The columns that make up the key."""
    rows: list[RowEvent]
    more: bool
    total: int


class ChangesEvent(msgspec.Struct, frozen=True):
    changes: list[RowEvent]


async def changes(
    hub: Hub, table: ViewTable, key: tuple[str, ...], token: str | None, heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    """The change stream of one view, from ``token`` on where the table still can tell."""
    signal = Signal(heartbeat_seconds)
    subscription = hub.subscribe(table.topic, signal.set)
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        yield await _first(subscription, table, key, token)
        while True:
            if not await signal.wait():
                yield _HEARTBEAT
                continue
            pending = subscription.take()
            if pending.closed:
                return
            if pending.resync:
                yield await _first(subscription, table, key, None)
            elif pending.commits:
                yield _changes_event(pending.commits)
    finally:
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
    subscription: Subscription, table: ViewTable, key: tuple[str, ...], token: str | None
) -> bytes:
    """The event that brings a reader up to date, after which the subscription goes on without gap or repeat."""
    resumed = await run_in_threadpool(_since, table, token)
    if resumed is not None:
        subscription.begin(resumed.position)
        return _event("changes", resumed.position, ChangesEvent([_row_event(row) for row in resumed.rows]))
    snapshot = await run_in_threadpool(table.newest, SNAPSHOT_ROWS)
    total = (await run_in_threadpool(table.extent)).rows if snapshot.more else len(snapshot.rows)
    subscription.begin(snapshot.position)
    rows = [_row_event(row) for row in snapshot.rows]
    return _event("snapshot", snapshot.position, SnapshotEvent(table.topic, key, rows, snapshot.more, total))


def _since(table: ViewTable, token: str | None) -> Snapshot | None:
    try:
        return table.since(Position.parse(token), SNAPSHOT_ROWS) if token else None
    except UsageError:
        return None  # a token of another version or of nobody: the reader gets a snapshot


def _changes_event(commits: Iterable[Commit]) -> bytes:
    found = [Row(c.key, c.value, c.timestamp_ms) for commit in commits for c in commit.changes]
    position = [commit.position for commit in commits][-1]
    return _event("changes", position, ChangesEvent([_row_event(row) for row in found]))


def _row_event(row: Row) -> RowEvent:
    if row.value is None:
        return RowEvent(row.key, None, row.timestamp_ms)
    columns = row.columns() if '"_' in row.value else msgspec.Raw(row.value)
    return RowEvent(row.key, columns, row.timestamp_ms)


def _event(name: str, position: Position | None, data: Any) -> bytes:
    # A line break can only stand between two JSON tokens here, and would end the event's data.
    body = msgspec.json.encode(data).replace(b"\n", b" ").replace(b"\r", b" ")
    head = f"event: {name}\n" + (f"id: {position}\n" if position is not None else "")
    return head.encode() + b"data: " + body + b"\n\n"
