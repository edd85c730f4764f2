"""Rebuild: a view is made anew from the log beside the one that readers see, and takes its place in one transaction.

    shadow   the new run, a checkpoint of its own, publishes to ``<view>.<run>.shadow`` until it has read nearly all that the old one has
    fence    the old run's transactional id is taken over, which a note in its results announces: its driver can publish nothing more, and waits
             while the new run reads the rest
    swap     one transaction holds a change for each key whose row differs or is gone, and the new run's first result that readers see

Until the transaction the old run is the view, after it the new one: readers see neither a gap nor a step back. The old run's
checkpoint is kept, and swapping back is the same act.
"""

import math
import shutil
import uuid
from collections.abc import Callable

import msgspec

from headwater import result
from headwater.app import App
from headwater.clock import Clock, SystemClock
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import View
from headwater.operate import topic
from headwater.operate.loss import missing, refuse_loss
from headwater.pipeline import failed, late, session
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.differing import PUBLISH
from headwater.pipeline.engine import Engine
from headwater.pipeline.late import LateRecord
from headwater.pipeline.layout import PLAIN, layout
from headwater.pipeline.points import passes
from headwater.pipeline.progress import Progress, columns
from headwater.pipeline.publish import places
from headwater.pipeline.published import Published, differences, taken_over
from headwater.pipeline.runner import Runner
from headwater.pipeline.state import size_of
from headwater.pipeline.statefile import Place, whole_file
from headwater.pipeline.topics import Topics, behind
from headwater.result import Chain, Result, Runs

__all__ = ["Rebuild"]

NEAR_SECONDS = 20.0
"""A run of catching up that takes so long is short: most of it is the start of a query."""
CATCH_UPS_MAX = 10
SHORTER = 0.8
"""By this factor one must be shorter than the one before it: otherwise there is nothing to be gained by another."""


