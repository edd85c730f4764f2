"""The rebuild of a view: a new run computes it again, and replaces the old run in one transaction.

    shadow   the new run has a checkpoint of its own, and publishes to ``<view>.<run>.shadow`` until it has
             nearly caught up with the old run
    fence    the transactional id of the old run is taken over, and a note in its results announces it. The
             old driver can publish nothing more, and waits while the new run reads the rest
    swap     one transaction with a change for each key whose row differs or is gone, and with the first
             result of the new run that readers see

Until this transaction readers see the old run, after it the new one, without a gap or a step back. The
checkpoint of the old run is kept, and swapping back works in the same way.
"""

import math
import shutil
import uuid
from collections.abc import Callable

import msgspec

from headwater import result
from headwater.clock import Clock, SystemClock
from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.follow import results
from headwater.follow.results import Runs
from headwater.operate.log import topic
from headwater.operate.views.catch_up_progress import CatchUpProgress, records
from headwater.operate.views.lost_inputs import losses, missing, refuse_loss
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.engine import Engine
from headwater.pipeline.kill_points import passes
from headwater.pipeline.left_out import failed_records, late_records
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.published_rows import Published, differences, taken_over
from headwater.pipeline.run.results import RunResults, columns
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.run.state_files import places
from headwater.pipeline.spark import session
from headwater.pipeline.state.files import Place, whole_file
from headwater.pipeline.state.layouts import PLAIN, layout
from headwater.pipeline.state.shard import size_of
from headwater.pipeline.topics import Topics, records_between
from headwater.result import TICKS, Chain, Result

__all__ = ["Rebuild"]

HEARTBEAT = "spark.executor.heartbeatInterval"
LIVELY = {HEARTBEAT: "1s"}
"""A batch of a rebuild may take minutes; executors say meanwhile how many records they have read."""

NEAR_SECONDS = 20.0
"""If catching up takes no longer, another round is not worth it: most of this time is the start of a
query."""
CATCH_UPS_MAX = 10
SHORTER = 0.8
"""Another round is worth it only if the last one took less than this share of the time of the one before."""


