"""Watch: the thread that looks after the running queries of a runner."""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from headwater.errors import FencedError, HeadwaterError, MachineError, one_line
from headwater.health.board import STALE_MS
from headwater.health.condition import PartStatus, State
from headwater.pipeline.run.services import Services
from headwater.pipeline.run.takeover import FOLLOW_SECONDS_MAX
from headwater.pipeline.run.view_run import ViewRun
from headwater.pipeline.topics import Positions, records_between
from headwater.result import TICKS, topic

__all__ = ["Watch"]

WATCH_SECONDS = 0.5
LOOK_SECONDS = 2.0
NOT_WATCHED = f"not looked after for more than {STALE_MS // 1000} s: Spark or the log does not answer"

logger = logging.getLogger(__name__)


class Watch:
    """Checks that the log answers, sends ticks, has views say what is complete, settles real-time batches,
    notices ended queries.

    A view whose query has ended is started again, after a pause that grows up to a minute, or is stopped if
    that cannot help; the other views are not touched. The runner ends once all its views are stopped, unless
    it runs ``forever``: a rebuild gives a stopped view another run, and it is started again.

    With ``strict`` the first view that fails ends the runner, unless a rebuild has replaced its run.
    """

    def __init__(
        self,
        views: Sequence[ViewRun],
        services: Services,
        *,
        strict: bool = True,
        forever: bool = False,
        make_topics: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``make_topics`` creates the topics that a view lacks, before it is started again."""
        self.follow_s = FOLLOW_SECONDS_MAX
        self.ended = threading.Event()
        self.failure: HeadwaterError | None = None
        self.lags: dict[str, int] = {}
        """For each view, the records that it has not read, as of a few seconds ago."""
        self._views = views
        self._services = services
        self._strict = strict
        self._forever = forever
        self._make_topics = make_topics
        self._looked = 0.0
        self._answers = False
        """Whether the log has answered in this round; not asked if no view has a watermark."""
        self._round_at: float | None = None
        """When the last round has begun; None before the first."""
        self._due: deque[ViewRun] = deque()
        """The views that are to be started again, the longest due first."""
        self._results: dict[str, tuple[int, int]] = {}
        """For each view, where its results ended at the last look, and how many batches it had published."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which may be starting a query again at this moment."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the runner has ended (True) or the time is over; raises the error of a query."""
        ended = self.ended.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return ended

    def _run(self) -> None:
        """Ends the runner if the watch fails: otherwise no failure of a query would be noticed."""
        try:
            self._watch()
        except Exception as error:
            logger.exception("views are no longer watched")
            self.failure = (
                error
                if isinstance(error, HeadwaterError)
                else MachineError("views are no longer watched", got=repr(error))
            )
            self.ended.set()

    def _watch(self) -> None:
        while self.failure is None and not self._stopping.wait(WATCH_SECONDS):
            self._round_at = self._services.clock.monotonic()
            self._answers = any(view.watched for view in self._views) and self._services.topics.answers(TICKS)
            if self._answers:
                self._services.attention.look()
            for view in self._views:
                if self._strict:
                    self._look_after(view)
                else:
                    self._keep(view)
                if self.failure is not None:
                    self.ended.set()
                    return
            if not self._strict:
                self._look_at_log()
                self._start_one_again()
                self._end_without_views()

    def _look_after(self, view: ViewRun) -> None:
        query = view.query
        if query is None:
            return
        if not query.isActive and not self._stopping.is_set():
            failure = view.recover(query.exception(), self.follow_s)
            if failure is not None:
                if not self._strict:
                    raise failure
                self.failure = failure
                return
        view.tick()
        if self._answers:
            view.say_complete()
        if view.settlement is not None:
            view.settlement.follow(query)

    # ---- views that fail alone -----------------------------------------------------------------------------

    def _keep(self, view: ViewRun) -> None:
        """Looks after a view; whatever is wrong with it ends this view alone."""
        try:
            if not view.condition.has_ended:
                self._look_after(view)
                if view.is_working():
                    view.condition.work()
        except Exception as error:  # noqa: BLE001  of this view: the others do not depend on it
            if isinstance(error, MachineError) and view.is_fenced():
                return  # the log does not say who has fenced it; it is asked again
            self._end(view, error)

    def _end(self, view: ViewRun, error: Exception) -> None:
        try:
            view.end(error)
        except Exception as trouble:  # noqa: BLE001  Spark or the log is away
            view.condition.end(one_line(trouble, None))

    def _end_without_views(self) -> None:
        """Ends the runner if none of its views can run, unless it is to wait until one can."""
        stopped = [view for view in self._views if view.condition.state is State.STOPPED]
        if stopped and len(stopped) == len(self._views) and not self._forever:
            self.failure = stopped[0].ended_by
            self.ended.set()

    def _look_at_log(self) -> None:
        """Now and then: finds views that are due, and those that were replaced, and measures all lags."""
        topics, now = self._services.topics, self._services.clock.monotonic()
        if now < self._looked + LOOK_SECONDS or not topics.answers(TICKS):
            return
        self._looked = now
        quiet = self._quiet()
        for view in self._views:
            if self._stopping.is_set():
                return
            try:
                if view.condition.has_ended:
                    if view not in self._due and view.is_due():
                        self._due.append(view)
                elif view.name in quiet and view.was_swapped():
                    view.halt()
                    failure = view.recover(FencedError(f"view {view.name!r} was rebuilt"), self.follow_s)
                    if failure is not None:
                        raise failure
            except Exception as error:  # noqa: BLE001  as above
                self._end(view, error)
        self._measure()

    def _start_one_again(self) -> None:
        """One in a round: planning takes seconds, and the other views are looked after in between."""
        if not self._due or self._stopping.is_set() or not self._services.topics.answers(TICKS):
            return
        view = self._due.popleft()
        logger.info("view %s is started again", view.name)
        try:
            self._make_topics(view.name)
            view.condition.begin()
            view.restart()
        except Exception as error:  # noqa: BLE001  as above
            self._end(view, error)

    def _quiet(self) -> set[str]:
        """The views whose results have grown, but not by batches of their own, which would notice a fence."""
        batches = {view.name: view.publisher.batches for view in self._views if view.publisher is not None}
        try:
            ends = self._services.topics.end_offsets(map(topic, batches))
        except HeadwaterError:
            return set()  # the log is away; the next look says so
        before = self._results
        self._results = {name: (ends.get((topic(name), 0), 0), count) for name, count in batches.items()}
        return {
            name
            for name, (end, count) in self._results.items()
            if name in before and before[name][0] != end and before[name][1] == count
        }

    def judged(self, status: PartStatus) -> PartStatus:
        """The status of a view as far as it can be believed: not while this thread hangs, as in Spark."""
        now, round_at = self._services.clock.monotonic(), self._round_at
        hangs = round_at is not None and (now - round_at) * 1000 > STALE_MS and not self.ended.is_set()
        if not hangs or status.state not in {State.STARTING, State.RUNNING}:
            return status
        return msgspec.structs.replace(status, state=State.FAILING, error=NOT_WATCHED)

    def _measure(self) -> None:
        """Measures how many records of its inputs each view has not read; nothing here ends anything."""
        topics, graph = self._services.topics, self._services.graph
        positions = {view.name: _read_by(view) for view in self._views}
        with contextlib.suppress(Exception):  # the log is away: the lags stay as they were
            inputs = {
                view.name: [
                    name for stream in graph.inputs(view.view).values() for name in topics.of(stream, graph)
                ]
                for view in self._views
            }
            ends = topics.ends({name for names in inputs.values() for name in names})
            self.lags = {
                view: records_between(read, {name: ends[name] for name in inputs[view] if name in ends})
                for view, read in positions.items()
                if read is not None
            }


def _read_by(view: ViewRun) -> Positions | None:
    """What a view has read; None if its checkpoint does not say, as after a damage to its files."""
    try:
        return view.complete()
    except Exception:  # noqa: BLE001  of this view: its lag alone is unknown
        return None
