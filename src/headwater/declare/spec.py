"""The declarations of an application as data: streams, views, sinks, captures and workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from headwater.declare.backoff import Backoff, backoff
from headwater.declare.duration import duration_us
from headwater.declare.lateness import Late, side
from headwater.declare.schema import Column, Event, columns
from headwater.errors import UsageError

__all__ = [
    "RESERVED",
    "SINK_GROUP",
    "VIEW_GROUP",
    "Capture",
    "Sink",
    "Stream",
    "View",
    "ViewOptions",
    "Worker",
    "WorkerOptions",
    "column_names",
]


RESERVED = (".progress", ".late", ".failed", ".ledger", ".invalid", ".dead", ".parked", ".shed", ".shadow")
"""Endings of the further topics that Headwater writes for a view or stream."""
VIEW_GROUP = "headwater."
SINK_GROUP = "headwater.sink."
"""Prefixes of the consumer groups of views and sinks; their names follow."""


def column_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """One or more columns, as the arguments of the API name them."""
    return (names,) if isinstance(names, str) else tuple(names)


class Stream(msgspec.Struct, frozen=True):
    """A declared stream or table: one topic, or all topics that match a pattern.

    For its readers a view is one too.
    """

    name: str
    type: type[Event]
    key: tuple[str, ...]
    time: str
    delay: str
    topic_name: str | None = None
    pattern: str | None = None
    idle: str = "1 minute"
    table: bool = False
    """Whether it is a table: the newest record of a key is its row, and a tombstone deletes it."""
    view: bool = False
    """Whether it is the topic of a view."""
    fields: tuple[Column, ...] = ()
    """The columns of a view, which has no type."""
    envelope: Literal["", "debezium"] = ""
    """The envelope around the rows of a captured table."""
    retention: str | None = None
    """How long the topic of a stream keeps a record; None: for ever."""

    @property
    def retention_ms(self) -> int:
        """The same in milliseconds, -1 for ever, as Kafka has it."""
        return -1 if self.retention is None else duration_us(self.retention) // 1000

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.fields if self.view else columns(self.type)

    @property
    def topic(self) -> str:
        """The topic of a stream without a pattern."""
        return self.topic_name or self.name


class View(msgspec.Struct, frozen=True):
    """A declared view: a function or a query, its key, and its inputs by parameter.

    An input is a stream, a table or a view.
    """

    name: str
    key: tuple[str, ...]
    inputs: dict[str, str]
    latency: Literal["batch", "realtime"] = "batch"
    function: Callable[..., Any] | None = None
    query: str | None = None
    late: Late = side()
    forget: str | None = None
    """The time after which a row that has not changed is removed; None: never."""
    append: bool = False
    """Whether each row is a record of its own, and none replaces another."""
    emit: Literal["changes", "ready"] = "changes"
    """Whether rows are published whenever they change, or once they are complete."""
    pace: Literal["", "sink"] = ""
    """With ``sink``, it reads no faster than its slowest sink."""
    on_error: Literal["skip", "stop"] = "skip"
    """Whether a record on which the query fails goes to ``<view>.failed`` or stops the view."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function of the view, for a test of it on DataFrames; a view by SQL has none."""
        if self.function is None:
            raise UsageError(f"view {self.name!r} is a SQL query and cannot be called")
        return self.function(*args, **kwargs)


class ViewOptions(TypedDict, total=False):
    """What `App.view` and `App.sql` take besides the key, the name and the query."""

    inputs: Mapping[str, str]
    """``{"parameter": "stream"}`` (for SQL: ``{"alias": "stream"}``).

    Without it, parameters are names of inputs.
    """
    latency: Literal["batch", "realtime"]
    """``"realtime"``: milliseconds, for keyed views of plain Spark operators (``docs/guide.md``)."""
    late: Late
    """What happens to late records: ``hw.late.side()`` (default), ``.drop()``, ``.correct("1 day")``."""
    forget: str
    """A row that has not changed for this long leaves the view."""
    append: bool
    """Each row is a record of its own and replaces none: a stream derived from streams."""
    emit: Literal["changes", "ready"]
    """``"ready"`` publishes a row only once the watermark says that it is complete."""
    pace: Literal["", "sink"]
    """``"sink"``: the view waits while a sink of its rows lags too far (``docs/overload.md``).

    Default: as the app.
    """
    on_error: Literal["skip", "stop"]
    """A record on which the query fails goes to ``<view>.failed``, or stops the view (``"stop"``).

    Default: ``"skip"``. In both cases a failing aggregate stops the view.
    """


class Sink(msgspec.Struct, frozen=True):
    """A declared sink: a stream, table or view, and the store that is kept in sync with it."""

    name: str
    source: str
    target: Any
    """The store, a ``headwater.sink.store.Target``."""


class Capture(msgspec.Struct, frozen=True):
    """A declared capture: a database whose tables become the topics ``<name>.<schema>.<table>``."""

    name: str
    database: Any
    """The database, a ``headwater.capture.database.Database``."""


class WorkerOptions(TypedDict, total=False):
    """What `App.worker` takes besides the source and the name."""

    group: str
    """The share group that divides the messages among processes; by default ``<app>.<name>``."""
    concurrency: int
    """How many handlers run at once in a process: threads, or coroutines of an ``async def``. Default: 8."""
    order_by: Literal["", "key"]
    """``"key"``: one message of a key at a time, in their order, also when one fails."""
    park: bool
    """With ``order_by="key"``: after a dead letter the later messages of its key are dead letters too.

    Their order is kept until the key is redriven. Default: False, the key continues without that message.
    """
    timeout: str
    """A handler that runs longer has failed. Default: ``"1 minute"``."""
    retry: Backoff
    """How often and when a message is tried again. Default: ``hw.backoff("1s", attempts=5)``."""


class Worker(msgspec.Struct, frozen=True):
    """A declared worker: a handler for the messages of a topic, each by itself, until it succeeds.

    ``source`` is a declared stream or view; ``topic`` a topic by its name.
    """

    name: str
    function: Callable[..., Any]
    source: str
    topic: str
    group: str
    concurrency: int = 8
    order_by: Literal["", "key"] = ""
    park: bool = False
    timeout: str = "1 minute"
    retry: Backoff = backoff("1s")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the handler, for a test of it."""
        return self.function(*args, **kwargs)

    @property
    def timeout_s(self) -> float:
        return duration_us(self.timeout) / 1e6
