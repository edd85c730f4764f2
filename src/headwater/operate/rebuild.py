"""Rebuild: a view is made anew from the log beside the one that readers see, and takes its place in one transaction.

    shadow   the new run, a checkpoint of its own, publishes to ``<view>.<run>.shadow`` until it has read what the old one has
    fence    the old run's transactional id is taken over: its driver can publish nothing more, and what it has read stands
    swap     one transaction holds a change for each key whose row differs or is gone, and the new run's first result that readers see

Until the transaction the old run is the view, after it the new one: readers see neither a gap nor a step back. The old run's
checkpoint is kept, and swapping back is the same act.
"""

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
from headwater.pipeline import late, session
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.differing import PUBLISH
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


class Rebuild:
    """One rebuild of one view. Whatever ends it, it can be begun again and goes on where it was."""

    def __init__(self, app: App, settings: Settings, view: str, clock: Clock | None = None) -> None:
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
        self._topics = Topics(settings.access)
        self._folder = session.data(settings) / "checkpoints" / view

    def run(self, say: Callable[[str], None] = lambda _: None) -> Result:
        """Makes the view anew, or goes on with a rebuild that was interrupted, and swaps."""
        return self._make(self._unfinished() or str(uuid.uuid4()), say)

    def back(self, say: Callable[[str], None] = lambda _: None) -> Result:
        """Lets the run before this one catch up, and swaps to it."""
        *earlier, _ = [*self._runs().shown] or [""]
        kept = next((run for run in reversed(earlier) if (self._folder / run).exists()), None)
        if kept is None:
            raise UsageError(f"view {self._view.name!r} has no earlier run to go back to")
        return self._make(kept, say)

    def _make(self, run: str, say: Callable[[str], None]) -> Result:
        self._seen()
        try:
            while True:
                self._catch_up(run, say)
                swapped = self._swap(run)
                if swapped is not None:
                    break
            say(f"{swapped.changed:,} rows differed")
        finally:
            self._topics.close()
        self._clean(run)
        return swapped

    def _catch_up(self, run: str, say: Callable[[str], None]) -> None:
        ends = self._topics.ends(self._seen().inputs)
        runner = Runner(self._app, self._settings, self._clock, shadows={self._view.name: run})
        total = behind({}, ends)

        def look() -> None:
            left = behind(runner.positions()[self._view.name], ends)
            say(f"{total - left:,} of {total:,} records")

        runner.once(look)

    # ---- the swap --------------------------------------------------------------------------------------

    def _swap(self, run: str) -> Result | None:
        """Puts a run in the place of the one that readers see; None when that one has read more meanwhile."""
        old = self._seen()
        progress = Progress(self._topics, self._view.name, old.run, self._clock)
        before = progress.take_over()
        try:
            passes("old run is fenced")
            after = self._last(run)
            if before is None or before.run != old.run or behind(after.inputs, before.inputs):
                return None
            swapped = self._made(before, after)
            passes("swap files are written")
            rows = differences(self._published(before), self._published(after))
            return progress.publish(swapped, columns(rows), self._left_out(run))
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
        return msgspec.structs.replace(after, shadow=False, generation=attempt, state=state)

    def _left_out(self, run: str) -> list[LateRecord]:
        """What the new run has left out while nobody read it; it stands in a topic that goes with the swap."""
        found = list(late.published(self._topics, result.shadow_topic(self._view.name, run)))
        if found:
            self._topics.ensure([late.topic(self._view.name)], self._settings.partitions, compact=True)
        return found

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
        for name in (shadow, late.topic(shadow)):
            if name in there:
                topic.delete(self._settings.access, name)
        known, shown = self._runs()
        for old in known.keys() - {*[*shown][-2:], self._unfinished()}:
            shutil.rmtree(self._folder / old, ignore_errors=True)
