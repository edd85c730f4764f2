"""View run: one view of a runner, from its plan to its query."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater import result
from headwater.declare.spec import View
from headwater.errors import FencedError, HeadwaterError, UsageError, one_line
from headwater.follow import results
from headwater.follow.pace import Pace
from headwater.health.condition import Condition, State
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.engine import Failure, Launch, Query
from headwater.pipeline.left_out import failed_records, late_records
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.diagnosis import diagnose, unwritable
from headwater.pipeline.run.ending import UNKNOWN, Ending, seen_run
from headwater.pipeline.run.isolation import Isolation
from headwater.pipeline.run.publisher import Publisher
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.services import Services
from headwater.pipeline.run.settlement import Settlement
from headwater.pipeline.run.takeover import Fate, Follow
from headwater.pipeline.spark import session
from headwater.pipeline.state.layouts import GROUPS
from headwater.pipeline.topics import Positions

__all__ = ["ViewRun"]

logger = logging.getLogger(__name__)


class Shards(NamedTuple):
    """How the state of a view is divided: the number of shards, and whether they are Spark's own groups."""

    number: int
    in_groups: bool


class ViewRun:
    """One view of a runner. Belongs to the thread that starts the runner, and to its watch after that.

    ``prepare`` builds the plan, ``start`` the query. A micro-batch view has a publisher, a real-time view a
    settlement.
    """

    def __init__(self, view: View, services: Services, shadow: str | None, interval_ms: int) -> None:
        """``shadow``: the run that is to catch up while readers see another one.

        None for the run that they see.
        """
        self.view = view
        self.name = view.name
        self.publisher: Publisher | None = None
        self.settlement: Settlement | None = None
        self.query: Query | None = None
        self._services = services
        self._shadow = shadow
        self._interval_ms = interval_ms
        self._checkpoint: Checkpoint | None = None
        self._prepared: Prepared | None = None
        self._follow: Follow | None = None
        self.condition = Condition(services.clock)
        self.ended_by: HeadwaterError | None = None
        """What has ended it; None while it runs."""
        self._ending: Ending | None = None

    # ---- its start -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Builds the plan. Raises UsageError for anything wrong with it. Writes nothing to the log."""
        self.plan(self.read_state())

    def read_state(self) -> Shards:
        """How its state is divided, by its checkpoint and its last result."""
        checkpoint = self._checkpoint = self.checkpoint
        removed = [f"{file.parent.name}/{file.name}" for file in checkpoint.mend()]
        if removed:
            logger.warning(
                "view %s: removed files that a power cut has left empty: %s", self.name, ", ".join(removed)
            )
        last = self._last(checkpoint.run)
        if last is not None:
            return Shards(len(last.state[PUBLISH]), last.layouts.get(PUBLISH) == GROUPS)
        # The session may have been started with other settings, and the run by another session.
        shards = self._services.settings.first_shards
        return Shards(shards, shards == (checkpoint.partitions() or self._services.engine.partitions()))

    def plan(self, state: Shards) -> None:
        """Builds the plan over a state."""
        self._prepared = self._services.engine.prepare(
            self._services.graph,
            self.view,
            state.number,
            partitions=self._services.partitions(),
            in_groups=state.in_groups,
        )

    def start(self, *, once: bool) -> None:
        """Starts the query; with ``once`` it reads what is there and ends."""
        prepared, checkpoint = self.prepared, self.checkpoint
        if prepared.inputs:
            published = self.name if self._shadow is None else result.shadow_topic(self.name, checkpoint.run)
            partitions = self._services.settings.partitions
            self._services.topics.ensure([late_records.topic(published)], partitions, compact=True)
        name = self.name if self._shadow is None else f"{self.name}.shadow"
        launch = Launch(name, checkpoint, None if once else self._interval_ms)
        if self.view.latency == "realtime":
            self._begin(checkpoint)
            self.settlement = self._settlement(prepared, checkpoint)
            self.query = self._services.engine.run_in_real_time(prepared, launch)
            return
        publisher = self.publisher = self._publisher(prepared, checkpoint, paced=not once)
        self._begin(checkpoint)
        if once:  # nothing sends ticks while it runs
            self._services.ticks.send(self.name, publisher.due_ms, wait=True)
        self.query = self._services.engine.run(prepared, launch, publisher)
        publisher.attach(self.query)

    def _begin(self, checkpoint: Checkpoint) -> None:
        try:
            checkpoint.begin()
        except OSError as error:
            folder = session.data(self._services.settings)
            raise unwritable(self.name, error.strerror or str(error), folder) from error

    def _publisher(self, prepared: Prepared, checkpoint: Checkpoint, *, paced: bool) -> Publisher:
        services, shadow = self._services, self._shadow is not None
        planless = msgspec.structs.replace(prepared, frame=None)  # Spark keeps publishers for ever
        stopping = threading.Event()
        pace = None
        run_results = RunResults(services.topics, self.name, checkpoint.run, services.clock, shadow=shadow)
        isolation = Isolation(
            services.engine,
            planless,
            services.graph,
            stopping,
            known=self._failed_before(prepared) if shadow else (),
            published=run_results.published_failures if prepared.reads_twice else tuple,
            bounds=services.topics.bounds,
            clock=services.clock,
        )
        if paced and self.view.pace and not shadow:
            pace = Pace(services.topics, services.graph, self.name, services.settings.pace_records)
        return Publisher(
            planless, checkpoint, run_results, services, stopping=stopping, isolation=isolation, pace=pace
        )

    def _failed_before(self, prepared: Prepared) -> Iterator[Failure]:
        """The records on which the run that readers see has failed, with the same query.

        A rebuild leaves out the same ones.
        """
        seen = results.newest(self._services.topics, self.name)
        for record in failed_records.published(self._services.topics, self.name):
            if seen is not None and (record.run, record.definition) == (
                seen.run,
                prepared.definition.digest,
            ):
                yield record.failure

    def _settlement(self, prepared: Prepared, checkpoint: Checkpoint) -> Settlement:
        services = self._services
        return Settlement(
            prepared,
            checkpoint,
            services.engine,
            invalid=services.invalid,
            late=services.late,
            side_topic=services.side_topic,
            clock=services.clock,
            attention=services.attention,
            ends=services.topics.ends,
        )

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the run that readers see, or of the one that this runner is to make."""
        if self._checkpoint is not None:
            return self._checkpoint
        folder = self._checkpoints
        if self._shadow is not None:
            return Checkpoint.of(folder, self._shadow)
        seen = results.newest(self._services.topics, self.name)
        has_run = seen is not None and (folder / seen.run).exists()
        return Checkpoint.of(folder, seen.run if seen is not None and has_run else None)

    @property
    def _checkpoints(self) -> Path:
        """Where the checkpoints of its runs are."""
        return session.data(self._services.settings) / "checkpoints" / self.name

    def _last(self, run: str) -> result.Result | None:
        """The last result of a run."""
        if self._shadow is not None:
            return next(iter(results.of_run(self._services.topics, self.name, run, 1)), None)
        seen = results.newest(self._services.topics, self.name)
        return seen if seen is not None and seen.run == run else None

    # ---- while it runs -------------------------------------------------------------------------------------

    @property
    def prepared(self) -> Prepared:
        if self._prepared is None:
            raise RuntimeError(f"view {self.name!r} is not prepared")
        return self._prepared

    @property
    def timed(self) -> bool:
        """Whether it has time-outs, and therefore reads ticks."""
        return self._prepared is not None and any(self._prepared.timed.values())

    @property
    def watched(self) -> bool:
        """Whether it has a watermark, and therefore counts the attention of its driver."""
        return self._prepared is not None and bool(self._prepared.inputs)

    @property
    def left_out(self) -> result.LeftOut | None:
        """How many records a real-time view has left out; results say so of the other views."""
        return None if self.settlement is None else self.settlement.left_out

    def complete(self) -> Positions:
        """What it has read and published."""
        return self.checkpoint.complete()

    def planned(self) -> Positions:
        """Up to where the current batch reads, and all before it have read."""
        checkpoint = self.checkpoint
        return checkpoint.ends(checkpoint.last() + 1) or checkpoint.complete()

    def tick(self) -> None:
        """Sends a tick if a time-out is due, unless the view waits for its followers."""
        if self.publisher is not None and self.publisher.waits_for is None:
            self._services.ticks.send(self.name, self.publisher.due_ms)

    def say_complete(self) -> None:
        """Publishes which rows are complete by now. If that fails, the query ends as by a failed batch."""
        if self.publisher is not None:
            try:
                self.publisher.say_complete()
            except HeadwaterError:
                self.halt()

    def settle(self) -> None:
        """After the end of a real-time query: settles its last batches."""
        if self.settlement is not None and self.query is not None:
            self.settlement.settle(self.query)

    # ---- its end -------------------------------------------------------------------------------------------

    def stop(self, wait: Callable[[Query], None]) -> None:
        """Ends the query; ``wait`` waits for the current batch of a micro-batch view."""
        if self.query is not None:
            if self.publisher is not None:
                wait(self.query)
            self.query.stop()

    def refuse_batches(self) -> None:
        """The current batch is the last one."""
        if self.publisher is not None:
            self.publisher.stopping.set()

    def halt(self) -> None:
        """Ends the query at once; a batch that runs now is run again at the next start."""
        self.refuse_batches()
        if self.query is not None and self.query.isActive:
            self.query.stop()

    def close(self) -> None:
        """Spark keeps the publishers, and their clients would look for their broker for ever."""
        if self.publisher is not None:
            self.publisher.close()

    def failure(self, error: Exception | None) -> HeadwaterError:
        """What has ended the query."""
        error = (self.publisher.failure if self.publisher is not None else None) or error
        return diagnose(self.name, error, session.data(self._services.settings))

    def end(self, error: Exception) -> None:
        """The view does not run any more: it is tried again later, or stopped until an operator helps.

        It cannot heal if its query fails on a record, if it was refused, or if another driver runs it. That
        is decided first: a query that cannot be ended, or a client that cannot be closed, changes nothing.
        """
        failure = error if isinstance(error, HeadwaterError) else self.failure(error)
        heals = not isinstance(failure, UsageError | FencedError) and self._fault(error) is None
        if not heals:
            self._ending = Ending(self._services.topics, self.name, self._checkpoints)
        self.ended_by = failure
        self.condition.end(one_line(failure, None), heals=heals)
        logger.error("view %s is %s: %s", self.name, self.condition.state, one_line(failure, None))
        for act in (self.halt, self.close):
            try:
                act()
            except Exception as trouble:  # noqa: BLE001  Spark or the log is away
                logger.warning("view %s: %s", self.name, one_line(trouble))
        self.publisher = None

    def _fault(self, error: Exception) -> object:
        """Why its query fails on a record; None if it has ended for another reason."""
        first = self.publisher.failure if self.publisher is not None else None
        return self._services.engine.fault(first or error)

    def is_fenced(self) -> bool:
        """Whether its last batch found another driver, or a rebuild, in its place."""
        return self.publisher is not None and isinstance(self.publisher.failure, FencedError)

    def is_due(self) -> bool:
        """Whether it is to be started again: after its pause, or since a command has mended it."""
        if self.condition.state is not State.STOPPED:
            return self.condition.is_due
        return self._ending is not None and self._ending.is_mended()

    def was_swapped(self) -> bool:
        """Whether readers see another run than the one that this view makes."""
        if self._shadow is not None:
            return False
        return seen_run(self._services.topics, self.name) not in {None, UNKNOWN, self.checkpoint.run}

    def is_working(self) -> bool:
        """Whether its query runs, and since its last failure has also shown that it can complete a batch."""
        query = self.query
        if query is None or not query.isActive:
            return False
        if self.condition.state is not State.FAILING or self.publisher is None:
            return True
        return self.publisher.batches > 0 or not query.status["isTriggerActive"]

    def recover(self, error: Exception | None, follow_s: float) -> HeadwaterError | None:
        """After the query has ended: the error that ends the view.

        None if a rebuild is replacing the run, or the view runs again already (``takeover.py``).
        """
        failure = self.failure(error)
        if not isinstance(failure, FencedError):
            return failure
        try:
            return None if self._follow_rebuild(follow_s) else failure
        except HeadwaterError as trouble:
            return trouble

    def _follow_rebuild(self, follow_s: float) -> bool:
        """After the driver was fenced: whether the view continues, now or once the rebuild is done."""
        services = self._services
        if self._follow is None:
            run = self.checkpoint.run
            self._follow = Follow(services.topics, self.name, run, services.clock, follow_s)
        match self._follow.fate():
            case Fate.FENCED:
                return False
            case Fate.WAITS:
                return True
            case Fate.SWAPPED:
                seen = results.newest(services.topics, self.name)
                if seen is None or seen.definition != self.prepared.definition.digest:
                    raise UsageError(
                        f"view {self.name!r} was rebuilt by another version of the application",
                        hint="start that version; this one makes this view no longer",
                    )
            case Fate.ABANDONED:
                logger.warning(
                    "view %s: its rebuild makes no more results; it continues with its own run", self.name
                )
        self.restart()
        return True

    def restart(self) -> None:
        """Starts the query again, with the run that readers see."""
        self.close()
        self.publisher = self.settlement = self.query = None
        self._checkpoint = self._follow = self.ended_by = None
        self.prepare()
        self.start(once=False)
