"""App: the streams, tables and views of one application, declared in its file.

Declarations are only recorded here; ``graph()`` checks them all together before anything starts.
"""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from headwater import own_frames
from headwater.config import Settings, load
from headwater.declare import operators, parameters
from headwater.declare.graph import Graph
from headwater.declare.schema import Event, Row
from headwater.declare.spec import (
    Capture,
    Sink,
    Stream,
    View,
    ViewOptions,
    Worker,
    WorkerOptions,
)
from headwater.declare.sql_scan import tables
from headwater.errors import HeadwaterError, UsageError
from headwater.position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.capture.database import Database
    from headwater.node.running import Running
    from headwater.sink.store import Target

__all__ = ["App"]

Key = str | Sequence[str]
Declared = str | Stream | View
"""A stream, table or view, or its name."""

_loading: list[Path] = []
"""The application file that `App.load` is running."""


class App:
    """An application: a name, its streams, tables and views. Declaring starts nothing and opens nothing."""

    def __init__(self, name: str, *, pace: Literal["", "sink"] = "") -> None:
        """With ``pace="sink"`` no micro-batch view reads faster than its slowest sink, unless it says so."""
        self.name = name
        self.pace = pace
        self.file = _loading[-1] if _loading else _caller()
        """The file that declares it, or None in a notebook."""
        self.folder: Path | None = None
        """The folder whose modules Spark's workers may import."""
        self._streams: list[Stream] = []
        self._views: list[View] = []
        self._sinks: list[Sink] = []
        self._captures: list[Capture] = []
        self._workers: list[Worker] = []

    # ---- declarations: each returns what it declares -----------------------------------------------------

    def stream(
        self,
        name: str,
        type: type[Event],  # noqa: A002 (the word users expect)
        *,
        key: Key,
        time: str = "",
        delay: str = "10 minutes",
        topic: str | None = None,
        pattern: str | None = None,
        idle: str = "1 minute",
        retention: str | None = None,
    ) -> Stream:
        """Declares a stream of events: the topic of its name, ``topic``, or all that match ``pattern``.

        ``time`` names the column with the event time, or is ``hw.ARRIVAL`` if events have none. A record is
        late if it is more than ``delay`` older than the newest one. A partition that is silent for ``idle``
        delays no other. Records are kept for ever, so that views can be rebuilt from all of them; with
        ``retention="30 days"`` for that long.
        """
        names = _names(f"stream {name!r}", key)
        spec = Stream(name, type, names, time, delay, topic, pattern, idle, retention=retention)
        self._streams.append(spec)
        return spec

    def table(
        self,
        name: str,
        type: type[Row],  # noqa: A002 (the word users expect)
        *,
        key: Key,
        time: str = "",
        topic: str | None = None,
        delay: str = "10 minutes",
        idle: str = "1 minute",
        envelope: Literal["", "debezium"] = "",
    ) -> Stream:
        """Declares a table: the newest record of a key is its row, and a null value deletes it.

        Views get it as an `hw.Table`, whose rows are inserted and retracted. ``time`` names the column that
        says since when a row is valid; with it the table takes part in the watermark of its views, and none
        of its rows is ever late. ``envelope="debezium"`` reads topics of captures, ours or Debezium's:
        ``topic="shop.public.orders"``.
        """
        names = _names(f"table {name!r}", key)
        spec = Stream(name, type, names, time, delay, topic, idle=idle, table=True, envelope=envelope)
        self._streams.append(spec)
        return spec

    def view(
        self, key: Key = (), *, name: str | None = None, **options: Unpack[ViewOptions]
    ) -> Callable[[Callable[..., Any]], View]:
        """Declares the decorated function as a view: DataFrames and tables in, one row for each key out.

        Inputs are the parameters: names of streams, tables and other views, or ``inputs={"parameter":
        "stream"}``. A parameter with a default value is an input only if it is the name of one. The other
        options are those of `ViewOptions`: ``late``, ``forget``, ``append``, ``emit``, ``latency``,
        ``pace``, ``on_error``. The view can be called like the function, in tests.
        """
        if callable(key):
            shown = parameters.name_of(key)
            raise UsageError(f"view {shown!r} has no key", hint="write @app.view(key=[...])")
        _check_options("view", options, ["key", "name"], ViewOptions.__annotations__)

        def declare(function: Callable[..., Any]) -> View:
            view_name = name or parameters.name_of(function)
            inputs = parameters.inputs(view_name, function, options.get("inputs"))
            return self._view(view_name, key, inputs, options, function=function)

        return declare

    def sql(self, name: str, query: str, *, key: Key = (), **options: Unpack[ViewOptions]) -> View:
        """Declares a view by a SQL query over streams, tables and views.

        ``inputs={"alias": "stream"}`` names inputs whose names are not SQL names. Options are those of
        `view`.
        """
        _check_options("sql", options, ["key", "name"], ViewOptions.__annotations__)
        if not isinstance(query, str):
            raise UsageError(f"view {name!r}: its query is not a text", got=repr(query), expected="SELECT …")
        inputs = options.get("inputs") or {table: table for table in tables(query, operators.__all__)}
        return self._view(name, key, dict(inputs), options, query=query)

    def _view(
        self, name: str, key: Key, inputs: dict[str, str], options: ViewOptions, **definition: Any
    ) -> View:
        pace = options.get("pace")
        if pace is None:  # the app's pace is not for real-time views
            pace = self.pace if options.get("latency", "batch") == "batch" else ""
        fields: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
        names = _names(f"view {name!r}", key)
        view = View(name, names, **fields | {"inputs": inputs, "pace": pace} | definition)
        self._views.append(view)
        return view

    def sink(self, source: Declared, target: "Target", *, name: str | None = None) -> Sink:
        """Keeps a store in sync with a stream, table or view: ``app.sink("revenue", hw.sink.Postgres(url))``.

        ``name`` is the sink's name in commands, and its position is stored under it; the default consists
        of the names of the source and of the kind of store.
        """
        source_name = source if isinstance(source, str) else source.name
        spec = Sink(name or f"{source_name}.{target.kind}", source_name, target)
        self._sinks.append(spec)
        return spec

    def capture(self, name: str, database: "Database") -> Capture:
        """Captures a database: ``app.capture("shop", hw.capture.Postgres(url, tables=["public.orders"]))``.

        Changes of that table go to the topic ``shop.public.orders``.
        """
        spec = Capture(name, database)
        self._captures.append(spec)
        return spec

    def worker(
        self,
        source: Declared = "",
        *,
        topic: str = "",
        name: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> Callable[[Callable[..., Any]], Worker]:
        """Declares the decorated function as the handler of each message of a stream or an append view.

        ``topic=`` names any other topic. A message is handled until the function returns; when it raises, it
        is tried again. The function takes the message, and if it has a second parameter an `hw.Work`. The
        options are those of `WorkerOptions`: ``group``, ``concurrency``, ``order_by``, ``park``, ``timeout``,
        ``retry``. It can be called like before, in tests.
        """
        if callable(source) and not isinstance(source, View):
            raise UsageError(
                f"worker {source.__name__!r} has no source", hint='write @app.worker("name of a stream")'
            )
        _check_options("worker", options, ["source", "topic", "name"], WorkerOptions.__annotations__)

        def declare(function: Callable[..., Any]) -> Worker:
            worker_name = name or function.__name__
            fields: dict[str, Any] = {"group": f"{self.name}.{worker_name}", **options}
            source_name = source if isinstance(source, str) else source.name
            spec = Worker(worker_name, function, source_name, topic, **fields)
            self._workers.append(spec)
            return spec

        return declare

    def graph(self) -> Graph:
        """All declarations, checked. UsageError says what is wrong with the first bad one."""
        names = {stream.name for stream in self._streams} | {view.name for view in self._views}
        views = [parameters.without_defaults(view, names) for view in self._views]
        return Graph(self.name, self._streams, views, self._sinks, self._captures, workers=self._workers)

    # ---- running it, from Python -------------------------------------------------------------------------

    def run(self, settings: Settings | None = None, *, once: bool = False) -> None:
        """Runs the views in this process until Ctrl-C, as ``headwater run``.

        With ``once=True`` it reads what is there and ends.

        Settings are those of file and environment unless given; this holds for all methods below.
        """
        self._refuse_while_loading("run")
        from headwater.node.views import run_views

        if self.file is not None:
            self.folder = self.file.parent
        run_views(self, settings or load(), once=once)

    def up(self, settings: Settings | None = None) -> None:
        """Runs everything as supervised processes until Ctrl-C, as ``headwater up``."""
        self._refuse_while_loading("up")
        if self.file is None:
            raise UsageError(
                "app.up() starts processes that load the application's file, and this app has none",
                hint="in a notebook write: with app.running() as running: …",
            )
        from headwater.node.up import up

        up(self.file, self.graph(), settings or load())

    def running(self, settings: Settings | None = None) -> AbstractContextManager["Running"]:
        """Runs everything while a ``with`` block or a notebook lasts, with the views in this process.

        ``with app.running() as shop: shop.send("orders", [...]); shop.rows("revenue").to_pandas()``
        """
        self._refuse_while_loading("running")
        from headwater.node.running import Running

        return Running(self, settings or load())

    def batch(
        self, view: str | View, upto: Position | str | None = None, settings: Settings | None = None
    ) -> "DataFrame":
        """The rows of a view as a batch over the log, up to a position of its inputs.

        By default, over all of it.
        """
        from headwater.pipeline.batch.batch import batch

        name = view if isinstance(view, str) else view.name
        position = Position.parse(upto) if isinstance(upto, str) else upto
        return batch(self, settings or load(), name, position)

    def _refuse_while_loading(self, method: str) -> None:
        if _loading:
            raise UsageError(
                f"app.{method}() is called while the application file is loaded",
                hint=f'write it under if __name__ == "__main__": for `python {_loading[-1].name}`',
            )

    @staticmethod
    def load(path: str) -> "App":
        """Imports an application file and returns its one App."""
        file = Path(path)
        if not file.is_file():
            raise UsageError(f"application file {path} does not exist")
        module = _import(file)
        apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
        if len(apps) != 1:
            raise UsageError(
                f"application file {path} defines {len(apps)} apps", expected='one: app = hw.App("name")'
            )
        (app,) = apps.values()
        app.file = file.resolve()
        app.folder = app.file.parent
        return app


def _names(what: str, key: Key) -> tuple[str, ...]:
    """The columns of a key. UsageError, naming ``what``, for anything but a name or several."""
    names: Sequence[object] = (key,) if isinstance(key, str) else key
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{what}: key= is wrong", got=repr(key), expected="the name of a column, or a list of names"
        )
    return tuple(str(name) for name in names)


