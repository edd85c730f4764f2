"""The node: it turns settings and an application file into a running system.

    broker    the embedded log, unless the settings name an Apache Kafka
    pipeline  the views of the application, on Spark
    console   view tables, HTTP and the live pages
    sinks     the sinks of the application, if it has any
    workers   its workers, if it has any
    captures  a process for each

Each is a separate process under one supervisor; they communicate only through topics. They are started in
this order, the last four at the same time, and ended in the reverse order. None of them ends because another
one does. New captures and sinks touch nothing until the pipeline has planned all views (`Gate`).
"""

import http.client
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Self

import msgspec
import uvicorn

from headwater.client.client import Client
from headwater.config import PREFIX, Settings, is_loopback
from headwater.declare.graph import Graph
from headwater.errors import FencedError, MachineError, UsageError
from headwater.health.board import BoardFile
from headwater.health.report import read
from headwater.node import console_board
from headwater.node.console_board import CONSOLE
from headwater.node.gate import Gate
from headwater.node.queue_reader import queue_reader
from headwater.node.supervisor import Part, Supervisor
from headwater.view.hub import Hub
from headwater.view.results import ViewProgress
from headwater.view.tables.delivery import Delivery
from headwater.view.web import Info, ViewInfo, build

__all__ = ["Node", "command", "ensure_free", "serve_console"]

BROKER_READY_S = 30.0
SPARK_READY_S = 180.0
CONSOLE_READY_S = 30.0
CONNECTIONS_MAX = 900
"""Connections of the console, including live pages; further ones get 503. Below the 1,024 files that a
process may usually open."""
CONSOLE_GRACE_S = 2
ELSEWHERE = frozenset({FencedError.exit_code})
"""A capture that runs elsewhere may run there for a while only, as with ``headwater capture snapshot``."""
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
HEALTH_TIMEOUT_S = 1.0


