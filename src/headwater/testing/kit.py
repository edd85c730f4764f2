"""The kit for views: events in, time moved by hand, rows out; on the real runner, with a broker and Spark in the test's own process.

send      keeps events until somebody looks
look      rows, late, batch, check: all that was sent goes into the log at once, and each view takes it in one batch
time      stands; ``watermark`` and ``advance`` move it, after all that was sent before has been taken
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

from headwater import result
from headwater.app import App
from headwater.client import producer
from headwater.clock import SystemClock
from headwater.compare import Row
from headwater.config import Settings
from headwater.errors import MachineError, UsageError
from headwater.graph import Graph, View
from headwater.late import duration_us
from headwater.operate import check
from headwater.pipeline import failed, late, session, source, time
from headwater.pipeline.batch import Place, batch, records
from headwater.pipeline.failed import FailedRecord
from headwater.pipeline.late import LateRecord
from headwater.pipeline.runner import Runner
from headwater.pipeline.topics import Positions, Topics, behind
from headwater.position import Position
from headwater.result import Heard
from headwater.schema import Event, key_text, wire
from headwater.testing.clock import SettableClock
from headwater.testing.server import broker
from headwater.testing.values import python, sort_key

__all__ = ["Views", "views"]

LOOK_SECONDS_MAX = 240.0
"""How long a look waits for a batch: the first one of a process compiles Spark's plans on a busy machine."""
POLL_S = 0.005
SPARK = "local[4,1]"
"""A task that fails is not tried again: the mistake is the test's answer."""

Sent = Event | Mapping[str, Any] | bytes
Time = datetime | str


