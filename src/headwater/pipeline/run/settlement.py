"""Settlement: what the driver does after each batch of a real-time query, as it cannot act inside the query.

Every few seconds such a query closes a batch and reports positions and counts. Then the driver publishes the
invalid and the late records of that stretch and commits the positions to the view's group. The commit comes
last, so that after a crash the group says where to continue.

A view that keeps windows has a watermark like every other view (``pipeline/time/watermark.py``). The driver
sets it while the query runs, for the batch after the current one (``pipeline/time/late_bounds.py``). Spark
drops windows by the watermark before that, so it never drops a row that the view accepts.
"""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from headwater.clock import Clock
from headwater.errors import MachineError
from headwater.pipeline.build.plan_edits import observed
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.engine import Engine
from headwater.pipeline.left_out import late_records as late
from headwater.pipeline.left_out.invalid_records import InvalidRecords
from headwater.pipeline.left_out.late_records import LateRecords
from headwater.pipeline.left_out.left_out_counts import LeftOutCounts
from headwater.pipeline.left_out.side_records import SideTopic, encode, tallied
from headwater.pipeline.time import watermark as time
from headwater.pipeline.time.attention import Attention, When
from headwater.pipeline.time.input_times import InputTimes, Stretch
from headwater.pipeline.time.late_bounds import Bounds
from headwater.pipeline.time.late_split import BOUND
from headwater.pipeline.topics import Positions
from headwater.pipeline.wire.wire import INVALID
from headwater.result import LeftOut

__all__ = ["Settlement"]

logger = logging.getLogger(__name__)

Observed = Mapping[str, Mapping[str, int | None]]
"""The observations of a batch, by stream."""


