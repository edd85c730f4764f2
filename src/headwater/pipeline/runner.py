"""Runner: all queries of an application, from start to clean stop.

A query goes on from its checkpoint. Micro-batch queries look for new records at an interval, and without any they do
nothing; the interval grows with the number of views, so that many idle ones stay cheap.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import msgspec
from pyspark.errors import PySparkException

from headwater import result
from headwater.app import App
from headwater.clock import Clock, SystemClock
from headwater.config import Settings
from headwater.errors import Fenced, HeadwaterError, MachineError, StorageError, UsageError
from headwater.graph import View
from headwater.keep import PASSING, STATE
from headwater.pace import Pace, Trailing
from headwater.pipeline import failed, late, query, session, time
from headwater.pipeline.attention import GAP_S, Attention
from headwater.pipeline.beside import Beside
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.differing import PUBLISH
from headwater.pipeline.engine import Engine, Launch, Prepared, Query
from headwater.pipeline.failed import Failure
from headwater.pipeline.follow import FOLLOW_SECONDS_MAX, Follow
from headwater.pipeline.invalid import InvalidRecords
from headwater.pipeline.isolation import Isolation
from headwater.pipeline.late import LateRecords
from headwater.pipeline.layout import GROUPS
from headwater.pipeline.progress import Progress
from headwater.pipeline.publish import Publisher
from headwater.pipeline.realtime import Settlement
from headwater.pipeline.spark import Spark
from headwater.pipeline.ticks import Ticks
from headwater.pipeline.topics import Positions, Topics, behind

__all__ = ["Runner"]

IDLE_MS_PER_VIEW = 50
"""Looking for records costs about 4 ms of a core: twenty views that look every second take 8 % of one."""
WATCH_SECONDS = 0.5
LOOK_SECONDS = 1
STOP_SECONDS_MAX = 60.0
DISK_FAULTS = ("No space left on device", "Read-only file system", "Disk quota exceeded")
TWO_DRIVERS = "Multiple streaming "
"""Queries or jobs: what Spark's messages say when it meets another driver's files in a checkpoint."""

logger = logging.getLogger(__name__)


class Runner:
    """Runs one application's views. One thread calls ``start``, ``wait``, ``stop``; any may ask ``caught_up``.

    Guarantees: nothing starts before everything is checked; ``stop`` lets the current batch finish; a query that
    fails ends ``wait`` with an error. Does not restart a failed query: that is the supervisor's.
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
    ) -> None:
        """``shadows``: runs only these views, each as a run of this name that catches up beside the one that readers see.

        ``engine``: what runs the queries; Spark, but for simulations.

        ``watermark``: how each view's is decided, for tests that move it by hand. A ``clock`` that is given is moved by a test too: what it says has
        elapsed counts as time in which the log was looked at.
        """
        self.settings = settings
        self.graph = app.graph()
        self._shadows = shadows
        self._views = {
            name: view for name, view in self.graph.views.items() if shadows is None or name in shadows
        }
        self._app = app
        self._clock = clock or SystemClock()
        self._attention = Attention(self._clock, gap_s=GAP_S if clock is None else math.inf)
        self._watermark = watermark
        self._topics = Topics(settings.access)
        self._engine: Engine = engine or Spark(settings)
        self._invalid = InvalidRecords(self._topics, self.graph, settings.partitions, self._engine)
        self._late = LateRecords(self._topics, self.graph, self._engine)
        self._beside = Beside(settings.access)
        self._ticks = Ticks(settings.access, self._clock)
        self._close_groups: Callable[[], None] = lambda: None
        self._queries: dict[str, Query] = {}
        self._prepared: dict[str, Prepared] = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._publishers: dict[str, Publisher] = {}
        self._settlements: dict[str, Settlement] = {}
        self.follow_s = FOLLOW_SECONDS_MAX
        self._follows: dict[str, Follow] = {}
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._failure: HeadwaterError | None = None
        self._watch = threading.Thread(target=self._watching, name="headwater-watch", daemon=True)

    def start(self) -> None:
        """Creates missing topics, checks all views against Spark, then starts them."""
        self._launch(once=False)
        self._watch.start()

    def once(self, look: Callable[[], None] = lambda: None) -> None:
        """Takes what the log holds now, publishes it and ends; real-time views run as batches here. Calls ``look`` meanwhile.

        It does not look at the log for what comes later, so no input falls silent meanwhile.
        """
        self._attention = Attention(self._clock, gap_s=0)
        self._launch(once=True, look=look)
        self._settle()
        self._close()

    def _await(self, name: str, look: Callable[[], None]) -> None:
        """Until a query has taken all that was there."""
        try:
            while not self._queries[name].awaitTermination(LOOK_SECONDS):
                look()
        except PySparkException as error:
            raise self._failed(name, error) from error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the runner has stopped (True) or the time is over; raises what ended a query."""
        ended = self._ended.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """Lets each query finish its current batch, then ends it. Safe to call twice."""
        self._stopping.set()
        if self._watch.is_alive():
            self._watch.join()  # it may be starting a query again
        for publisher in self._publishers.values():
            publisher.stopping.set()
        for name, running in self._queries.items():
            if name in self._publishers:
                self._finish_batch(running)
            running.stop()
        self._settle()
        self._close()
        self._ended.set()

    def _settle(self) -> None:
        """After the end of all queries: what is left to do behind the real-time ones."""
        for name in self._settlements.keys() & self._queries.keys():
            self._settlements[name].settle(self._queries[name])

    def _close(self) -> None:
        """Gives back the clients of the log: Spark keeps the publishers, and they would look for their broker for ever."""
        for publisher in self._publishers.values():
            publisher.close()
        self._close_groups()
        self._invalid.close()
        self._beside.close()
        self._ticks.close()
        self._topics.close()

    def positions(self) -> dict[str, Positions]:
        """For each view, what it has read and published."""
        return {name: self._checkpoint(name).complete() for name in self._views}

    def caught_up(self) -> bool:
        """Whether every view has published all that was in the log at the time of the call."""
        streams = {name: self._topics.of(stream, self.graph) for name, stream in self.graph.streams.items()}
        # Before the ends of what views write: one that is not behind has written all.
        positions = self.positions()
        streams |= {name: [name] for name in self.graph.views}
        ends = self._topics.ends(topic for topics in streams.values() for topic in topics)
        for name, position in positions.items():
            topics = {topic for stream in self._views[name].inputs.values() for topic in streams[stream]}
            if behind(position, {topic: ends[topic] for topic in topics if topic in ends}):
                return False
        return True

    def waiting(self) -> dict[str, Trailing]:
        """The views that wait for those who follow their rows, with the slowest of these."""
        return {name: each.waits_for for name, each in self._publishers.items() if each.waits_for is not None}

    @property
    def timed(self) -> list[str]:
        """The views that have time-outs, and so listen to ticks."""
        return [name for name, prepared in self._prepared.items() if any(prepared.timed.values())]

    def note_silence(self) -> None:
        """For tests that have seen all inputs read, and have moved the clock: all of them were silent until now."""
        for publisher in self._publishers.values():
            publisher.note_silence()

    @contextmanager
    def held(self) -> Iterator[None]:
        """No view begins a batch meanwhile, so that each takes what is written inside in one."""
        with ExitStack() as held:
            for running in self._queries.values():
                held.enter_context(self._engine.held(running))
            yield

    def _launch(self, *, once: bool, look: Callable[[], None] = lambda: None) -> None:
        self._make_topics()
        try:
            self._engine.start(self._slots(), self._app.folder)
            self._close_groups = self._engine.groups.close
            for name, view in self._views.items():
                self._prepared[name] = self._prepare(view)
            for level in self.graph.levels():
                names = [view.name for view in level if view.name in self._views]
                for name in names:
                    self._start_query(self._prepared[name], once=once)
                for name in names if once else ():  # the next ones take all that these have written
                    self._await(name, look)
        except BaseException:
            self.stop()
            raise

    def _make_topics(self) -> None:
        declared = [stream for stream in self.graph.streams.values() if stream.pattern is None]
        for compact in (True, False):
            topics = [stream.topic for stream in declared if stream.table == compact]
            names = [name for name, view in self.graph.views.items() if view.append != compact]
            self._topics.ensure([*topics, *names], self.settings.partitions, compact=compact)
        self._topics.ensure_topics(map(result.topic, self._views), 1, STATE)
        self._topics.ensure_topics([time.TICKS], time.TICK_PARTITIONS, PASSING)
        for view, run in (self._shadows or {}).items():
            self._topics.ensure(
                [result.shadow_topic(view, run)], self._topics.partitions()[view], compact=True
            )

    def _slots(self) -> int:
        """Slots that the graph needs, or 0 without real-time views, which take what the master offers.

        A real-time view holds one for each partition that it reads and for each shard of a groupBy; every few seconds it
        asks for all of them at once and fails if one is taken. So there must be slots for all tasks of the others too: a
        micro-batch may read an input twice.
        """
        if all(view.latency == "batch" for view in self._views.values()):
            return 0
        return sum(self._tasks(view) for view in self._views.values())

    def _tasks(self, view: View) -> int:
        known, shards = self._topics.partitions(), self.settings.partitions
        topics = {
            topic
            for stream in self.graph.inputs(view).values()
            for topic in self._topics.of(stream, self.graph)
        }
        reads = sum(known.get(topic, 0) for topic in topics)
        return reads + shards if view.latency == "realtime" else 2 * reads + shards

    def _prepare(self, view: View) -> Prepared:
        self._checkpoints[view.name] = checkpoint = self._checkpoint(view.name)
        mended = [f"{file.parent.name}/{file.name}" for file in checkpoint.mend()]
        if mended:
            logger.warning(
                "view %s: a power cut has left empty files, which are gone: %s", view.name, ", ".join(mended)
            )
        last = self._last(view.name, checkpoint.run)
        if last is not None:
            shards, in_groups = len(last.state[PUBLISH]), last.layouts.get(PUBLISH) == GROUPS
        else:  # the session may have been started with other settings, and the run by another session
            shards = self.settings.partitions
            in_groups = shards == (checkpoint.partitions() or self._engine.partitions())
        prepared = self._engine.prepare(
            self.graph, view, shards, partitions=self._topics.partitions(), in_groups=in_groups
        )
        if prepared.inputs:
            shadow = self._shadows and result.shadow_topic(view.name, checkpoint.run)
            self._topics.ensure([late.topic(shadow or view.name)], self.settings.partitions, compact=True)
        return prepared

    def _start_query(self, prepared: Prepared, *, once: bool) -> None:
        view, checkpoint = prepared.view, self._checkpoints[prepared.view.name]
        name = view.name if self._shadows is None else f"{view.name}.shadow"
        launch = Launch(name, checkpoint, None if once else self._interval_ms())
        if view.latency == "realtime":
            self._begin(view.name, checkpoint)
            self._settlements[view.name] = self._settlement(prepared, checkpoint)
            self._queries[view.name] = self._engine.run_in_real_time(prepared, launch)
            return
        publisher = self._publisher(prepared, checkpoint, paced=not once)
        self._begin(view.name, checkpoint)
        if once:  # nobody sends ticks while it runs
            self._ticks.send(view.name, publisher.due_ms, wait=True)
        self._queries[view.name] = self._engine.run(prepared, launch, publisher)
        publisher.attach(self._queries[view.name])

    def _publisher(self, prepared: Prepared, checkpoint: Checkpoint, *, paced: bool) -> Publisher:
        name, shadow = prepared.view.name, self._shadows is not None
        paced = paced and bool(prepared.view.pace) and not shadow
        planless = msgspec.structs.replace(prepared, frame=None)  # Spark keeps publishers for ever
        stopping = threading.Event()
        known = self._failed_before(prepared) if shadow else ()
        self._publishers[name] = Publisher(
            planless,
            checkpoint,
            Progress(self._topics, name, checkpoint.run, self._clock, shadow=shadow),
            engine=self._engine,
            stopping=stopping,
            isolation=Isolation(self._engine, planless, self.graph, stopping, known),
            invalid=self._invalid,
            late=self._late,
            copies=session.copies(self.settings),
            state_bytes_max=self.settings.state_bytes_max,
            clock=self._clock,
            attention=self._attention,
            watermark=self._watermark,
            pace=Pace(self._topics, self.graph, name, self.settings.pace_records) if paced else None,
        )
        return self._publishers[name]

    def _failed_before(self, prepared: Prepared) -> Iterator[Failure]:
        """The records that the run which readers see could not take, if its query is the same: a rebuild leaves out the same ones."""
        seen = result.newest(self._topics, prepared.view.name)
        if seen is None or seen.definition != prepared.definition.digest:
            return
        for each in failed.published(self._topics, prepared.view.name):
            if each.run == seen.run:
                yield each.failure

    def _settlement(self, prepared: Prepared, checkpoint: Checkpoint) -> Settlement:
        return Settlement(
            prepared,
            checkpoint,
            self._engine,
            invalid=self._invalid,
            late=self._late,
            beside=self._beside,
            clock=self._clock,
            attention=self._attention,
            ends=self._topics.ends,
        )

    def _interval_ms(self) -> int:
        return max(self.settings.trigger_ms, IDLE_MS_PER_VIEW * len(self._views))

    def _checkpoint(self, view: str) -> Checkpoint:
        """The checkpoint of the run that readers see, or of the one that this runner is to make."""
        if view in self._checkpoints:
            return self._checkpoints[view]
        folder = session.data(self.settings) / "checkpoints" / view
        if self._shadows is not None:
            return Checkpoint.of(folder, self._shadows[view])
        seen = result.newest(self._topics, view)
        known = seen is not None and (folder / seen.run).exists()
        return Checkpoint.of(folder, seen.run if seen is not None and known else None)

    def _last(self, view: str, run: str) -> result.Result | None:
        """The last result of a run."""
        if self._shadows is not None:
            return next(iter(result.of_run(self._topics, view, run, 1)), None)
        seen = result.newest(self._topics, view)
        return seen if seen is not None and seen.run == run else None

    def _finish_batch(self, running: Query) -> None:
        """Waits until no batch runs: the current one ends, and the publisher refuses the next."""
        limit = self._clock.monotonic() + STOP_SECONDS_MAX
        while running.isActive and running.status["isTriggerActive"] and self._clock.monotonic() < limit:
            self._ended.wait(0.02)

    def _watching(self) -> None:
        """Ends the runner with what ends the watch: without one, no failure of a query would be noticed, and no time-out fire."""
        try:
            self._watch_queries()
        except Exception as error:
            logger.exception("views are no longer watched")
            self._failure = (
                error
                if isinstance(error, HeadwaterError)
                else MachineError("views are no longer watched", got=repr(error))
            )
            self._ended.set()

    def _watch_queries(self) -> None:
        """Until the end: looks whether the log answers, notices a query that has failed, sends ticks, and settles what real-time queries have read."""
        while not self._stopping.wait(WATCH_SECONDS):
            if any(each.inputs for each in self._prepared.values()) and self._topics.answers(time.TICKS):
                self._attention.look()
            for name, running in list(self._queries.items()):
                if not running.isActive and not self._stopping.is_set() and not self._followed(name):
                    self._ended.set()
                    return
                if name in self._publishers and self._publishers[name].waits_for is None:
                    self._ticks.send(name, self._publishers[name].due_ms)
                if name in self._settlements:
                    self._settlements[name].follow(running)

    def _followed(self, name: str) -> bool:
        """After a query has ended: whether it may rest, since a rebuild is taking its place, or goes on already."""
        failure = self._failed(name, self._queries[name].exception())
        try:
            if isinstance(failure, Fenced) and self._follow(name):
                return True
        except HeadwaterError as error:
            failure = error
        self._failure = failure
        return False

    def _follow(self, name: str) -> bool:
        """Waits for a rebuild for as long as that gets on, and goes on with the run that it makes; or, when it does not, with its own. False when another driver has fenced it."""
        run = self._checkpoints[name].run
        known = self._follows.get(name)
        if known is None:
            known = self._follows[name] = Follow(self._topics, name, run, self._clock, self.follow_s)
        match known.fate():
            case "fenced":
                return False
            case "waits":
                return True
            case "swapped":
                seen = result.newest(self._topics, name)
                if seen is None or seen.definition != self._prepared[name].definition.digest:
                    raise UsageError(
                        f"view {name!r} was rebuilt by another version of the application",
                        hint="start that version; this one ends",
                    )
            case "abandoned":
                logger.warning(
                    "view %s: its rebuild makes no more results; it goes on with its own run", name
                )
        self._restart(name)
        return True

    def _restart(self, name: str) -> None:
        """Starts a query that has ended once more, with the run that readers see."""
        self._publishers.pop(name).close()
        self._checkpoints.pop(name)
        self._follows.pop(name)
        self._prepared[name] = self._prepare(self._views[name])
        self._start_query(self._prepared[name], once=False)

    def _failed(self, name: str, error: Exception | None) -> HeadwaterError:
        publisher = self._publishers.get(name)
        error = (publisher.failure if publisher else None) or error
        if isinstance(error, Fenced | UsageError | StorageError):
            return error
        said = query.first_line(error) if error else "it ended"
        cause = said.partition("terminated with exception: ")[2] or said
        if TWO_DRIVERS in cause:  # Spark has noticed it before our own transaction did
            return Fenced(f"view {name!r} is run by another driver now", hint="this one ends")
        disk = next((words for words in DISK_FAULTS if words in str(error)), "")
        if disk:
            return self._unwritable(name, disk)
        log = session.data(self.settings) / "spark.log"
        return MachineError(f"view {name!r} has stopped", got=cause, hint=f"Spark's log is {log}")

    def _begin(self, name: str, checkpoint: Checkpoint) -> None:
        try:
            checkpoint.begin()
        except OSError as error:
            raise self._unwritable(name, error.strerror or str(error)) from error

    def _unwritable(self, name: str, got: str) -> StorageError:
        return StorageError(
            f"view {name!r} has stopped: its checkpoints and state in {session.data(self.settings)} cannot be written",
            got=got,
            hint="make room there, or let this user write; the next start goes on behind the last result",
        )