class Rebuild:
    """One rebuild of one view. Whatever ends it, it can be begun again and goes on where it was."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        view: str,
        clock: Clock | None = None,
        *,
        engine: Engine | None = None,
    ) -> None:
        """``engine``: what runs the new run's query; Spark, but for simulations."""
        graph = app.graph()
        if view not in graph.views:
            raise UsageError(f"unknown view {view!r}", expected=", ".join(graph.views))
        if graph.views[view].latency == "realtime":
            raise UsageError(f"view {view!r} runs in real time and cannot be rebuilt beside itself")
        if graph.views[view].append:
            raise UsageError(
                f"view {view!r} appends: its readers have its records already",
                hint=f"throw them away with headwater view reset {view}, or give the new one another name",
            )
        self._app = app
        self._settings = settings
        self._view: View = graph.views[view]
        self._clock = clock or SystemClock()
        self._engine = engine
        self.near_s = NEAR_SECONDS
        self._topics = Topics(settings.access)
        self._folder = session.data(settings) / "checkpoints" / view

    def run(self, say: Callable[[str], None] = lambda _: None, *, accept_loss: bool = False) -> Result:
        """Makes the view anew, or goes on with a rebuild that was interrupted, and swaps.

        Raises UsageError, unless that is accepted, when the log no longer holds all records that the view has read.
        """
        self._seen()
        what = f"view {self._view.name!r} cannot be rebuilt"
        refuse_loss(self._topics, self._folder, self._view.name, what, accept=accept_loss)
        return self._make(self._unfinished() or str(uuid.uuid4()), say)

    def back(self, say: Callable[[str], None] = lambda _: None) -> Result:
        """Lets the run before this one catch up, and swaps to it."""
        *earlier, _ = [*self._runs().shown] or [""]
        kept = next((run for run in reversed(earlier) if (self._folder / run).exists()), None)
        if kept is None:
            raise UsageError(f"view {self._view.name!r} has no earlier run to go back to")
        self._check_rest(kept)
        return self._make(kept, say)

    def _check_rest(self, run: str) -> None:
        """Whether the log still holds what an earlier run has not read."""
        lacks = missing(self._topics, self._last(run).inputs, self._seen().inputs)
        if lacks:
            raise UsageError(
                f"view {self._view.name!r} cannot go back: the log no longer holds what the run before has not read",
                got="; ".join(map(str, lacks)),
                hint=f"make it from what is left: headwater view rebuild {self._view.name} APP --accept-loss",
            )

    def _make(self, run: str, say: Callable[[str], None]) -> Result:
        self._seen()
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
        """Catches up, and again with what has come meanwhile, until that takes no time to speak of, or as long each time: only then the old run is fenced."""
        took_s = math.inf
        for _ in range(CATCH_UPS_MAX):
            begun = self._clock.monotonic()
            self._catch_up(run, say)
            before, took_s = took_s, self._clock.monotonic() - begun
            if took_s <= self.near_s or took_s > before * SHORTER or not self._lacks(run):
                return

    def _lacks(self, run: str) -> int:
        """How many records the run that readers see has read, and this one not."""
        return behind(self._last(run).inputs, self._seen().inputs)

    def _catch_up(self, run: str, say: Callable[[str], None]) -> None:
        ends = self._topics.ends(self._seen().inputs)
        shadows = {self._view.name: run}
        runner = Runner(self._app, self._settings, self._clock, shadows=shadows, engine=self._engine)
        total = behind({}, ends)

        def look() -> None:
            left = behind(runner.positions()[self._view.name], ends)
            say(f"{total - left:,} of {total:,} records")

        runner.once(look)

    # ---- the swap --------------------------------------------------------------------------------------

    def _swap(self, run: str, say: Callable[[str], None]) -> Result | None:
        """Puts a run in the place of the one that readers see; None when that is another one by now.

        From the fence on the old run reads nothing more, so that one more run of catching up is enough; its driver waits meanwhile.
        """
        old = self._seen()
        progress = Progress(self._topics, self._view.name, old.run, self._clock)
        before = progress.take_over()
        try:
            passes("old run is fenced")
            if before is None or before.run != old.run:
                return None
            if behind(self._last(run).inputs, before.inputs):
                self._catch_up(run, say)
            after = self._last(run)
            swapped = self._made(before, after)
            passes("swap files are written")
            rows = differences(self._published(before), self._published(after))
            return progress.publish(swapped, columns(rows), self._left_out(run), self._failed(old.run, run))
        finally:
            progress.close()

    def _announce(self, run: str) -> None:
        """Notes in the results that the run is about to take the place of the old one, for the driver that is fenced by that: this is no other driver's doing."""
        progress = Progress(self._topics, self._view.name, run, self._clock, shadow=True)
        try:
            progress.take_over()
            last = msgspec.structs.replace(self._last(run), shadow=True, replaces=self._seen().run)
            progress.revise([last])
        finally:
            progress.close()

    def _made(self, before: Result, after: Result) -> Result:
        """The new run's result as readers will see it: its rows with the revisions that go on from the published ones."""
        old, new = self._published(before), self._published(after)
        place, attempt = self._place(after), uuid.uuid4().hex[:12]
        chains: list[Chain] = []
        for shard in new.shards:
            name = f"{shard.number}-{after.batch}-{attempt}.swap"
            entries = taken_over(new, shard, old)
            chains.append((whole_file(place, name, after.batch, entries, size_of(shard.chain)),))
        state = {**after.state, PUBLISH: chains}
        return msgspec.structs.replace(after, shadow=False, replaces="", generation=attempt, state=state)

    def _left_out(self, run: str) -> list[LateRecord]:
        """What the new run has left out while nobody read it; it stands in a topic that goes with the swap."""
        found = list(late.published(self._topics, result.shadow_topic(self._view.name, run)))
        if found:
            self._topics.ensure([late.topic(self._view.name)], self._settings.partitions, compact=True)
        return found

    def _failed(self, old: str, run: str) -> list[tuple[bytes, bytes | None]]:
        """The records that the query of the new run could not take; those of runs before the old one, which nothing returns to, leave their topic."""
        found = list(failed.published(self._topics, result.shadow_topic(self._view.name, run)))
        if found:
            self._topics.ensure([failed.topic(self._view.name)], self._settings.partitions, compact=True)
        there = failed.published(self._topics, self._view.name)
        return list(failed.encoded(found, [each for each in there if each.run not in {old, run}]))

    def _published(self, of: Result) -> Published:
        return Published(self._place(of), of.state[PUBLISH], layout(of.layouts.get(PUBLISH, PLAIN)))

    def _place(self, of: Result) -> Place:
        checkpoint = Checkpoint(self._folder / of.run)
        return places(checkpoint, session.copies(self._settings), [PUBLISH], of.generation)[PUBLISH]

    # ---- runs ------------------------------------------------------------------------------------------

    def _runs(self) -> Runs:
        return result.runs(self._topics, self._view.name)

    def _seen(self) -> Result:
        seen = result.newest(self._topics, self._view.name)
        if seen is None:
            raise UsageError(
                f"view {self._view.name!r} has no results to be rebuilt", hint="start it: headwater run APP"
            )
        return seen

    def _last(self, run: str) -> Result:
        found = result.of_run(self._topics, self._view.name, run, 1)
        if not found:
            raise UsageError(f"view {self._view.name!r} cannot be rebuilt: its streams are empty")
        return found[0]

    def _unfinished(self) -> str | None:
        """A run that readers have never seen, and whose checkpoint is here."""
        known, shown = self._runs()
        hidden = (run for run in reversed(known) if run not in shown and (self._folder / run).exists())
        return next(hidden, None)

    def _clean(self, run: str) -> None:
        """Removes the shadow's topics, and the checkpoints of old runs: all but the one that readers see, the one before it, and one that still catches up."""
        there = Topics(self._settings.access).partitions()
        shadow = result.shadow_topic(self._view.name, run)
        for name in (shadow, late.topic(shadow), failed.topic(shadow)):
            if name in there:
                topic.delete(self._settings.access, name)
        known, shown = self._runs()
        for old in known.keys() - {*[*shown][-2:], self._unfinished()}:
            shutil.rmtree(self._folder / old, ignore_errors=True)