class Node:
    """One application with all processes that it needs on this machine.

    A context manager: leaving it ends them all.

    Ports are checked here, before anything starts; the graph was checked when it was built. Waits end with
    ``Interrupted`` when ``stop`` is set. ``java_options`` apply to every JVM of the node.
    """

    def __init__(
        self,
        settings: Settings,
        app: Path | None,
        graph: Graph,
        *,
        stop: threading.Event | None = None,
        java_options: str = "",
    ) -> None:
        _check_exposure(settings)
        self.app = app
        self.graph = graph
        self.settings = _with_ports(settings)
        self.folder = settings.data
        self.supervisor = Supervisor(self.folder, stop=stop)
        self._environ = self.settings.environ() | _java_environ(java_options)
        self._ready_file = self.folder / "run" / "pipeline.ready"
        self._gate = Gate(self.folder)

    @property
    def url(self) -> str:
        """The address of the console."""
        return self.settings.console_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.close()

    def start_log(self) -> None:
        """Starts the embedded broker, or checks that the configured Kafka answers."""
        if self.settings.embedded is not None:
            self.supervisor.start(self._broker())
        else:
            client = Client(self.settings.access)
            client.partitions()
            self.supervisor.start(Part("log", (), client.is_reachable, kind="log", probe=True))

    def start_parts(self, *, patient: bool = False) -> None:
        """Starts all other processes at the same time; ``patient`` as for `Supervisor.start`.

        It does not wait for captures and sinks: their databases and stores may not answer yet. Without
        anything that needs Spark it is not started.
        """
        parts = [self._pipeline()] if self.graph.needs_spark else []
        if not parts:
            self._gate.open()
        parts += [self._console()]
        parts += [self._sinks()] if self.graph.sinks else []
        parts += [self._workers()] if self.graph.workers else []
        captures = [self._capture(name) for name in self.graph.captures]
        self.supervisor.start(*parts, *captures, patient=patient)

    def start_console(self) -> None:
        """The console alone, for views that run in this process."""
        self.supervisor.start(self._console())

    def _capture(self, name: str) -> Part:
        argv = (sys.executable, "-m", "headwater", "capture", "run", "--supervised", name, str(self.app))
        members = (("capture", name),)
        return Part(f"capture-{name}", argv, environ=self._environ, members=members, mended=ELSEWHERE)

    def part(self, name: str, *arguments: str, ready_s: float = 60.0) -> Part:
        """A command that runs with the node's settings and ends by itself."""
        return Part(name, command(name, *arguments), environ=self._environ, restart=False, ready_s=ready_s)

    def _broker(self) -> Part:
        client = Client(self.settings.access)
        arguments = ("--data", str(self.settings.embedded), "--port", str(self.settings.broker_port))
        return Part(
            "broker",
            command("broker", *arguments),
            client.is_reachable,
            self._environ,
            BROKER_READY_S,
            kind="log",
            probe=True,
        )

    def _pipeline(self) -> Part:
        argv = command("run", str(self.app), "--ready", str(self._ready_file))
        views = tuple(("view", name) for name in self.graph.views)
        return Part(
            "pipeline",
            argv,
            self._views_started,
            self._environ,
            SPARK_READY_S,
            forget=self._forget_pipeline,
            members=views,
        )

    def _forget_pipeline(self) -> None:
        self._ready_file.unlink(missing_ok=True)  # process ids are used again
        if self.graph.views:
            self._gate.close()
        else:
            self._gate.open()

    def _views_started(self) -> bool:
        """Whether this process of the pipeline has started its views, and not one before it."""
        try:
            started = self._ready_file.read_text()
            return started == (self.folder / "run" / "pipeline.pid").read_text()
        except OSError:
            return False

    def _sinks(self) -> Part:
        members = tuple(("sink", name) for name in self.graph.sinks)
        return Part("sinks", command("sinks", str(self.app)), environ=self._environ, members=members)

    def _workers(self) -> Part:
        members = tuple(("worker", name) for name in self.graph.workers)
        argv = command("workers", str(self.app))
        return Part("workers", argv, environ=self._environ, members=members)

    def _console(self) -> Part:
        views = tuple(ViewInfo(view.name, view.key) for view in self.graph.views.values())
        info = Info(self.graph.name, self.settings.bootstrap, views)
        argv = command("console", msgspec.json.encode(info).decode())
        return Part(
            CONSOLE,
            argv,
            self._console_answers,
            self._environ,
            CONSOLE_READY_S,
            kind="console",
            members=((CONSOLE, CONSOLE),),
            probe=True,
        )

    def _console_answers(self) -> bool:
        """Whether the console answers, with whatever it has to say about the other parts."""
        token = self.settings.console_token
        request = urllib.request.Request(  # noqa: S310  our own address
            f"{self.url}/health", headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        try:
            urllib.request.urlopen(request, timeout=HEALTH_TIMEOUT_S).close()  # noqa: S310  same
        except urllib.error.HTTPError:
            return True
        except (OSError, http.client.HTTPException):  # or it is another server at its port
            return False
        return True


def serve_console(settings: Settings, info: Info, *, connections_max: int = CONNECTIONS_MAX) -> None:
    """Fills the view tables and serves them until SIGTERM or SIGINT; raises an error of the delivery."""
    _check_exposure(settings)
    port = ensure_free(settings.console_host, settings.console_port, "console_port")
    names = [settings.console_host, *settings.console_names.split(",")]
    hub, reach = Hub(), ViewProgress(settings.access)
    failures: list[Exception] = []
    config = uvicorn.Config(
        build(
            settings.views,
            hub,
            reach,
            lambda: info,
            lambda: read(settings.data),
            queues=queue_reader(settings.access),
            names=names,
            token=settings.console_token,
        ),
        host=settings.console_host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=CONSOLE_GRACE_S,
        limit_concurrency=connections_max,
    )
    server = _ConsoleServer(config, hub, reach)

    def on_failure(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    views = [view.name for view in info.views]
    delivery = Delivery(settings.access, views, settings.views, hub.publish, on_failure=on_failure)
    delivery.start()
    over, board = threading.Event(), BoardFile(settings.data, CONSOLE)
    saying = threading.Thread(target=console_board.say, args=(delivery, board, over), daemon=True)
    saying.start()
    try:
        server.run()
    finally:
        over.set()
        saying.join()
        delivery.stop()
        reach.close()
    for error in failures:
        raise error


class _ConsoleServer(uvicorn.Server):
    """Ends live pages and waiting requests first, before it waits for their connections to close."""

    def __init__(self, config: uvicorn.Config, hub: Hub, reach: ViewProgress) -> None:
        super().__init__(config)
        self._hub = hub
        self._reach = reach

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # In a thread: this runs inside a signal handler, and the hub's lock may be held below it.
        for close in (self._hub.close, self._reach.close):
            threading.Thread(target=close, daemon=True).start()
        super().handle_exit(sig, frame)


def command(name: str, *arguments: str) -> tuple[str, ...]:
    """A `headwater` command as a child process that ends with its supervisor."""
    return (sys.executable, "-m", "headwater", name, "--supervised", *arguments)


def ensure_free(host: str, port: int, setting: str) -> int:
    """The port, or a free one instead of 0; MachineError if another process listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = f"choose another with {PREFIX}{setting.upper()}, or 0 for a free one"
            raise MachineError(
                f"port {port} on {host} cannot be used: {error.strerror}", hint=hint
            ) from error
        return int(probe.getsockname()[1])


def _check_exposure(settings: Settings) -> None:
    """UsageError without a token for an address that other machines reach, as for a broker without users."""
    if settings.console_token or settings.insecure or is_loopback(settings.console_host):
        return
    raise UsageError(
        f"console_host {settings.console_host} lets every machine that reaches it read all views",
        hint="set console_token, or insecure = true if the network itself is safe",
    )


def _java_environ(options: str) -> dict[str, str]:
    """These options and then the user's own, which take precedence."""
    own = os.environ.get(JAVA_OPTIONS, "")
    return {JAVA_OPTIONS: f"{options} {own}".strip()} if options else {}


def _with_ports(settings: Settings) -> Settings:
    """The settings with fixed ports, so that a restarted part is found at the same port."""
    console = ensure_free(settings.console_host, settings.console_port, "console_port")
    if settings.embedded is None:
        return msgspec.structs.replace(settings, console_port=console)
    broker = ensure_free(settings.host, settings.broker_port, "broker_port")
    return msgspec.structs.replace(settings, console_port=console, broker_port=broker)
