"""App: the streams, tables and views of one application, declared in its file.

Declarations are only noted here; ``graph()`` checks them all together before anything starts.
"""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headwater import operators
from headwater.config import Settings, load
from headwater.errors import HeadwaterError, UsageError
from headwater.graph import Capture, Graph, Sink, Stream, View
from headwater.late import Late, side
from headwater.position import Position
from headwater.schema import Event
from headwater.sql import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.capture.declared import Database
    from headwater.sink.store import Target

__all__ = ["App"]

Function = TypeVar("Function", bound=Callable[..., Any])
Key = str | Sequence[str]


class App:
    """An application: a name, its streams, its tables and its views. Declaring starts nothing and opens nothing."""

    def __init__(self, name: str, *, pace: Literal["", "sink"] = "") -> None:
        """With ``pace="sink"`` no view in batches reads faster than the slowest sink of its rows; a view may say otherwise."""
        self.name = name
        self.pace = pace
        self.folder: Path | None = None
        self._streams: list[Stream] = []
        self._views: list[View] = []
        self._sinks: list[Sink] = []
        self._captures: list[Capture] = []

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
    ) -> Stream:
        """Declares a stream of events: one topic (its name, or ``topic``), or all topics that match ``pattern``.

        ``time`` names the event time, or is ``hw.ARRIVAL`` for events that have none; records that come more than ``delay`` after newer ones are late. A partition that is silent
        for ``idle`` holds up no other.
        """
        spec = Stream(name, type, _names(key), time, delay, topic, pattern, idle)
        self._streams.append(spec)
        return spec

    def table(
        self,
        name: str,
        type: type[Event],  # noqa: A002 (the word users expect)
        *,
        key: Key,
        time: str = "",
        topic: str | None = None,
        delay: str = "10 minutes",
        idle: str = "1 minute",
        envelope: Literal["", "debezium"] = "",
    ) -> Stream:
        """Declares a table: a topic in which the newest record of a key is its row, and a record without value deletes it.

        A view that reads it sees rows that come in and rows that are taken out again. With ``time``, which says since when a row is
        as it is, the table takes part in the watermark of its views; no row of it is ever late. ``envelope="debezium"`` is for topics of
        captures, of ours or of Debezium: ``topic="shop.public.orders"``.
        """
        spec = Stream(name, type, _names(key), time, delay, topic, idle=idle, table=True, envelope=envelope)
        self._streams.append(spec)
        return spec

    def view(
        self,
        key: Key = (),
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        latency: Literal["batch", "realtime"] = "batch",
        late: Late | None = None,
        forget: str | None = None,
        append: bool = False,
        emit: Literal["changes", "ready"] = "changes",
        pace: Literal["", "sink"] | None = None,
        on_error: Literal["skip", "stop"] = "stop",
    ) -> Callable[[Function], Function]:
        """Declares the decorated function as a view: DataFrames in, DataFrame out, one row for each key.

        ``late`` says what becomes of records that come after their window: ``hw.side()``, ``hw.drop()``, ``hw.correct("1 day")``. A row that has not changed for ``forget`` leaves the view.
        ``emit="ready"`` publishes a row only once the watermark says that it is complete.
        With ``append`` each row is a record of its own and replaces none: a stream made of streams.
        ``on_error``: a record that the query fails on stops the view (``"stop"``), or goes to ``<view>.failed`` and the view continues without it (``"skip"``, ``docs/guide.md``).
        ``pace="sink"``: it waits when a sink of its rows is too far behind (``docs/overload.md``); without it, as the app says.
        Inputs are the parameter names, or ``inputs={"parameter": "stream"}``: streams, tables, and other views. The function stays
        callable in tests.
        """
        if callable(key):
            raise UsageError(f"view {key.__name__!r} has no key", hint="write @app.view(key=[...])")

        def declare(function: Function) -> Function:
            given = name or function.__name__
            code = function.__code__
            parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            mapped = (
                dict(inputs) if inputs is not None else {parameter: parameter for parameter in parameters}
            )
            if set(mapped) != set(parameters):
                wanted = ", ".join(parameters) or "none"
                raise UsageError(
                    f"view {given!r}: inputs are not its parameters", got=", ".join(mapped), expected=wanted
                )
            self._views.append(
                View(
                    given,
                    _names(key),
                    mapped,
                    latency,
                    function=function,
                    late=late or side(),
                    forget=forget,
                    append=append,
                    emit=emit,
                    pace=self._pace(pace, latency),
                    on_error=on_error,
                )
            )
            return function

        return declare

    def sql(
        self,
        name: str,
        query: str,
        *,
        key: Key = (),
        inputs: Mapping[str, str] | None = None,
        latency: Literal["batch", "realtime"] = "batch",
        late: Late | None = None,
        forget: str | None = None,
        append: bool = False,
        emit: Literal["changes", "ready"] = "changes",
        pace: Literal["", "sink"] | None = None,
        on_error: Literal["skip", "stop"] = "stop",
    ) -> None:
        """Declares a view by a SQL query over streams, tables and views; ``inputs={"alias": "stream"}`` names streams that are no SQL names."""
        mapped = (
            dict(inputs)
            if inputs is not None
            else {table: table for table in tables(query, operators.__all__)}
        )
        self._views.append(
            View(
                name,
                _names(key),
                mapped,
                latency,
                query=query,
                late=late or side(),
                forget=forget,
                append=append,
                emit=emit,
                pace=self._pace(pace, latency),
                on_error=on_error,
            )
        )

    def _pace(self, given: Literal["", "sink"] | None, latency: str) -> Literal["", "sink"]:
        """What a view says, or the app; real-time views are not meant by the app."""
        if given is not None:
            return given
        return self.pace if latency == "batch" else ""

    def sink(self, source: str, target: "Target", *, name: str | None = None) -> None:
        """Keeps a store in step with a stream, table or view: ``app.sink("revenue", hw.sink.Postgres(url))``.

        ``name`` is what its position is kept under, and what commands call it; without one, the source and the kind of store.
        """
        self._sinks.append(Sink(name or f"{source}.{target.kind}", source, target))

    def capture(self, name: str, database: "Database") -> None:
        """Follows a database: ``app.capture("shop", hw.capture.Postgres(url, tables=["public.orders"]))`` fills the topic ``shop.public.orders``."""
        self._captures.append(Capture(name, database))

    def graph(self) -> Graph:
        """All declarations, checked. UsageError says what is wrong with the first bad one."""
        return Graph(self.name, self._streams, self._views, self._sinks, self._captures)

    def batch(
        self, view: str, upto: Position | str | None = None, settings: Settings | None = None
    ) -> "DataFrame":
        """The rows of a view from the same function, over the log up to a position of its streams; without one, over all that it holds now.

        Settings are those of file and environment unless given, as for a command.
        """
        from headwater.pipeline.batch import batch

        position = Position.parse(upto) if isinstance(upto, str) else upto
        return batch(self, settings or load(), view, position)

    @staticmethod
    def load(path: str) -> "App":
        """Imports an application file and gives back its one App."""
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
        app.folder = file.resolve().parent
        return app


def _names(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _import(file: Path) -> Any:
    """Runs the file as a module, with its folder importable, as Python does with a script."""
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"headwater_app_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"application file {file} is no Python file", expected="a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        where = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
        ]
        line = where[-1] if where else getattr(error, "lineno", None)
        at = f"{file}, line {line}" if line else str(file)
        raise UsageError(f"application file {at}: {type(error).__name__}: {error}") from error
    return module