class Rebuild:
    """One rebuild of one view. If it is interrupted, a new one continues where it was."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        view: str,
        clock: Clock | None = None,
        *,
        engine: Engine | None = None,
    ) -> None:
        """``engine`` runs the query of the new run: Spark, except in simulations."""
        graph = app.graph()
        if view not in graph.views:
            raise UsageError(f"unknown view {view!r}", expected=", ".join(graph.views))
        if graph.views[view].latency == "realtime":
            raise UsageError(f"view {view!r} runs in real time and cannot be rebuilt while it runs")
        if graph.views[view].append:
            raise UsageError(
                f"view {view!r} has append=True and cannot be rebuilt: its records cannot be replaced",
                hint=f"delete them with headwater view reset {view}, or give the new view another name",
            )
        self._app = app
        options = LIVELY | settings.spark_options
        self._settings = msgspec.structs.replace(settings, spark_options=options)
        self._view: View = graph.views[view]
        self._clock = clock or SystemClock()
        self._engine = engine
        self.near_s = NEAR_SECONDS
        self._topics = Topics(settings.access)
        self._folder = session.data(settings) / "checkpoints" / view

    def run(self, say: Callable[[str], None] = lambda _: None, *, accept_loss: bool = False) -> Result:
        """Computes the view again and swaps, or continues a rebuild that was interrupted.

        UsageError, unless the loss is accepted, if the log no longer holds all records that the view has
        read.
        """
        self._visible()
        what = f"view {self._view.name!r} cannot be rebuilt"
        refuse_loss(self._topics, self._folder, self._view.name, what, accept=accept_loss)
        return self._swap_to(self._unfinished() or str(uuid.uuid4()), say)

    def back(self, say: Callable[[str], None] = lambda _: None) -> Result:
        """Lets the previous run catch up, and swaps to it."""
        *earlier, _ = [*self._runs().shown] or [""]
        previous = next((run for run in reversed(earlier) if (self._folder / run).exists()), None)
        if previous is None:
            raise UsageError(f"view {self._view.name!r} has no earlier run to go back to")
        self._check_rest(previous)
        return self._swap_to(previous, say)

    def _check_rest(self, run: str) -> None:
        """UsageError unless the log still holds the records that an earlier run has not read."""
        gaps = missing(self._topics, self._last(run).inputs, self._visible().inputs)
        if gaps:
            raise UsageError(
                f"view {self._view.name!r} cannot go back: the log no longer holds records"
                " that the earlier run has not read",
                got=losses(self._topics, gaps),
                hint=f"headwater view rebuild {self._view.name} APP --accept-loss uses what is left",
            )

    def _swap_to(self, run: str, say: Callable[[str], None]) -> Result:
        self._visible()
        try:
            while True:
                self._approach(run, say)
                self._announce(run)
                swapped = self._swap(run, say)
                if swapped is not None:
                    break
            say(f"{swapped.changed:,} rows differed")
        finally:
            self._topics.close()
        self._clean(run)
        return swapped

    def _approach(self, run: str, say: Callable[[str], None]) -> None:
        """Catches up repeatedly, until it takes little time or no longer gets shorter.

        Only then the old run is fenced.
        """
        took_s = math.inf
        for _ in range(CATCH_UPS_MAX):
            begun = self._clock.monotonic()
            self._catch_up(run, say)
            before, took_s = took_s, self._clock.monotonic() - begun
            if took_s <= self.near_s or took_s > before * SHORTER or not self._lag(run):
                return

    def _lag(self, run: str) -> int:
        """The number of records that the visible run has read, and this one has not."""
        return records(self._last(run).inputs, self._visible().inputs)

    def _catch_up(self, run: str, say: Callable[[str], None]) -> None:
        ends = self._topics.ends(self._visible().inputs.keys() - {TICKS})
        bounds = {topic: self._topics.bounds(topic) for topic in ends}
        starts = {topic: {p: start for p, (start, _) in parts.items()} for topic, parts in bounds.items()}
        progress = CatchUpProgress(starts, ends, say)
        shadows = {self._view.name: run}
        runner = Runner(self._app, self._settings, self._clock, shadows=shadows, engine=self._engine)
        view = runner.views[self._view.name]
        runner.once(lambda: progress.note(view.complete(), view.planned(), runner.reading()))
        progress.note(view.complete(), view.planned(), 0)

    # ---- the swap --------------------------------------------------------------------------------------

    def _swap(self, run: str, say: Callable[[str], None]) -> Result | None:
        """Replaces the visible run by this one; None if another run is visible by now.

        After the fence the old run reads nothing more, so one more round of catching up is enough. Its driver
        waits until then.
        """
        old = self._visible()
        run_results = RunResults(self._topics, self._view.name, old.run, self._clock)
        before = run_results.take_over()
        try:
            passes("old run is fenced")
            if before is None or before.run != old.run:
                return None
            if records_between(self._last(run).inputs, before.inputs):
                self._catch_up(run, say)
            after = self._last(run)
            swapped = self._visible_result(before, after)
            passes("swap files are written")
            rows = differences(self._published(before), self._published(after))
            return run_results.publish(
                swapped, columns(rows), self._left_out(run), self._failed(old.run, run)
            )
        finally:
            run_results.close()

    def _announce(self, run: str) -> None:
        """Writes into the results that this run will replace the old one: the fenced driver reads it."""
        run_results = RunResults(self._topics, self._view.name, run, self._clock, shadow=True)
        try:
            run_results.take_over()
            last = msgspec.structs.replace(self._last(run), shadow=True, replaces=self._visible().run)
            run_results.revise([last])
        finally:
            run_results.close()

    def _visible_result(self, before: Result, after: Result) -> Result:
        """The result of the new run as readers will see it: its revisions continue the published ones."""
        old, new = self._published(before), self._published(after)
        place, attempt = self._place(after), uuid.uuid4().hex[:12]
        chains: list[Chain] = []
        for shard in new.shards:
            name = f"{shard.number}-{after.batch}-{attempt}.swap"
            entries = taken_over(new, shard, old)
            chains.append((whole_file(place, name, after.batch, entries, size_of(shard.chain)),))
        state = {**after.state, PUBLISH: chains}
        swapped = msgspec.structs.replace(after, shadow=False, replaces="", generation=attempt, state=state)
        return _as_silent(swapped, before)

    def _left_out(self, run: str) -> list[LateRecord]:
        """The late records of the new run, from the topic that is deleted with the swap."""
        late = list(late_records.published(self._topics, result.shadow_topic(self._view.name, run)))
        if late:
            self._topics.ensure(
                [late_records.topic(self._view.name)], self._settings.partitions, compact=True
            )
        return late

    def _failed(self, old: str, run: str) -> list[tuple[bytes, bytes | None]]:
        """The failed records of the new run, and deletions for those of runs before the old one.

        Nothing can go back to such a run.
        """
        failed = list(failed_records.published(self._topics, result.shadow_topic(self._view.name, run)))
        if failed:
            self._topics.ensure(
                [failed_records.topic(self._view.name)], self._settings.partitions, compact=True
            )
        published = failed_records.published(self._topics, self._view.name)
        outdated = [record for record in published if record.run not in {old, run}]
        return list(failed_records.encoded(failed, outdated))

    def _published(self, after: Result) -> Published:
        return Published(self._place(after), after.state[PUBLISH], layout(after.layouts.get(PUBLISH, PLAIN)))

    def _place(self, after: Result) -> Place:
        checkpoint = Checkpoint(self._folder / after.run)
        return places(checkpoint, session.copies(self._settings), [PUBLISH], after.generation)[PUBLISH]

    # ---- runs ------------------------------------------------------------------------------------------

    def _runs(self) -> Runs:
        return results.runs(self._topics, self._view.name)

    def _visible(self) -> Result:
        """The newest result of the run that readers see."""
        newest = results.newest(self._topics, self._view.name)
        if newest is None:
            raise UsageError(
                f"view {self._view.name!r} has no results to be rebuilt", hint="start it: headwater run APP"
            )
        return newest

    def _last(self, run: str) -> Result:
        last = results.of_run(self._topics, self._view.name, run, 1)
        if not last:
            raise UsageError(f"view {self._view.name!r} cannot be rebuilt: its streams are empty")
        return last[0]

    def _unfinished(self) -> str | None:
        """A run that readers have never seen, with a checkpoint on this machine."""
        runs, shown = self._runs()
        hidden = (run for run in reversed(runs) if run not in shown and (self._folder / run).exists())
        return next(hidden, None)

    def _clean(self, run: str) -> None:
        """Deletes the topics of the shadow, and the checkpoints of old runs.

        Kept are those of the visible run, of the run before it, and of a run that is still catching up.
        """
        topics = Topics(self._settings.access).partitions()
        shadow = result.shadow_topic(self._view.name, run)
        for name in (shadow, late_records.topic(shadow), failed_records.topic(shadow)):
            if name in topics:
                topic.delete(self._settings.access, name)
        runs, shown = self._runs()
        for old in runs.keys() - {*[*shown][-2:], self._unfinished()}:
            shutil.rmtree(self._folder / old, ignore_errors=True)


def _as_silent(after: Result, before: Result) -> Result:
    """The first visible result of a run, whose inputs are as silent as for the run before it.

    A rebuild reads everything at once, and does not wait to see inputs idle. If both runs have read the same
    records and met the same times, the silence that the other one knows of continues.
    """
    read, known = (
        (
            {topic: offsets for topic, offsets in each.inputs.items() if topic != result.TICKS},
            {place: entry.time_us for place, entry in each.heard.items()},
        )
        for each in (after, before)
    )
    if read != known:
        return after
    return msgspec.structs.replace(after, heard=before.heard, at_ms=before.at_ms)
