"""Node: the composition root. Settings and an application file in, a running system out.

    broker    the embedded log, unless the settings name an Apache Kafka
    pipeline  the application's views on Spark
    console   view tables, HTTP and the live pages
    sinks     the application's stores outside, if it has any

Each is a process of its own under one supervisor and meets the others through topics only. They are
started in this order and ended in the opposite one.
"""

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

from headwater.client import Client
from headwater.config import PREFIX, Settings, is_loopback
from headwater.errors import MachineError, UsageError
from headwater.graph import Graph
from headwater.sink import Delivery
from headwater.supervisor import Part, Supervisor
from headwater.view import Hub, Info, Reach, ViewInfo, build

__all__ = ["Node", "command", "ensure_free", "serve_console"]

BROKER_READY_S = 30.0
SPARK_READY_S = 180.0
CONSOLE_READY_S = 30.0
CONNECTIONS_MAX = 900
"""Of the console, live pages among them; whoever comes then is told to come again (503). Below the 1,024 files that a process may usually open."""
CONSOLE_GRACE_S = 2
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
HEALTH_TIMEOUT_S = 1.0


class Node:
    """One application with everything it needs on this machine. A context manager: leaving it ends all parts.

    The ports are looked at here, before anything starts; the graph was checked when it was built. Waits end with
    ``Interrupted`` when ``stop`` is set. ``java_options`` reach every JVM of the node.
    """

    def __init__(
        self,
        settings: Settings,
        app: Path,
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

    @property
    def url(self) -> str:
        """The address of the console."""
        return self.settings.console_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.close()

    def start_log(self) -> None:
        """The embedded broker, or a look at whether the configured Kafka answers."""
        if self.settings.embedded is not None:
            self.supervisor.start(self._broker())
        else:
            Client(self.settings.access).partitions()

    def start_views(self) -> None:
        """Spark and the console together: neither waits for the other."""
        self._ready_file.unlink(missing_ok=True)
        sinks = [self._sinks()] if self.graph.sinks else []
        self.supervisor.start(self._console(), self._pipeline(), *sinks)

    def start_captures(self) -> None:
        """A process for each captured database; none is waited for, since a database may be away."""
        self.supervisor.start(*(self._capture(name) for name in self.graph.captures))

    def _capture(self, name: str) -> Part:
        argv = (sys.executable, "-m", "headwater", "capture", "run", "--supervised", name, str(self.app))
        return Part(f"capture-{name}", argv, lambda: True, self._environ)

    def part(self, name: str, *arguments: str, ready_s: float = 60.0) -> Part:
        """Work beside the node that ends by itself, with the node's settings."""
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
        )

    def _pipeline(self) -> Part:
        argv = command("run", str(self.app), "--ready", str(self._ready_file))
        return Part("pipeline", argv, self._ready_file.exists, self._environ, SPARK_READY_S)

    def _sinks(self) -> Part:
        return Part("sinks", command("sinks", str(self.app)), environ=self._environ)

    def _console(self) -> Part:
        views = tuple(ViewInfo(view.name, view.key) for view in self.graph.views.values())
        info = Info(self.graph.name, self.settings.bootstrap, views)
        argv = command("console", msgspec.json.encode(info).decode())
        return Part("console", argv, self._console_answers, self._environ, CONSOLE_READY_S)

    def _console_answers(self) -> bool:
        token = self.settings.console_token
        asked = urllib.request.Request(  # noqa: S310  our own address
            f"{self.url}/health", headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        try:
            with urllib.request.urlopen(asked, timeout=HEALTH_TIMEOUT_S) as answer:  # noqa: S310  same
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def serve_console(settings: Settings, info: Info, *, connections_max: int = CONNECTIONS_MAX) -> None:
    """View tables, HTTP and live pages in this process, until SIGTERM or SIGINT; raises what ended the delivery."""
    _check_exposure(settings)
    port = ensure_free(settings.console_host, settings.console_port, "console_port")
    names = [settings.console_host, *settings.console_names.split(",")]
    hub, reach = Hub(), Reach(settings.access)
    failures: list[Exception] = []
    config = uvicorn.Config(
        build(settings.views, hub, reach, lambda: info, names=names, token=settings.console_token),
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
    try:
        server.run()
    finally:
        delivery.stop()
        reach.close()
    for error in failures:
        raise error


class _ConsoleServer(uvicorn.Server):
    """Lets the readers of live pages and those who wait go, before it waits for their connections to end."""

    def __init__(self, config: uvicorn.Config, hub: Hub, reach: Reach) -> None:
        super().__init__(config)
        self._hub = hub
        self._reach = reach

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # In a thread: this runs inside a signal handler, and the hub's lock may be held below it.
        for close in (self._hub.close, self._reach.close):
            threading.Thread(target=close, daemon=True).start()
        super().handle_exit(sig, frame)


def command(name: str, *arguments: str) -> tuple[str, ...]:
    """A command of ours as a child process that ends with its supervisor."""
    return (sys.executable, "-m", "headwater", name, "--supervised", *arguments)


def ensure_free(host: str, port: int, setting: str) -> int:
    """The port, or a free one instead of 0; a MachineError when something listens there."""
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
    """An address that other machines reach wants readers who have a token, as the broker's wants users."""
    if settings.console_token or settings.insecure or is_loopback(settings.console_host):
        return
    raise UsageError(
        f"console_host {settings.console_host} can be reached from other machines, and everybody there could read all views",
        hint="set console_token, or insecure = true if the network itself is safe",
    )


def _java_environ(options: str) -> dict[str, str]:
    """The user's own options stay and win: they come last."""
    given = os.environ.get(JAVA_OPTIONS, "")
    return {JAVA_OPTIONS: f"{options} {given}".strip()} if options else {}


def _with_ports(settings: Settings) -> Settings:
    """Fixed ports, so that a part that is restarted comes back where the others look for it."""
    console = ensure_free(settings.console_host, settings.console_port, "console_port")
    if settings.embedded is None:
        return msgspec.structs.replace(settings, console_port=console)
    broker = ensure_free(settings.host, settings.broker_port, "broker_port")
    return msgspec.structs.replace(settings, console_port=console, broker_port=broker)
