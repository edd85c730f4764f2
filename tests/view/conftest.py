"""Fixtures for views: a whole console in this process, over a real log."""

import http.client
import json
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from headwater.health.condition import PartStatus
from headwater.health.report import Report
from headwater.node.queue_reader import queue_reader
from headwater.view.hub import Hub
from headwater.view.results import ViewProgress
from headwater.view.tables.delivery import Delivery
from headwater.view.web import Info, ViewInfo, build
from support.servers import free_port, wait_until
from support.viewlog import ViewLog

HEARTBEAT_SECONDS = 0.3


class Console:
    """Delivery, hub and web, as in the console's process; it can be stopped and started again."""

    def __init__(self, bootstrap: str, folder: Path, views: dict[str, tuple[str, ...]], **guard) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.views = views
        self.guard = guard
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.parts: tuple[PartStatus, ...] = ()
        """What the processes of an application would say."""

    def start(self, hub: Hub | None = None) -> None:
        self.hub = hub or Hub()
        self.reach = ViewProgress(self.bootstrap)
        app = build(
            self.folder,
            self.hub,
            self.reach,
            self._info,
            lambda: Report.of(self.parts),
            queues=queue_reader(self.bootstrap),
            heartbeat_seconds=HEARTBEAT_SECONDS,
            **self.guard,
        )
        config = uvicorn.Config(app, port=self.port, log_level="error", ws="none", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        self.delivery = Delivery(self.bootstrap, list(self.views), self.folder, self.hub.publish)
        self.delivery.start()
        wait_until(lambda: self.server.started, 20, "the web server")

    def stop(self) -> None:
        self.delivery.stop()
        self.hub.close()
        self.server.should_exit = True
        self.thread.join()
        self.reach.close()

    def get(self, path: str) -> tuple[int, dict]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        return response.status, body

    def rows(self, view: str, query: str = "") -> list[dict]:
        status, body = self.get(f"/views/{view}{query}")
        assert status == 200, body
        return body["rows"]

    def _info(self) -> Info:
        views = tuple(ViewInfo(name, key) for name, key in self.views.items())
        return Info("shop", self.bootstrap, views)


class Events:
    """A reader of server-sent events on a connection of its own; ``rows`` is what it knows so far."""

    def __init__(self, console: Console, path: str, last: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
        self._connection.request("GET", path, headers={"Last-Event-ID": last} if last else {})
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.getheader("content-type").startswith("text/event-stream")
        self.last = last
        self.rows: dict[str, dict] = {}

    def next(self, seconds: float = 60) -> tuple[str, dict]:
        """The next event that has data; its id is kept as the token to resume with."""
        name, data = "", None
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            line = self._response.readline().decode().rstrip("\n")
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "id":
                self.last = value
            elif field == "data":
                data = json.loads(value)
            elif not line and data is not None:
                self._apply(name, data)
                return name, data
        raise TimeoutError("no event")

    def until(self, key: str) -> list[dict]:
        """All changes up to the first one of ``key``."""
        found: list[dict] = []
        while not any(change["key"] == key for change in found):
            _, data = self.next()
            found += data.get("changes", [])
        return found

    def _apply(self, name: str, data: dict) -> None:
        """Keeps ``rows`` as a reader would that trusts the stream."""
        if name == "snapshot":
            self.rows = {}
        for change in data.get("rows", data.get("changes", [])):
            self.rows.pop(change["key"], None)
            if change["row"] is not None:
                self.rows[change["key"]] = change["row"]

    def ended(self) -> bool:
        return self._response.readline() == b""

    def close(self) -> None:
        self._response.close()
        self._connection.close()


@pytest.fixture
def log(bootstrap) -> ViewLog:
    return ViewLog(bootstrap)


@pytest.fixture
def revenue(log) -> str:
    """A view by window and country."""
    return log.create(log.name("revenue"))


@pytest.fixture
def console(log, revenue, tmp_path):
    found = Console(log.log, tmp_path / "views", {revenue: ("window", "country")})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def events(console):
    """Opens event streams that are closed at the end."""
    opened: list[Events] = []

    def connect(path: str, last: str | None = None) -> Events:
        opened.append(Events(console, path, last))
        return opened[-1]

    yield connect
    for stream in opened:
        stream.close()
