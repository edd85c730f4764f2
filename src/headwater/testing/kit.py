"""The test kit for views: events in, time moved by the test, rows out.

It uses the real runner, with a broker and Spark.

    send                      holds events until the next look
    rows, late, batch, check  look: all events sent so far are written to the log, and each view processes
                              them in one batch
    watermark, advance        move the time, which otherwise does not change, after such a look
"""

import atexit
import functools
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headwater.client.client import producer
from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.duration import duration_us
from headwater.declare.graph import Graph
from headwater.declare.schema import Event, key_text, wire
from headwater.declare.spec import View
from headwater.errors import MachineError, UsageError
from headwater.follow import results
from headwater.operate.compare_rows import Row
from headwater.operate.views.check import check
from headwater.operate.views.row_diff import view_rows
from headwater.operate.views.view_position import left_out
from headwater.pipeline.batch.batch import Place, batch, records
from headwater.pipeline.left_out import failed_records as failed
from headwater.pipeline.left_out import late_records as late
from headwater.pipeline.left_out.failed_records import FailedRecord
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from headwater.pipeline.time import watermark as time
from headwater.pipeline.topics import Positions, Topics, records_between
from headwater.pipeline.wire.python_values import python, sort_key
from headwater.pipeline.wire.wire import INVALID
from headwater.position import Position
from headwater.result import TICKS, Heard
from headwater.testing.clock import SettableClock
from headwater.testing.server import broker

__all__ = ["Views", "views"]

LOOK_SECONDS_MAX = 240.0
"""The longest wait for a batch: the first one of a process compiles Spark's plans, perhaps on a busy
machine."""
POLL_S = 0.005
SPARK = "local[4,1]"
"""A failed task is not repeated: its error is the result of the test."""

Sent = Event | Mapping[str, Any] | bytes
Time = datetime | str


@contextmanager
def views(app: App, *names: str, now: Time | None = None) -> Iterator["Views"]:
    """Runs the views of an application, or only the named ones, on an empty log of their own, for one test.

    The first test of a process starts Spark, and later tests use the same session. The clock is set to
    ``now``, or to the time of the start. Real-time views run in batches here.
    """
    start_ms = SystemClock().now_ms() if now is None else _micros(now) // 1000
    with (
        tempfile.TemporaryDirectory(prefix="headwater-test-", ignore_cleanup_errors=True) as folder,
        broker(flush="os") as log,
    ):
        settings = Settings(
            log=f"kafka://{log.bootstrap}",
            view_tables=f"sqlite:{folder}/views",
            spark=SPARK,
            partitions=1,
            trigger_ms=0,
        )
        session.start(settings, import_folder=app.folder, folder=_spark_folder())
        tested = Views(_Tested(app, names), settings, SettableClock(start_ms))
        try:
            yield tested
        finally:
            tested.close()


class _Tested(App):
    """The views of an application that a test needs, all of them in batches."""

    def __init__(self, app: App, names: tuple[str, ...]) -> None:
        super().__init__(app.name)
        self.folder = app.folder
        declared = app.graph()
        for name in names:
            if name not in declared.views:
                raise UsageError(f"unknown view {name!r}", expected=", ".join(declared.views))
        needed = {upstream for name in names for upstream in _with_upstream(declared, name)}
        wanted = [
            msgspec.structs.replace(view, latency="batch")
            for name, view in declared.views.items()
            if not names or name in needed
        ]
        self._graph = Graph(app.name, list(declared.streams.values()), wanted)

    def graph(self) -> Graph:
        return self._graph


def _with_upstream(graph: Graph, view: str) -> Iterator[str]:
    """A view, and all views that it reads, directly or through others."""
    yield view
    for upstream in graph.upstream(graph.views[view]):
        yield from _with_upstream(graph, upstream.name)


class _Pending(NamedTuple):
    """A record to be written: an event of a stream, a row of a table or its deletion, or a tick of a view."""

    reader: str
    topic: str
    key: str | None
    value: bytes | None
    event: Sent | None = None
    partition: int = 0