class Settlement:
    """Settles the batches of one real-time view.

    Belongs to the runner's watch, and to the thread that stops it.
    """

    def __init__(
        self,
        prepared: Prepared,
        checkpoint: Checkpoint,
        engine: Engine,
        *,
        invalid: InvalidRecords,
        late: LateRecords,
        side_topic: SideTopic,
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
        self._side_topic = side_topic
        self._clock = clock
        self._begun = checkpoint.last()
        """The last batch before this process."""
        committed, notes = engine.groups.committed(self._view.name)
        self._settled = committed or self._before()
        self._counts = LeftOutCounts.of(self._settled, notes)
        self._batch = self._begun - 1
        self._attention = attention
        self._looked_ms = attention.now_ms()
        """The last look at which no complete batch was left to settle."""
        self._ends = ends
        self._asked: tuple[Positions, int] = {}, 0
        reached = checkpoint.next_watermark_us(self._begun)
        before = time.NEVER if reached is None else reached + self._view.late.horizon_us
        self._times = InputTimes(prepared.inputs, {}, before)
        self._bounds = Bounds(checkpoint.folder)
        self._trouble = ""
        """Why the last batch could not be settled."""
        self._set_bound(self._begun + 1)  # nothing runs yet

    @property
    def left_out(self) -> LeftOut:
        """How many records the settled batches have left out."""
        return self._counts.sum

    def follow(self, query: StreamingQuery) -> None:
        """Settles while the query runs. An error is logged, and the batch is tried again at the next look.

        The query must not end because the log is away for a moment or a disk is full. Nothing is lost by
        waiting: positions are committed last, and without a new bound rows are accepted. Raises MachineError
        if a topic has more partitions than the plan reads.
        """
        last = self._checkpoint.last()
        if self._prepared.judge is not None and last != self._batch:
            self._prepared.judge.check(self._checkpoint.ends(last))
        try:
            self.settle(query)
        except Exception as error:  # noqa: BLE001  any error is logged, and the batch tried again
            if str(error) != self._trouble:
                logger.warning(
                    "view %s: a batch is not settled yet and will be tried again: %s", self._view.name, error
                )
            self._trouble = str(error)
        else:
            self._trouble = ""

    def settle(self, query: StreamingQuery) -> None:
        """Settles each batch that was closed since the last call.

        There is no report of batches before this process, of one during which the query ended, and of those
        whose report Spark has replaced by newer ones.
        """
        ended = When(self._looked_ms, self._attention.now_ms())
        last = self._checkpoint.last()
        reports = {report["batchId"]: report for report in query.recentProgress} if last > self._batch else {}
        for batch in range(self._batch + 1, last + 1):
            if batch > max(reports, default=self._begun) and query.isActive:
                return  # Spark reports a batch a moment after it has closed it
            seen = _observed(reports[batch]) if batch in reports else None
            if not self._settle(batch, seen):
                return
            self._batch = batch
            self._move(query, seen, ended)
        self._looked_ms = ended.latest_ms  # not if a batch is left: it ended earlier

    def _before(self) -> Positions:
        """What counts as settled without positions: nothing of a new view, else all but the last batch.

        Positions of a group without members expire. Old records must not be judged by the bound of the last
        batches, which would publish them as late.
        """
        return {} if self._checkpoint.reached(0) else self._checkpoint.reached(self._begun - 1)

    def _settle(self, batch: int, seen: Observed | None) -> bool:
        """Publishes the records that a batch has left out; without observations all of it is read again."""
        ends = self._checkpoint.reached(batch)
        starts = {
            t: {p: min(self._settled.get(t, {}).get(p, 0), end) for p, end in ps.items()}
            for t, ps in ends.items()
        }
        if starts != ends:
            invalid = self._invalid.publish(self._view, _invalid(seen), starts, ends)
            counts = self._counts.plus(self._late_of(batch, seen, (starts, ends)), invalid)
            if not self._engine.groups.commit(self._view.name, ends, counts.notes(ends)):
                return False
            self._counts = counts
        self._settled = ends
        return True

    def _late_of(
        self, batch: int, seen: Observed | None, stretch: tuple[Positions, Positions]
    ) -> Counter[str]:
        """Publishes the late records of a batch, and counts them by topic."""
        if seen is not None:
            return self._publish_late(seen, _bound(seen), stretch)
        published: Counter[str] = Counter()
        for number, part in self._unreported(batch, *stretch):
            bound = self._bounds.of(number)
            if bound is None:
                bound = self._checkpoint.watermark_us(number)
            published += self._publish_late(None, bound, part)
        return published

    def _unreported(
        self, batch: int, starts: Positions, ends: Positions
    ) -> Iterator[tuple[int, tuple[Positions, Positions]]]:
        """The stretch of each batch that was not settled, the last one first."""
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
    ) -> Counter[str]:
        """Publishes the records of a stretch whose time is before a bound; returns how many each topic has.

        With ``late="drop"`` they are only counted, if the batch was reported.
        """
        published: Counter[str] = Counter()
        if self._prepared.judge is None:
            return published
        if self._view.late.policy == "drop":
            return self._dropped(seen or {})
        streams = {name for name in self._prepared.inputs if seen is None or seen.get(name, {}).get("late")}
        if not streams or bound is None or bound + self._view.late.horizon_us <= time.NEVER:
            return published
        watermark = bound + self._view.late.horizon_us
        late_rows = self._late.read(
            self._view, streams, stretch, run=self._checkpoint.run, watermark=watermark
        )
        name = late.topic(self._view.name)
        records = ((name, *encode(record)) for record in tallied(late_rows, published))
        self._side_topic.send(f"late records of view {self._view.name!r}", records)
        return published

    def _dropped(self, seen: Observed) -> Counter[str]:
        """How many late records of each topic a batch has dropped; those of a pattern are not counted."""
        topics = {name: place.topic for name, place in self._prepared.inputs.items() if not place.pattern}
        return Counter({topics[name]: row.get("late") or 0 for name, row in seen.items() if name in topics})

    def _move(self, query: StreamingQuery, seen: Observed | None, ended: When) -> None:
        """After a batch: its event times move the watermark, and Spark drops state by the batch's bound.

        Such a batch reads until it ends. A partition of which it took nothing was silent until then. If it
        took records without a time of a partition, the log is asked where the partition ends; the next batch
        that has read up to there proves the silence. A batch without a report may have met any time.
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
        self._times.take(times, stretch, ended)
        if seen is not None:
            self._mute(times, stretch, ended.latest_ms)
        bound = _bound(seen or {})
        if bound is not None:
            self._engine.forget(query, bound)
        self._times.plan(stretch, ended)
        self._set_bound(self._checkpoint.last() + 2)

    def _mute(self, times: Mapping[str, int], stretch: Stretch, now_ms: int) -> None:
        """Notes the silence of partitions that bring records without a time, as far as they have been read.

        Such are those of a device whose clock is wrong.
        """
        vague = self._times.vague(times, stretch)
        (asked_ends, at_ms), (ends,) = self._asked, stretch.sources
        for place, topic, partition in vague:
            if ends[topic][partition] >= asked_ends.get(topic, {}).get(partition, math.inf):
                self._times.silence(place, at_ms)
        with contextlib.suppress(MachineError):  # then the log is asked after the next batch
            self._asked = (self._ends({topic for _, topic, _ in vague}) if vague else {}), now_ms

    def _set_bound(self, since: int) -> None:
        """Sets the bound by which rows are late from a batch on that has not begun."""
        if self._prepared.judge is None:
            return
        bound = self._times.watermark - self._view.late.horizon_us
        before = self._bounds.of(since - 1)
        self._bounds.note(since, bound, self._batch)
        bounds = bound if before is None else before, bound
        self._prepared.judge.set_bounds_from(since, bounds, self._clock.now_ms() * 1000)


def _observed(report: Any) -> Observed:
    """The observations in Spark's report of a batch."""
    metrics = report["observedMetrics"].items()
    return {observed(name).removeprefix(f"{INVALID} "): row.asDict() for name, row in metrics}


def _invalid(seen: Observed | None) -> dict[str, int] | None:
    """How many records of each stream were invalid, as `InvalidRecords` takes it."""
    if seen is None:
        return None
    return {f"{INVALID} {name}": row["records"] or 0 for name, row in seen.items()}


def _bound(seen: Observed) -> int | None:
    """The bound by which rows of a batch were late: the same for all inputs.

    One without records does not report it.
    """
    return min((bound for row in seen.values() if (bound := row.get(BOUND)) is not None), default=None)
