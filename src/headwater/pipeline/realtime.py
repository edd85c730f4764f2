"""Real time: what a real-time query cannot do while it runs is settled behind it.

Spark lets no code of ours into such a query. Every few seconds it closes a batch and reports positions and counts; then the invalid and
the late records of that stretch are published and the positions committed to the view's group. The commit comes last, so that after a
crash the group tells from where to look again.

A view that keeps windows has a watermark like every other (``time.py``). It is set while the query runs, for the batch after the one that
runs (``bounds.py``). Spark forgets windows by the one before that, so it never drops a row that we let through.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from pyspark.sql.streaming import StreamingQuery

from headwater.clock import Clock
from headwater.errors import MachineError
from headwater.pipeline import late, source, time
from headwater.pipeline.attention import Attention, When
from headwater.pipeline.beside import Beside
from headwater.pipeline.bounds import Bounds
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.engine import Engine, Prepared
from headwater.pipeline.hearing import Hearing, Stretch
from headwater.pipeline.invalid import InvalidRecords
from headwater.pipeline.late import LateRecords
from headwater.pipeline.plan import observed
from headwater.pipeline.split import BOUND
from headwater.pipeline.topics import Positions

__all__ = ["Settlement"]

logger = logging.getLogger(__name__)

Observed = Mapping[str, Mapping[str, int | None]]
"""What was observed in a batch, by stream."""


class Settlement:
    """Follows one real-time view. Owned by the runner's watching thread, and by its stopping one after that."""

    def __init__(
        self,
        prepared: Prepared,
        checkpoint: Checkpoint,
        engine: Engine,
        *,
        invalid: InvalidRecords,
        late: LateRecords,
        beside: Beside,
        clock: Clock,
        attention: Attention,
        ends: Callable[[Iterable[str]], Positions],
    ) -> None:
        self._prepared = prepared
        self._view = prepared.view
        self._checkpoint = checkpoint
        self._engine = engine
        self._invalid = invalid
        self._late = late
        self._beside = beside
        self._clock = clock
        self._begun = checkpoint.last()
        self._settled = engine.groups.committed(self._view.name) or self._before()
        self._batch = self._begun - 1
        self._attention = attention
        self._looked_ms = attention.now_ms()
        """When all batches were settled that were complete then."""
        self._ends = ends
        self._asked: tuple[Positions, int] = {}, 0
        reached = checkpoint.next_watermark_us(self._begun)
        before = time.NEVER if reached is None else reached + self._view.late.horizon_us
        self._hearing = Hearing(prepared.inputs, {}, before)
        self._bounds = Bounds(checkpoint.folder)
        self._trouble = ""
        """Why the last batch could not be settled."""
        self._tell(self._begun + 1)  # nothing runs yet

    def follow(self, query: StreamingQuery) -> None:
        """The same while the query runs, which must not end with what can be done a moment later: a log that is away, a disk that is full.

        Nothing is lost by waiting: positions are committed last, and a bound that is not told lets rows in. Raises MachineError when a
        topic has got partitions that the plan does not look at.
        """
        last = self._checkpoint.last()
        if self._prepared.judge is not None and last != self._batch:
            self._prepared.judge.check(self._checkpoint.ends(last))
        try:
            self.settle(query)
        except Exception as error:  # noqa: BLE001  whatever it is, it is said, and tried again
            if str(error) != self._trouble:
                logger.warning(
                    "view %s: a batch is not settled yet, and is tried again: %s", self._view.name, error
                )
            self._trouble = str(error)
        else:
            self._trouble = ""

    def settle(self, query: StreamingQuery) -> None:
        """Settles each batch that is complete since the last call. Of those before this process, of one during which the query ended, and of those whose
        report Spark has dropped for newer ones meanwhile, there is none.
        """
        ended = When(self._looked_ms, self._attention.now_ms())
        last = self._checkpoint.last()
        reports = {each["batchId"]: each for each in query.recentProgress} if last > self._batch else {}
        for batch in range(self._batch + 1, last + 1):
            if batch > max(reports, default=self._begun) and query.isActive:
                return  # its report comes a moment later than its end
            seen = _observed(reports[batch]) if batch in reports else None
            if not self._settle(batch, seen):
                return
            self._batch = batch
            self._move(query, seen, ended)
        self._looked_ms = ended.latest_ms  # not if a batch is left: it has ended before

    def _before(self) -> Positions:
        """What counts as settled when the group has no positions: nothing of a view that is new, and all but the last batch of one that is not.

        Positions of a group without members expire. Records from long ago would be judged by the bound of the last batches, and be told as late.
        """
        return {} if self._checkpoint.reached(0) else self._checkpoint.reached(self._begun - 1)

    def _settle(self, batch: int, seen: Observed | None) -> bool:
        """Publishes what a batch has left out; with None for what was observed, all of it is read again."""
        ends = self._checkpoint.reached(batch)
        starts = {
            t: {p: min(self._settled.get(t, {}).get(p, 0), end) for p, end in ps.items()}
            for t, ps in ends.items()
        }
        if starts != ends:
            self._invalid.publish(self._view, _invalid(seen), starts, ends)
            if seen is not None:
                self._publish_late(seen, _bound(seen), (starts, ends))
            else:
                for one, stretch in self._unreported(batch, starts, ends):
                    bound = self._bounds.of(one)
                    self._publish_late(
                        None, self._checkpoint.watermark_us(one) if bound is None else bound, stretch
                    )
            if not self._engine.groups.commit(self._view.name, ends):
                return False
        self._settled = ends
        return True

    def _unreported(
        self, batch: int, starts: Positions, ends: Positions
    ) -> Iterator[tuple[int, tuple[Positions, Positions]]]:
        """What each batch of a stretch has read, the last one first: there may be several that were not settled."""
        while True:
            before = self._checkpoint.reached(batch - 1)
            if not any(at > starts.get(t, {}).get(p, 0) for t, ps in before.items() for p, at in ps.items()):
                yield batch, (starts, ends)
                return
            yield batch, (before, ends)
            batch, ends = batch - 1, before

    # ---- time ------------------------------------------------------------------------------------------

    def _publish_late(
        self, seen: Observed | None, bound: int | None, stretch: tuple[Positions, Positions]
    ) -> None:
        """Publishes the records of a stretch whose time is before a bound."""
        if self._prepared.judge is None or self._view.late.policy == "drop":
            return
        streams = {name for name in self._prepared.inputs if seen is None or seen.get(name, {}).get("late")}
        if not streams or bound is None or bound + self._view.late.horizon_us <= time.NEVER:
            return
        watermark = bound + self._view.late.horizon_us
        found = self._late.read(self._view, streams, stretch, run=self._checkpoint.run, watermark=watermark)
        name = late.topic(self._view.name)
        records = ((name, each.key, msgspec.json.encode(each)) for each in found)
        self._beside.send(f"late records of view {self._view.name!r}", records)

    def _move(self, query: StreamingQuery, seen: Observed | None, ended: When) -> None:
        """After a batch: what was heard in it moves the watermark, and Spark forgets by what rows were late in it.

        Such a batch reads until it ends. What it took nothing of was silent until then; of what it took without meeting a time it
        is asked where it ends, and the next batch that has read so far shows that there was none. A batch without a report may have met any time.
        """
        if self._prepared.judge is None:
            return
        times = {
            f"{stream}/{place}": at
            for stream, row in (seen or {}).items()
            for place, at in row.items()
            if place.isdecimal() and at is not None
        }
        starts, ends = self._checkpoint.reached(self._batch - 1), self._checkpoint.reached(self._batch)
        stretch = Stretch(starts, [ends])
        self._hearing.take(times, stretch, ended)
        if seen is not None:
            self._mute(times, stretch, ended.latest_ms)
        bound = _bound(seen or {})
        if bound is not None:
            self._engine.forget(query, bound)
        self._hearing.plan(stretch, ended)
        self._tell(self._checkpoint.last() + 2)

    def _mute(self, times: Mapping[str, int], stretch: Stretch, now_ms: int) -> None:
        """Places that bring records and no time, as those of a device whose clock is wrong: silent as far as all of them has been read."""
        vague = self._hearing.vague(times, stretch)
        (asked, at_ms), (ends,) = self._asked, stretch.sources
        for place, topic, partition in vague:
            if ends[topic][partition] >= asked.get(topic, {}).get(partition, math.inf):
                self._hearing.silence(place, at_ms)
        with contextlib.suppress(MachineError):  # then it is asked after the next batch
            self._asked = (self._ends({topic for _, topic, _ in vague}) if vague else {}), now_ms

    def _tell(self, since: int) -> None:
        """By what rows are late from a batch on, which has not begun."""
        if self._prepared.judge is None:
            return
        bound = self._hearing.watermark - self._view.late.horizon_us
        before = self._bounds.of(since - 1)
        self._bounds.note(since, bound, self._batch)
        bounds = bound if before is None else before, bound
        self._prepared.judge.tell_from(since, bounds, self._clock.now_ms() * 1000)


def _observed(report: Any) -> Observed:
    """What Spark reports of a batch."""
    found = report["observedMetrics"].items()
    return {observed(name).removeprefix(f"{source.INVALID} "): row.asDict() for name, row in found}


def _invalid(seen: Observed | None) -> dict[str, int] | None:
    """How many records of each stream were invalid, as `InvalidRecords` wants it."""
    if seen is None:
        return None
    return {f"{source.INVALID} {name}": row["records"] or 0 for name, row in seen.items()}


def _bound(seen: Observed) -> int | None:
    """By what rows were late in a batch: all of its inputs go by the same, and one without records says nothing."""
    return min((bound for row in seen.values() if (bound := row.get(BOUND)) is not None), default=None)