class Views:
    """Views under test. For one thread; a view that fails fails the look with its error."""

    def __init__(self, app: App, settings: Settings, clock: SettableClock) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._graph = app.graph()
        self._topics = Topics(settings.access)
        self._producer = producer(settings.access)
        self._pending: list[_Pending] = []
        self._sent: dict[Place, Sent] = {}
        self._ends: dict[str, Positions] = {}
        """By stream, and for the ticks of a view by its name: the end of the records to read."""
        self._schemas: dict[str, Any] = {}
        self._reached = time.NEVER
        self._runner = Runner(app, settings, clock, watermark=self._decide)
        try:
            self._runner.start()
        except BaseException:
            self._close_clients()
            raise

    def close(self) -> None:
        """Stops the views; Spark keeps running."""
        self._runner.stop()
        self._close_clients()

    def _close_clients(self) -> None:
        """The producer ends with its last reference, which an exception would keep."""
        self._topics.close()
        del self._producer

    # ---- in --------------------------------------------------------------------------------------------

    def send(self, stream: str, *events: Sent, topic: str | None = None) -> None:
        """Sends events to a stream, or rows to a table.

        They are instances of its type, dicts of fields, or bytes for invalid records.

        ``topic`` names one of the topics of a stream with a pattern.
        """
        if stream not in self._graph.streams:
            raise UsageError(f"unknown stream {stream!r}", expected=", ".join(self._graph.streams))
        spec = self._graph.streams[stream]
        if spec.pattern is not None and topic is None:
            raise UsageError(f"stream {stream!r} has many topics", hint="name one: send(stream, …, topic=…)")
        for event in events:
            if isinstance(event, bytes):  # a table accepts no record without a key
                key, value = (event.decode(errors="replace") if spec.table else None), event
            else:
                if isinstance(event, Event) and not isinstance(event, spec.type):
                    raise UsageError(
                        f"this is not an event of stream {stream!r}",
                        got=type(event).__name__,
                        expected=spec.type.__name__,
                    )
                fields = wire(event) if isinstance(event, Event) else {n: wire(v) for n, v in event.items()}
                key, value = key_text([fields.get(name) for name in spec.key]), msgspec.json.encode(fields)
            self._pending.append(_Pending(stream, topic or spec.topic, key, value, event))

    def delete(self, table: str, *keys: Any) -> None:
        """Deletes rows of a table by their keys; a key of several columns is a tuple."""
        spec = self._graph.streams.get(table)
        if spec is None or not spec.table:
            tables = [name for name, stream in self._graph.streams.items() if stream.table]
            raise UsageError(f"unknown table {table!r}", expected=", ".join(tables))
        for key in keys:
            text = key_text(key if isinstance(key, tuple) else (key,))
            self._pending.append(_Pending(table, spec.topic, text, None))

    def watermark(self, to: Time) -> None:
        """Moves the watermark of all views to a time; older events that are sent from now on are late.

        Events sent before are processed first. Without this call the watermark follows the events, as it does
        outside of tests.
        """
        self._look()
        self._reached = max(self._reached, _micros(to))
        self._tick()

    def advance(self, by: str) -> None:
        """Advances the clock: inputs become idle, windows close, rows are forgotten.

        ``by`` is like "31 minutes".
        """
        self._look()
        self._clock.advance(duration_us(by) / 1e6)
        self._runner.note_silence()
        self._tick()

    # ---- out -------------------------------------------------------------------------------------------

    def rows(self, view: str) -> list[Row]:
        """The rows of a view as readers see them, with Python values, sorted by key.

        Columns that begin with "_" are left out.
        """
        spec = self._view(view)
        self._look()
        return self._shown(spec, [row for rows in view_rows(self._topics, spec).values() for row in rows])

    def batch(self, view: str) -> list[Row]:
        """The same rows from a batch over all records that the view has read, except its late ones."""
        spec = self._view(view)
        self._look()
        newest = results.newest(self._topics, view)
        if newest is None:
            return []
        skipped = left_out(self._topics, view, newest, newest.inputs)
        frame = batch(self._app, self._settings, view, Position(newest.inputs), skipped.all())
        return self._shown(spec, [msgspec.json.decode(value) for _, value in records(frame, spec)])

    def check(self, view: str, *, plain: bool = False) -> None:
        """Raises AssertionError with the first difference, unless the view equals its batch.

        This is ``headwater view check``.

        With ``plain`` the batch is computed by Spark's own operators, without Headwater's.
        """
        self._view(view)
        self._look()
        report = check(self._app, self._settings, view, plain=plain)
        if report.first is not None:
            raise AssertionError(str(report))

    def late(self, view: str) -> list[Sent]:
        """The events that were late for a view, as they were sent, in that order."""
        self._view(view)
        self._look()
        return self._events(late.published(self._topics, view))

    def failed(self, view: str) -> list[Sent]:
        """The events on which the query of a view fails, as they were sent, in that order."""
        self._view(view)
        self._look()
        return self._events(failed.published(self._topics, view))

    def _events(self, records: Iterable[LateRecord | FailedRecord]) -> list[Sent]:
        places = {Place(record.topic, record.partition, record.offset) for record in records}
        return [event for place, event in self._sent.items() if place in places]

    def invalid(self, stream: str) -> list[Sent]:
        """The records sent to a stream that do not fit its type."""
        self._look()
        topics = self._topics.of(self._graph.streams[stream], self._graph)
        keys = {
            record.key().decode() for record in self._topics.read([f"{topic}.{INVALID}" for topic in topics])
        }
        return [event for place, event in self._sent.items() if "-".join(map(str, place)) in keys]

    def _shown(self, view: View, rows: list[Row]) -> list[Row]:
        kind = self._schema(view.name)
        return sorted((python(kind, row) for row in rows), key=lambda row: sort_key(row, view.key))

    def _schema(self, view: str) -> Any:
        if view not in self._schemas:
            self._schemas[view] = batch(self._app, self._settings, view).schema
        return self._schemas[view]

    def _view(self, name: str) -> View:
        if name not in self._graph.views:
            raise UsageError(f"unknown view {name!r}", expected=", ".join(self._graph.views))
        return self._graph.views[name]

    # ---- batches ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Lets every view process all records sent so far, in one batch."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._topics.ensure({record.topic for record in pending}, 1, compact=False)
        with self._runner.held():
            for record in pending:
                self._produce(record)
            self._flush()
        self._await()

    def _tick(self) -> None:
        """Lets the views check their time-outs, if they may have any."""
        started = [view for view in self._runner.timed if self._runner.positions()[view]]
        for view in started:
            self._produce(_Pending(view, TICKS, view, b"", partition=time.tick_partition(view)))
        self._flush()
        self._await()

    def _produce(self, record: _Pending) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                raise MachineError("the test's log has refused a record", got=error.str())
            place = Place(message.topic(), message.partition(), message.offset())
            ends = self._ends.setdefault(record.reader, {}).setdefault(place.topic, {})
            ends[place.partition] = place.offset + 1
            if record.event is not None:
                self._sent[place] = record.event

        self._producer.produce(
            record.topic, record.value, record.key, record.partition, on_delivery=delivered
        )

    def _flush(self) -> None:
        if self._producer.flush(LOOK_SECONDS_MAX):
            raise MachineError("the test's log has not acknowledged all records", got="no answer")

    def _await(self) -> None:
        clock, pause = SystemClock(), threading.Event()
        limit = clock.monotonic() + LOOK_SECONDS_MAX
        while any(self._has_lag(view) for view in self._graph.views.values()):
            if self._runner.wait(0) or clock.monotonic() > limit:
                raise MachineError(f"the views have not processed all events within {LOOK_SECONDS_MAX:.0f} s")
            pause.wait(POLL_S)

    def _has_lag(self, view: View) -> bool:
        position = self._runner.positions()[view.name]
        readers = {view.name, *(name for name in view.inputs.values() if name in self._graph.streams)}
        if any(records_between(position, self._ends.get(reader, {})) for reader in readers):
            return True
        return any(
            self._has_lag(upstream) or self._has_unread(position, upstream)
            for upstream in self._graph.upstream(view)
        )

    def _has_unread(self, position: Positions, upstream: View) -> bool:
        """Whether a view has written records after a position."""
        newest = results.newest(self._topics, upstream.name)
        return newest is not None and records_between(position, {upstream.name: newest.outputs}) > 0

    def _decide(self, inputs: Mapping[str, time.Input], known: Mapping[str, Heard], before: int) -> int:
        """The watermark as outside of tests, or the one set by the test if that is later."""
        return max(time.watermark(inputs, known, before), self._reached)


def _micros(moment: Time) -> int:
    """A time in microseconds; one without a time zone is taken as UTC."""
    at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    since_epoch = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds


@functools.cache
def _spark_folder() -> Path:
    """The folder of Spark's logs of this process, which exists as long as the process."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