@contextmanager
def views(app: App, *names: str, now: Time | None = None) -> Iterator["Views"]:
    """Runs the views of an application (or only those named) on an empty log of their own, for one test.

    Spark is started by the first test of a process and kept for the next. The clock stands at ``now``, or at the time of the start. Real-time
    views run in batches here.
    """
    start_ms = SystemClock().now_ms() if now is None else _micros(now) // 1000
    with (
        tempfile.TemporaryDirectory(prefix="headwater-test-", ignore_cleanup_errors=True) as folder,
        broker(flush="os") as log,
    ):
        settings = Settings(
            log=f"kafka://{log.bootstrap}",
            store=f"sqlite:{folder}/views",
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
    """The views of an application that a test wants, all of them in batches."""

    def __init__(self, app: App, names: tuple[str, ...]) -> None:
        super().__init__(app.name)
        self.folder = app.folder
        declared = app.graph()
        for name in names:
            if name not in declared.views:
                raise UsageError(f"unknown view {name!r}", expected=", ".join(declared.views))
        read = {name for name in names for name in _made_of(declared, name)}
        wanted = [
            msgspec.structs.replace(view, latency="batch")
            for name, view in declared.views.items()
            if not names or name in read
        ]
        self._graph = Graph(app.name, list(declared.streams.values()), wanted)

    def graph(self) -> Graph:
        return self._graph


def _made_of(graph: Graph, view: str) -> Iterator[str]:
    """A view, and the views that it reads, through others too."""
    yield view
    for each in graph.upstream(graph.views[view]):
        yield from _made_of(graph, each.name)


class _Pending(NamedTuple):
    """A record that is to be written: an event of a stream, a row of a table or its deletion, or a tick of a view."""

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
        """By stream, and for a view's ticks by its name: up to where there is something to read."""
        self._schemas: dict[str, Any] = {}
        self._reached = time.NEVER
        self._runner = Runner(app, settings, clock, watermark=self._decide)
        self._runner.start()

    def close(self) -> None:
        """Stops the views; Spark stays."""
        self._runner.stop()
        self._topics.close()

    # ---- in --------------------------------------------------------------------------------------------

    def send(self, stream: str, *events: Sent, topic: str | None = None) -> None:
        """Sends events to a stream, or rows to a table: of its type, as a dict of fields, or as bytes to see what becomes of what does not fit.

        ``topic`` is one of those of a stream with a pattern.
        """
        if stream not in self._graph.streams:
            raise UsageError(f"unknown stream {stream!r}", expected=", ".join(self._graph.streams))
        spec = self._graph.streams[stream]
        if spec.pattern is not None and topic is None:
            raise UsageError(f"stream {stream!r} has many topics", hint="name one: send(stream, …, topic=…)")
        for event in events:
            if isinstance(event, bytes):  # a table takes no record without a key
                key, value = (event.decode(errors="replace") if spec.table else None), event
            else:
                if isinstance(event, Event) and not isinstance(event, spec.type):
                    raise UsageError(
                        f"this is no event of stream {stream!r}",
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
            known = [name for name, each in self._graph.streams.items() if each.table]
            raise UsageError(f"unknown table {table!r}", expected=", ".join(known))
        for key in keys:
            text = key_text(key if isinstance(key, tuple) else (key,))
            self._pending.append(_Pending(table, spec.topic, text, None))

    def watermark(self, to: Time) -> None:
        """Says that the inputs of all views are complete up to a time, whatever has come; what is older and comes now is late.

        What was sent before is taken first. By itself the watermark follows the events, as it does outside of tests.
        """
        self._look()
        self._reached = max(self._reached, _micros(to))
        self._tick()

    def advance(self, by: str) -> None:
        """Lets time go on by the clock, like "31 minutes": inputs become idle, what is open closes, rows are forgotten."""
        self._look()
        self._clock.advance(duration_us(by) / 1e6)
        self._runner.note_silence()
        self._tick()

    # ---- out -------------------------------------------------------------------------------------------

    def rows(self, view: str) -> list[Row]:
        """The rows of a view as its readers see them, with Python values, ordered by key; columns that begin with "_" are left out."""
        spec = self._view(view)
        self._look()
        return self._shown(spec, [row for each in check.newest(self._topics, spec).values() for row in each])

    def batch(self, view: str) -> list[Row]:
        """The same rows from a batch over all that the view has taken; late records that stand beside the view are left out."""
        spec = self._view(view)
        self._look()
        found = result.newest(self._topics, view)
        if found is None:
            return []
        left_out = check.left_out(self._topics, view, found, found.inputs)
        frame = batch(self._app, self._settings, view, Position(found.inputs), left_out.all())
        return self._shown(spec, [msgspec.json.decode(value) for _, value in records(frame, spec)])

    def check(self, view: str, *, plain: bool = False) -> None:
        """Raises AssertionError with the first difference unless the view equals its batch, as ``headwater view check`` does.

        With ``plain`` the batch is computed by Spark's plain operators, none of Headwater's.
        """
        self._view(view)
        self._look()
        found = check.check(self._app, self._settings, view, plain=plain)
        if found.first is not None:
            raise AssertionError(str(found))

    def late(self, view: str) -> list[Sent]:
        """The events that came too late for a view, as they were sent and in that order."""
        self._view(view)
        self._look()
        return self._events(late.published(self._topics, view))

    def failed(self, view: str) -> list[Sent]:
        """The events that the query of a view fails on, as they were sent and in that order."""
        self._view(view)
        self._look()
        return self._events(failed.published(self._topics, view))

    def _events(self, records: Iterable[LateRecord | FailedRecord]) -> list[Sent]:
        places = {Place(each.topic, each.partition, each.offset) for each in records}
        return [event for place, event in self._sent.items() if place in places]

    def invalid(self, stream: str) -> list[Sent]:
        """What was sent to a stream and does not fit its type."""
        self._look()
        topics = self._topics.of(self._graph.streams[stream], self._graph)
        keys = {
            record.key().decode()
            for record in self._topics.read([f"{topic}.{source.INVALID}" for topic in topics])
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
        """Lets every view take all that was sent, each in one batch."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._topics.ensure({each.topic for each in pending}, 1, compact=False)
        with self._runner.held():
            for each in pending:
                self._produce(each)
            self._flush()
        self._await()

    def _tick(self) -> None:
        """Lets those views look at their time-outs that may have some."""
        begun = [view for view in self._runner.timed if self._runner.positions()[view]]
        for view in begun:
            self._produce(_Pending(view, time.TICKS, view, b"", partition=time.tick_partition(view)))
        self._flush()
        self._await()

    def _produce(self, record: _Pending) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                raise MachineError("the test's log does not take a record", got=error.str())
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
            raise MachineError("the test's log does not take its records")

    def _await(self) -> None:
        clock, pause = SystemClock(), threading.Event()
        limit = clock.monotonic() + LOOK_SECONDS_MAX
        while any(self._is_behind(view) for view in self._graph.views.values()):
            if self._runner.wait(0) or clock.monotonic() > limit:
                raise MachineError(f"the views have not taken what was sent within {LOOK_SECONDS_MAX:.0f} s")
            pause.wait(POLL_S)

    def _is_behind(self, view: View) -> bool:
        position = self._runner.positions()[view.name]
        readers = {view.name, *(name for name in view.inputs.values() if name in self._graph.streams)}
        if any(behind(position, self._ends.get(reader, {})) for reader in readers):
            return True
        return any(
            self._is_behind(each) or self._lacks(position, each) for each in self._graph.upstream(view)
        )

    def _lacks(self, position: Positions, read: View) -> bool:
        """Whether a position is before what a view has written."""
        written = result.newest(self._topics, read.name)
        return written is not None and behind(position, {read.name: written.outputs}) > 0

    def _decide(self, inputs: Mapping[str, time.Input], known: Mapping[str, Heard], before: int) -> int:
        """The watermark as it is outside of tests, or the one that was set by hand."""
        return max(time.watermark(inputs, known, before), self._reached)


def _micros(moment: Time) -> int:
    """A moment in microseconds; one without a zone is taken for UTC."""
    found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@functools.cache
def _spark_folder() -> Path:
    """Where Spark's logs of this process are; it stays as long as Spark does."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
