"""A reader of the console: it reads rows and follows live changes over HTTP, as a browser does."""

import http.client
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from headwater.clock import Clock
from headwater.decoders import from_json
from headwater.errors import MachineError
from headwater.position import Position

__all__ = ["Page"]

TIMEOUT_S = 30.0
"""Longer than the console's heartbeat: a connection without data for this time is dead."""
RECONNECT_S = 0.5
ROWS_MAX = 100_000
WINDOWS_MAX = 100_000
"""The number of windows for each view whose last change is remembered; the oldest are forgotten."""

Row = dict[str, Any]


class _Answer(msgspec.Struct):
    position: str
    rows: list[Row]
    more: bool


class _Changed(msgspec.Struct):
    key: str
    row: Row | None


class _Event(msgspec.Struct):
    rows: list[_Changed] = []
    changes: list[_Changed] = []


class Page:
    """Reads one console, with a thread for each view after ``follow``. A context manager."""

    def __init__(self, url: str, views: Sequence[str], token: str = "") -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._stop = threading.Event()
        self._keys: dict[str, set[str]] = {view: set() for view in views}
        self._seen: dict[str, dict[datetime, int]] = {view: {} for view in views}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def rows(self, view: str) -> list[Row]:
        """All rows of a view, page by page, in the order of their windows."""
        all_rows: dict[bytes, Row] = {}
        since: dict[str, str] = {}
        while True:
            answer = self._get(view, {"order": "window.start", "limit": str(ROWS_MAX), **since})
            rows = [_columns(row) for row in answer.rows]
            all_rows |= {msgspec.json.encode(row): row for row in rows}
            if not answer.more:
                return list(all_rows.values())
            since = {"window.start.gte": answer.rows[-1]["window"]["start"]}

    def position(self, view: str) -> Position:
        """The position in the view's topic up to which its table is filled."""
        return Position.parse(self._get(view, {"limit": "1"}).position)

    def follow(self, clock: Clock) -> None:
        """Starts following the live changes of all views."""
        for view in self._seen:
            threading.Thread(
                target=self._follow, args=(view, clock), name=f"page {view}", daemon=True
            ).start()

    def rows_seen(self) -> dict[str, int]:
        """The number of rows of each view received over the live connection; empty before the first."""
        counts = {view: len(keys) for view, keys in self._keys.items()}
        return counts if any(counts.values()) else {}

    def seen(self) -> Mapping[str, Mapping[datetime, int]]:
        """The time of the last change of each window on the page, by view, in milliseconds of wall time."""
        return {view: dict(windows) for view, windows in self._seen.items()}

    def _get(self, view: str, parameters: Mapping[str, str]) -> _Answer:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        try:
            path = f"/views/{quote(view)}?{urlencode(parameters)}"
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
        except OSError as error:
            raise MachineError("the console does not answer", got=str(error)) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise MachineError(
                f"the console refused to show {view!r}", got=body.decode(errors="replace")[:200]
            )
        return from_json(body, _Answer)

    def _follow(self, view: str, clock: Clock) -> None:
        last = ""
        while not self._stop.is_set():
            try:
                for position, event in self._events(view, last):
                    last = position or last
                    self._note(view, [*event.rows, *event.changes], clock.now_ms())
            except (OSError, http.client.HTTPException):
                self._stop.wait(RECONNECT_S)

    def _events(self, view: str, since: str) -> Iterator[tuple[str, _Event]]:
        """The server-sent events until the connection ends, each with the position before it."""
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_S)
        try:
            headers = self._headers | ({"Last-Event-ID": since} if since else {})
            connection.request("GET", f"/views/{quote(view)}/changes", headers=headers)
            position = ""
            for line in connection.getresponse():
                field, _, value = line.rstrip(b"\n").partition(b": ")
                if field == b"id":
                    position = value.decode()
                elif field == b"data":
                    yield position, from_json(value, _Event)
                if self._stop.is_set():
                    return
        finally:
            connection.close()

    def _note(self, view: str, changes: Sequence[_Changed], now: int) -> None:
        windows = self._seen[view]
        for change in changes:
            self._keys[view].add(change.key)
            if change.row is not None:
                windows[datetime.fromisoformat(change.row["window"]["start"])] = now
        while len(windows) > WINDOWS_MAX:
            windows.pop(next(iter(windows)))


def _columns(row: Row) -> Row:
    """A row without the columns that the console adds.

    Such a column, like ``_ready``, may differ on the next page.
    """
    return {name: value for name, value in row.items() if not name.startswith("_")}