def _check_options(method: str, options: Iterable[str], named: list[str], further: Iterable[str]) -> None:
    for option in options:
        if option not in further:
            near = get_close_matches(option, further, n=1)
            raise UsageError(
                f"app.{method} has no option {option!r}",
                expected=", ".join([*named, *further]),
                hint=f"did you mean {near[0]}?" if near else "",
            )


def _caller() -> Path | None:
    """The file of the module that makes an App; None in a notebook."""
    file = sys._getframe(2).f_globals.get("__file__")  # noqa: SLF001
    path = Path(file).resolve() if file else None
    return path if path and path.is_file() else None


def _needs_spark(error: Exception) -> bool:
    """Whether a function of PySpark fails because there is no session: with this error, or an empty one."""
    frames = traceback.extract_tb(error.__traceback__)
    in_spark = bool(frames) and "/pyspark/" in frames[-1].filename
    is_missing = getattr(error, "_errorClass", "") == "SESSION_OR_CONTEXT_NOT_EXISTS"
    return in_spark and (is_missing or (isinstance(error, AssertionError) and not str(error)))


def _import(file: Path) -> Any:
    """Runs the file as a module, with its folder importable, as Python does with a script."""
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"headwater_app_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"application file {file} is not a Python file", expected="a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _loading.append(file.resolve())
    try:
        spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        if _needs_spark(error):
            raise UsageError(
                f"application file {file} uses Spark while it is loaded, before Spark runs",
                got=own_frames.shown(own_frames.of_error(error)[-1:]),
                hint="give the type as StringType(), or make the column inside the view's function",
            ) from error
        raise UsageError(
            f"application file {file}: {type(error).__name__}: {error}",
            got=own_frames.shown(own_frames.of_error(error)),
        ) from error
    finally:
        _loading.pop()
    return module
