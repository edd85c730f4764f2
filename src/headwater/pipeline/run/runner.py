"""Runner: all queries of an application, from start to clean stop.

A query continues from its checkpoint. Micro-batch queries look for new records at an interval, and without
any they do nothing. The interval grows with the number of views, so that many idle ones stay cheap.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import msgspec
from pyspark.errors import PySparkException

from headwater import result
from headwater.client.topic_defaults import PASSING, STATE
from headwater.clock import Clock, SystemClock
from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.spec import View
from headwater.errors import MachineError
from headwater.follow.pace import Trailing
from headwater.health.condition import PartStatus
from headwater.pipeline.engine.engine import Engine, Query
from headwater.pipeline.engine.spark_engine import Spark
from headwater.pipeline.retention import keep_streams
from headwater.pipeline.run.services import Services
from headwater.pipeline.run.view_run import ViewRun
from headwater.pipeline.run.watch import Watch
from headwater.pipeline.time import watermark as time
from headwater.pipeline.time.attention import GAP_S, Attention
from headwater.pipeline.topics import Positions, records_between
from headwater.result import TICKS

__all__ = ["Runner"]

IDLE_MS_PER_VIEW = 50
"""A look for records costs about 4 ms of a core: twenty views that look every second take 8 % of one."""
LOOK_SECONDS = 1
STOP_SECONDS_MAX = 60.0
APP_WORD = re.compile(r"(?<= )APP\b")
"""The place of the application in a command of an error."""


class Runner:
    """Runs one application's views.

    One thread calls ``start``, ``wait``, ``stop``; any may call ``caught_up``.
    Guarantees: nothing starts before everything is checked; ``stop`` lets the current batch finish; a query
    that fails ends ``wait`` with an error. Unless ``strict``, it ends no other view (``watch.py``).
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        clock: Clock | None = None,
        *,
        shadows: Mapping[str, str] | None = None,
        watermark: time.Watermark = time.watermark,
        engine: Engine | None = None,
        strict: bool = True,
        forever: bool = False,
    ) -> None:
        """Checks the application; starts nothing.

        ``strict``: the first view that fails ends all. Otherwise views fail alone, and with ``forever`` the
        runner does not end even if none of them can run.

        ``shadows``: runs only these views, each as a run of this name that catches up while readers see
        another one.

        ``engine``: what runs the queries; Spark, except in simulations.

        ``watermark``: how the watermark of each view is decided, for tests that move it by hand. A test moves
        a ``clock`` too: all time that passes by it counts as time in which the log was looked at.
        """
        self.settings = settings
        self.graph = app.graph()
        self._app = app
        self._shadows = shadows or {}
        attention_gap_s = GAP_S if clock is None else math.inf
        clock = clock or SystemClock()
        attention = Attention(clock, gap_s=attention_gap_s)
        self._services = Services.start(
            settings,
            self.graph,
            engine or Spark(settings),
            clock=clock,
            attention=attention,
            watermark=watermark,
        )
        views = {name: view for name, view in self.graph.views.items() if shadows is None or name in shadows}
        interval_ms = max(settings.trigger_ms, IDLE_MS_PER_VIEW * len(views))
        self.views = {
            name: ViewRun(view, self._services, self._shadows.get(name), interval_ms)
            for name, view in views.items()
        }
        self._levels = [
            [self.views[view.name] for view in level if view.name in self.views]
            for level in self.graph.levels()
        ]
        """The views in the order of their start: those of a level read only what earlier levels write."""
        self._ordered = [view for level in self._levels for view in level]
        self._strict = strict
        self.watch = Watch(
            self._ordered, self._services, strict=strict, forever=forever, make_topics=self._make_topics
        )
        self._close_groups: Callable[[], None] = lambda: None

    # ---- its life ------------------------------------------------------------------------------------------

    def start(self, planned: Callable[[], None] = lambda: None) -> None:
        """Checks all views against Spark, creates missing topics, then starts the views.

        Calls ``planned`` once all are checked: until then nothing was written.
        """
        self._launch(once=False, planned=planned)
        self.watch.start()

    def once(self, look: Callable[[], None] = lambda: None) -> None:
        """Reads what the log holds now, publishes it and ends; real-time views run as batches here.

        Calls ``look`` every second. Does not look at the log for later records, so no input falls silent.
        """
        self._services.attention = Attention(self._services.clock, gap_s=0)
        self._launch(once=True, look=look)
        self._settle()
        self._close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the runner has stopped (True) or the time is over.

        Raises the error that ended a query.
        """
        return self.watch.wait(timeout_s)

    def stop(self) -> None:
        """Lets each query finish its current batch, then ends it. Safe to call twice."""
        self.watch.stop()
        _all(
            *(view.refuse_batches for view in self._ordered),
            *(partial(view.stop, self._finish_batch) for view in self._ordered),
            self._settle,
            self._close,
            self.watch.ended.set,
        )

    def _launch(
        self,
        *,
        once: bool,
        look: Callable[[], None] = lambda: None,
        planned: Callable[[], None] = lambda: None,
    ) -> None:
        engine = self._services.engine
        try:
            engine.start(self._slots(), self._app.folder)
            self._close_groups = engine.groups.close
            for view in self.views.values():
                self._prepare(view)
            planned()
            self._make_topics()
            for level in self._levels:
                for view in level:
                    if not view.condition.has_ended:
                        self._start(view, once=once)
                for view in level if once else ():  # the next level reads all that these have written
                    self._await(view, look)
        except BaseException:
            self.stop()
            raise

    def _prepare(self, view: ViewRun) -> None:
        """Plans a view. A plan that is wrong, or a log that is away, concerns all of them.

        Unless strict, a view whose state cannot be read ends alone.
        """
        try:
            state = view.read_state()
        except Exception as error:
            if self._strict or isinstance(error, MachineError):
                raise
            view.condition.begin()
            view.end(error)
        else:
            view.plan(state)

    def _start(self, view: ViewRun, *, once: bool) -> None:
        """Starts a view. Unless strict, one that cannot continue as it is ends alone."""
        view.condition.begin()
        try:
            view.start(once=once)
            view.condition.work()
        except Exception as error:
            if self._strict:
                raise
            view.end(error)

    def _await(self, view: ViewRun, look: Callable[[], None]) -> None:
        """Waits until a query has read all that was there."""
        try:
            while view.query is not None and not view.query.awaitTermination(LOOK_SECONDS):
                look()
        except PySparkException as error:
            raise view.failure(error) from error

    def _finish_batch(self, query: Query) -> None:
        """Waits until no batch runs: the current one ends, and the publisher refuses the next."""
        clock = self._services.clock
        limit = clock.monotonic() + STOP_SECONDS_MAX
        while query.isActive and query.status["isTriggerActive"] and clock.monotonic() < limit:
            self.watch.ended.wait(0.02)

    def _settle(self) -> None:
        """After the end of all queries: settles the last batches of the real-time ones."""
        _all(*(view.settle for view in self._ordered))

    def _close(self) -> None:
        """Closes the clients of the log."""
        _all(*(view.close for view in self._ordered), self._close_groups, self._services.close)

    # ---- its topics ----------------------------------------------------------------------------------------

    def _make_topics(self, only: str | None = None) -> None:
        """Creates missing topics, and gives streams their retention.

        ``only``: those of this view and of its inputs; what exists stays as it is now.
        """
        topics, views = self._services.topics, dict(self.graph.views)
        streams = [stream for stream in self.graph.streams.values() if stream.pattern is None]
        runs = list(self.views)
        if only is not None:
            inputs, existing = set(views[only].inputs.values()), topics.partitions()
            streams = [stream for stream in streams if stream.name in inputs and stream.topic not in existing]
            views = {name: view for name, view in views.items() if name == only or name in inputs}
            runs = [only]
        keep_streams(topics, [stream for stream in streams if not stream.table], self.settings)
        tables = [stream.topic for stream in streams if stream.table]
        for compact in (True, False):
            names = [name for name, view in views.items() if view.append != compact]
            topics.ensure([*tables, *names] if compact else names, self.settings.partitions, compact=compact)
        topics.ensure_topics(map(result.topic, runs), 1, STATE)
        topics.ensure_topics([TICKS], time.TICK_PARTITIONS, PASSING)
        for view in runs:
            if run := self._shadows.get(view):
                shadow = result.shadow_topic(view, run)
                topics.ensure([shadow], topics.partitions()[view], compact=True)

    def _slots(self) -> int:
        """The number of task slots that the graph needs.

        0 without real-time views, which take what the master offers.
        A real-time view holds one for each partition that it reads and for each shard of a groupBy. Every few
        seconds it asks for all of them at once and fails if one is taken. So there must be slots for all
        tasks of the other views too: a micro-batch may read an input twice.
        """
        views = [run.view for run in self.views.values()]
        if all(view.latency == "batch" for view in views):
            return 0
        return sum(map(self._tasks, views))

    def _tasks(self, view: View) -> int:
        partitions, shards = self._services.partitions(), self.settings.first_shards
        topics = {
            topic
            for stream in self.graph.inputs(view).values()
            for topic in self._services.topics.of(stream, self.graph)
        }
        reads = sum(partitions.get(topic, 0) for topic in topics)
        return reads + shards if view.latency == "realtime" else 2 * reads + shards

    # ---- questions -----------------------------------------------------------------------------------------

    def positions(self) -> dict[str, Positions]:
        """For each view, what it has read and published."""
        return {name: view.complete() for name, view in self.views.items()}

    def reading(self) -> int:
        """How many records the batches that run now have read, as of a second ago."""
        return self._services.engine.reading()

    def caught_up(self) -> bool:
        """Whether every view has published all that was in the log at the time of the call."""
        log = self._services.topics
        streams = {name: log.of(stream, self.graph) for name, stream in self.graph.streams.items()}
        # Before the ends of the views' topics: a view that lags by nothing has written all that it will.
        positions = self.positions()
        streams |= {name: [name] for name in self.graph.views}
        ends = log.ends(topic for topics in streams.values() for topic in topics)
        for name, position in positions.items():
            inputs = self.views[name].view.inputs.values()
            topics = {topic for stream in inputs for topic in streams[stream]}
            if records_between(position, {topic: ends[topic] for topic in topics if topic in ends}):
                return False
        return True

    def statuses(self) -> list[PartStatus]:
        """How each view is; any thread may ask. The commands in errors have the name of the application."""
        file = self._app.file
        statuses = []
        for name, view in self.views.items():
            status = view.condition.status("view", name, lag_records=self.watch.lags.get(name))
            judged = self.watch.judged(status)
            error = judged.error if file is None else APP_WORD.sub(lambda _: str(file), judged.error)
            statuses.append(msgspec.structs.replace(judged, error=error, left_out=view.left_out))
        return statuses

    def waiting(self) -> dict[str, Trailing]:
        """The views that wait for the followers of their rows, each with the slowest of these."""
        publishers = {name: view.publisher for name, view in self.views.items()}
        slowest = {
            name: publisher.waits_for for name, publisher in publishers.items() if publisher is not None
        }
        return {name: follower for name, follower in slowest.items() if follower is not None}

    @property
    def timed(self) -> list[str]:
        """The views that have time-outs, and therefore read ticks."""
        return [name for name, view in self.views.items() if view.timed]

    # ---- for tests -----------------------------------------------------------------------------------------

    def note_silence(self) -> None:
        """For tests that have seen all inputs read and have moved the clock: all were silent until now."""
        for view in self.views.values():
            if view.publisher is not None:
                view.publisher.note_silence()

    @contextmanager
    def held(self) -> Iterator[None]:
        """No view begins a batch inside, so that each reads what is written inside in one batch."""
        with ExitStack() as held:
            for view in self.views.values():
                if view.query is not None:
                    held.enter_context(self._services.engine.held(view.query))
            yield


def _all(*acts: Callable[[], object]) -> None:
    """Does all of them, then raises the first error: a view that cannot be ended keeps no other from it."""
    failure: Exception | None = None
    for act in acts:
        try:
            act()
        except Exception as error:  # noqa: BLE001  raised below
            failure = failure or error
    if failure is not None:
        raise failure
