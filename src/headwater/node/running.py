"""Running: an application with its views in this process, for notebooks and scripts.

    with app.running() as shop:
        shop.send("orders", [Order(...)])
        shop.rows("revenue").to_pandas()

The log (if it is embedded) and the console are child processes, as under ``headwater up``. Views run on
this process's Spark, so that functions defined in a notebook work; captures and sinks run in threads.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from headwater.capture.loop.feed import Feed
from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.schema import Event
from headwater.declare.spec import Stream, View
from headwater.errors import HeadwaterError, NotReachedError, UsageError
from headwater.follow.follower import Follower
from headwater.node.node import Node
from headwater.pipeline.batch.batch import batch
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import java
from headwater.pipeline.wire.python_values import python
from headwater.position import Position
from headwater.sink.loop.sinks import Sinks
from headwater.view.tables.query import RowQuery
from headwater.view.tables.reader import ViewTable
from headwater.worker.workers import Workers
from headwater.write.writer import Writer

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Rows", "Running"]

WAIT_S = 10.0
POLL_S = 0.02
JOIN_S = 20.0


class Rows(list[dict[str, Any]]):
    """The rows of a view, ordered by key, and the position up to which the view's table holds its topic."""

    def __init__(self, rows: Iterable[dict[str, Any]], position: Position) -> None:
        super().__init__(rows)
        self.position = position

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a pandas DataFrame."""
        import pandas as pd  # noqa: PLC0415  takes half a second

        return pd.DataFrame(list(self))


class Running:
    """An application that runs. A context manager; in a notebook also `start` and `stop`.

    Any thread may call `send`, `rows` and `wait`. A view, capture or sink that fails makes them raise its
    error.
    """

    def __init__(self, app: App, settings: Settings) -> None:
        self.graph = app.graph()
        if app.file is not None:
            app.folder = app.folder or app.file.parent
        self._app = app
        self._stop = threading.Event()
        self._node = Node(settings, None, self.graph, stop=self._stop)
        self.settings = self._node.settings
        self._runner = Runner(app, self.settings)
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._writer: Writer | None = None
        self._schemas: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """The address of the console."""
        return self._node.url

    @property
    def log(self) -> str:
        """Where Kafka clients find the log: ``host:port``."""
        return self.settings.bootstrap

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Starts everything; returns when all views run."""
        java.require()
        self._node.start_log()
        self._node.start_console()
        self._runner.start(self._start_captures)
        if self.graph.sinks:
            sinks = Sinks(self.settings.access, self.graph, self.settings.data)
            self._in_thread("sinks", lambda: sinks.run(self._stop, forever=True))
        if self.graph.workers:
            settings = self.settings
            workers = Workers(settings.access, self.graph, settings.data, partitions=settings.partitions)
            self._in_thread("workers", lambda: workers.run(self._stop, forever=True))
        return self

    def _start_captures(self) -> None:
        """Once all views are planned: an application that is wrong touches no database."""
        for name in self.graph.captures:
            self._in_thread(f"capture {name}", self._capture(name))

    def stop(self) -> None:
        """Lets each view finish its batch, and ends everything that was started.

        Spark stays for the next start.
        """
        self._stop.set()
        self._runner.stop()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for thread in self._threads:
            thread.join(JOIN_S)
        self._node.supervisor.close()

    def send(self, stream: str | Stream, events: Event | Iterable[Event]) -> Position:
        """Sends events to a stream, or rows to a table.

        Returns the position after them, for `rows` and `wait`.
        """
        self._check()
        spec = stream if isinstance(stream, Stream) else self.graph.streams.get(stream)
        if spec is None:
            raise UsageError(f"unknown stream {stream!r}", expected=", ".join(self.graph.streams))
        if self._writer is None:
            self._writer = Writer(self.settings)
        return self._writer.send(spec, events)

    def wait(self, view: str | View, at_least: Position | str, timeout: float = WAIT_S) -> Position:
        """Blocks until a view has processed its inputs up to a position; see `headwater.wait`."""
        self._check()
        with Follower(self.settings) as follower:
            return follower.wait(self._view(view).name, at_least, timeout)

    def rows(
        self,
        view: str | View,
        *,
        at_least: Position | str | None = None,
        timeout: float = WAIT_S,
        limit: int | None = None,
    ) -> Rows:
        """The rows of a view with Python values.

        With ``at_least``, once the view has processed that position.

        NotReachedError if that takes longer than ``timeout`` seconds.
        """
        self._check()
        spec = self._view(view)
        table = ViewTable(self.settings.views / f"{spec.name}.db", spec.key)
        if at_least is not None:
            self._await_table(table, self.wait(spec, at_least, timeout), timeout)
        snapshot = table.rows(RowQuery(limit=limit))
        schema = self._schema(spec.name)
        return Rows((python(schema, row.columns()) for row in snapshot.rows), snapshot.position)

    def _await_table(self, table: ViewTable, position: Position, timeout: float) -> None:
        clock = SystemClock()
        limit = clock.monotonic() + timeout
        while not Position(table.position().offsets).covers(position):
            self._check()
            if clock.monotonic() > limit:
                raise NotReachedError(
                    f"the table of view {table.topic!r} has not reached the position within {timeout:g} s",
                    got=str(table.position()),
                    expected=str(position),
                )
            self._stop.wait(POLL_S)

    def _schema(self, view: str) -> Any:
        if view not in self._schemas:
            self._schemas[view] = batch(self._app, self.settings, view).schema
        return self._schemas[view]

    def _view(self, view: str | View) -> View:
        name = view if isinstance(view, str) else view.name
        if name not in self.graph.views:
            raise UsageError(f"unknown view {name!r}", expected=", ".join(self.graph.views))
        return self.graph.views[name]

    def _capture(self, name: str) -> Callable[[], None]:
        database = self.graph.captures[name].database
        folder = self.settings.data / "captures" / name
        folder.mkdir(parents=True, exist_ok=True)
        feed = Feed(
            name,
            database.open(name, folder),
            self.settings.access,
            partitions=database.partitions or self.settings.partitions,
            outbox=database.outbox_router(name),
            folder=folder,
            stays=True,
        )
        return lambda: feed.run(self._stop)

    def _in_thread(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  raised by the next call
                self._failures.append(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _check(self) -> None:
        """Raises what has ended a view, a capture, the sinks, the broker or the console."""
        self._runner.wait(0)
        self._node.supervisor.check()
        for error in self._failures:
            raise error if isinstance(error, HeadwaterError) else RuntimeError(str(error)) from error
