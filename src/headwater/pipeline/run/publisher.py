"""Publisher: each batch of a micro-batch view reaches its topic exactly once.

    tasks    own the keys of a shard, compare each row with the one published last, and write what differs as
             the shard's next state file (``pipeline/output/changed_rows.py``): the file holds just the
             records that the batch publishes
    driver   publishes these files and the batch's result in one transaction (``results.py``)

Tasks publish nothing, so a task may fail, be repeated or run twice: only files that the result names count. A
batch that already has its result is run again and its output discarded, since Spark's own state must advance.
"""

import logging
import threading
from collections.abc import Iterator
from typing import Any

from headwater.errors import HeadwaterError
from headwater.follow.pace import Pace, Trailing
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.checkpoint_sync import Durable
from headwater.pipeline.engine.engine import Failure, Query
from headwater.pipeline.engine.observed import Observed
from headwater.pipeline.kill_points import passes
from headwater.pipeline.left_out import failed_records
from headwater.pipeline.left_out.failed_records import FailedRecord
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.batch_result import ResultBuilder, no_result
from headwater.pipeline.run.completion import Completion
from headwater.pipeline.run.isolation import BatchInput, Isolation, Stopping
from headwater.pipeline.run.published_rows import batch_changes
from headwater.pipeline.run.results import Columns, RunResults
from headwater.pipeline.run.services import Services
from headwater.pipeline.run.start import Start, check_plan
from headwater.pipeline.run.state_files import StateFiles
from headwater.pipeline.run.view_time import ViewTime
from headwater.pipeline.spark import session
from headwater.pipeline.state.layouts import PLAIN
from headwater.pipeline.state.shard import check_size
from headwater.pipeline.time import watermark as time
from headwater.pipeline.time.attention import When
from headwater.pipeline.time.input_times import Stretch
from headwater.pipeline.topics import Positions
from headwater.pipeline.wire.wire import INVALID
from headwater.result import TICKS, Chains, Result

__all__ = ["Publisher", "Stopping"]

START_SECONDS_MAX = 60.0
PACE_SECONDS = 0.2
"""How often a view that waits for its followers looks at their lag."""
TURN_SECONDS = 0.02
"""How often a batch looks whether a result is still being published without one."""

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the batches of one run of a view, in order; called by its query's thread.

    After each batch its records and its result are in the log, its invalid records are published and its
    positions committed. Between two batches the runner's watch lets it say which rows are complete by now;
    batches and watch take turns.
    """

    def __init__(
        self,
        prepared: Prepared,
        checkpoint: Checkpoint,
        results: RunResults,
        services: Services,
        *,
        stopping: threading.Event,
        isolation: Isolation,
        pace: Pace | None = None,
    ) -> None:
        self.stopping = stopping
        self.failure: Exception | None = None
        self.batches = 0
        """The batches that were completed since it was made; any thread may look."""
        self.waits_for: Trailing | None = None
        """The follower whose lag is too large for the view to continue; any thread may look."""
        self._pace = pace
        self._prepared = prepared
        self._view = prepared.view
        self._checkpoint = checkpoint
        self._services = services
        self._engine = services.engine
        self._attention = services.attention
        self._isolation = isolation
        self._durable = Durable(checkpoint.folder)
        self._results = results
        self._files = StateFiles(checkpoint, prepared.timed)
        self._last = self._open()
        self._time = ViewTime(prepared, self._last, services.clock, services.attention, services.watermark)
        self._builder = ResultBuilder(prepared, checkpoint, results, self._time)
        self._completion = Completion(prepared, services, self._time)
        self._turn = threading.Lock()
        self._done_ms = services.attention.now_ms()
        """When the last batch ended: Spark plans none before that."""
        ordered = [results.by_batch[batch] for batch in sorted(results.by_batch)]
        try:
            self._files.open(session.copies(services.settings), self._last.generation, ordered)
        except BaseException:
            results.close()
            raise
        self._started = threading.Event()
        self._query: Query | None = None

    def _open(self) -> Result:
        """Takes over the run; its last result, or an empty one for a new run."""
        try:
            start = self._results.open(self._checkpoint.last)
            last = self._results.last
            if last is not None:
                check_plan(self._view.name, last, self._prepared)
        except BaseException:
            self._results.close()
            raise
        return no_result(self._prepared) if start is Start.FRESH or last is None else last

    def attach(self, query: Query) -> None:
        """Gives the publisher its query; its first batch waits for this."""
        self._query = query
        self._commit_position(self._checkpoint.last())
        self._started.set()

    @property
    def due_ms(self) -> int | None:
        """When a time-out falls due and the view needs a tick; any thread may look."""
        return self._time.due_ms

    def note_silence(self) -> None:
        """Between two batches: nothing is unread, and all inputs were silent until now."""
        with self._turn:
            self._time.note_silence()

    def say_complete(self) -> None:
        """Between two batches: publishes that further rows are complete, if they are (``completion.py``).

        Called by the runner's watch. Raises FencedError or MachineError, and then refuses all batches.
        """
        if not self._completion.is_due or self.stopping.is_set() or not self._started.is_set():
            return
        if not self._turn.acquire(blocking=False):
            return
        try:
            later = self._completion.later(self._last)
            if later is not None:
                self._results.revise([later])
                self._last = later
                self._time.expect(later)
        except HeadwaterError as error:
            self.failure = error
            self.stopping.set()
            raise
        finally:
            self._turn.release()

    def close(self) -> None:
        self._results.close()
        self._query = None  # Spark keeps publishers, and would keep their queries

    # ---- a batch -------------------------------------------------------------------------------------------

    def __call__(self, rows: Any, batch: int) -> None:
        if self.stopping.is_set() or not self._started.wait(START_SECONDS_MAX):
            raise Stopping
        planned = self._attention.when(self._planned_ms(batch), self._done_ms)
        while not self._turn.acquire(blocking=False):
            if self.stopping.wait(TURN_SECONDS):
                raise Stopping
        try:
            self._run(rows, batch, planned)
        finally:
            self._turn.release()

    def _run(self, rows: Any, batch: int, planned: When) -> None:
        try:
            self._await_followers()
            passes("batch begins")
            if self._results.repeated(batch, self._checkpoint.reached(batch)):
                logger.info("view %s: batch %d is already published", self._view.name, batch)
                self._repeat(rows, batch)
            else:
                self._take(rows, batch, planned)
        except Stopping:
            raise
        except Exception as error:
            self.failure = error  # Spark only passes on a text with both sides' stack traces
            raise
        self._commit_position(batch)
        self._done_ms = self._attention.now_ms()
        self._completion.rest()
        self.batches += 1

    def _take(self, rows: Any, batch: int, planned: When) -> None:
        """Computes a batch and publishes it.

        ``planned``: when its records were chosen. The view may have waited for its followers since.
        """
        now_ms = self._services.clock.now_ms()
        before = self._last.inputs or self._builder.begun()
        stretch = Stretch(before, self._checkpoint.sources(batch), self._prepared.batch_records)
        watermark = self._time.plan(stretch, planned)
        plan = self._plan(batch, self._last, self._last.state, watermark, now_ms * 1000)
        computed, failures = self._isolation.compute(rows, plan, self._query, self._input(batch, before))
        passes("batch was computed")
        self._time.take(computed.seen.times(), stretch, planned)
        failed = failed_records.by_topic(failures)
        result = self._builder.build(
            batch, self._last, computed, watermark=watermark, now_ms=now_ms, failed=failed
        )
        check_size(self._view.name, self._last.state, result.state, self._services.settings.state_bytes_max)
        self._publish_invalid(batch, computed.seen)
        late_rows = self._late_rows(batch, result, computed.seen)
        self._durable.sync()
        strays = self._files.strays(result) if self._isolation.searched else set()
        self._last = self._results.publish(
            result,
            self._changes(result),
            late_rows,
            failed_records.encoded(self._failed(failures)),
        )
        self._move_spark()
        self._time.expect(self._last)
        self._files.keep(self._last, strays)
        passes("batch ends")

    def _repeat(self, rows: Any, batch: int) -> None:
        """Runs a published batch again, as it ran then, and discards its output."""
        before, result = self._results.by_batch.get(batch - 1), self._results.by_batch[batch]
        chains: Chains = before.state if before else no_result(self._prepared).state
        watermark = time.NEVER if result.watermark is None else result.watermark
        self._isolation.skip(result.failed, self._input(batch, before.inputs if before else {}))
        self._engine.repeat(rows, self._plan(batch, before, chains, watermark, result.now_us))
        self._durable.sync()  # Spark has written its state again, over files that were on the disk
        self._move_spark()

    def _input(self, batch: int, starts: Positions) -> BatchInput:
        earlier = [
            self._results.by_batch[number] for number in sorted(self._results.by_batch) if number < batch
        ]
        return BatchInput(self._checkpoint, batch, starts, earlier)

    def _plan(self, batch: int, before: Result | None, state: Chains, watermark: int, now_us: int) -> Plan:
        """What the tasks of a batch need: its time, and where their state is.

        Sets the bounds of late rows too.
        """
        judge = self._prepared.judge
        if judge is not None:
            judge.check(self._checkpoint.ends(batch))
            judge.set_bounds(watermark, now_us)
        passed = self._time.input_watermarks(before)
        return Plan(batch, self._files.places, state, watermark, now_us, self._view.late.horizon_us, passed)

    def _changes(self, result: Result) -> Iterator[Columns]:
        """The records that a batch publishes."""
        return batch_changes(
            self._files.places[PUBLISH],
            result.state[PUBLISH],
            self._prepared.layouts.get(PUBLISH, PLAIN),
            result.batch,
            append=self._view.append,
        )

    def _planned_ms(self, batch: int) -> int:
        """When the first source of a batch was asked where it ends.

        It was not after the batch was planned and, in this process, not before Spark began to look.
        """
        planned_ms = self._checkpoint.planned_ms(batch)
        return planned_ms if self._query is None else min(planned_ms, self._engine.began_ms(self._query))

    def _move_spark(self) -> None:
        """Lets Spark drop state by the watermark that the batch has used, less the horizon.

        So Spark never drops a row that the view accepts.
        """
        if self._query is None or self._last.watermark is None:
            return
        reached = self._time.input_watermarks(self._last).get(PUBLISH, self._last.watermark)
        self._engine.forget(self._query, reached - self._view.late.horizon_us)

    def _commit_position(self, batch: int) -> None:
        """Commits the position of the view for lag tools, without waiting.

        The next start commits it again.
        """
        reached = {topic: ends for topic, ends in self._checkpoint.reached(batch).items() if topic != TICKS}
        if reached and not self._results.shadow:
            self._engine.groups.commit(self._view.name, reached, wait=False)

    def _await_followers(self) -> None:
        """Before a batch is planned: waits until all followers of the view's rows lag little enough."""
        while self._pace is not None and (slow := self._pace.too_far()) is not None:
            if self.waits_for is None:
                logger.info(
                    "view %s waits for %s, which lags by %d records", self._view.name, slow.name, slow.records
                )
            self.waits_for = slow
            if self.stopping.wait(PACE_SECONDS):
                raise Stopping
        if self.waits_for is not None:
            logger.info("view %s continues: %s has caught up", self._view.name, self.waits_for.name)
            self.waits_for = None

    # ---- records that it leaves out ------------------------------------------------------------------------

    def _publish_invalid(self, batch: int, seen: Observed) -> None:
        counts = {name: row["records"] for name, row in seen.rows.items() if name.startswith(INVALID)}
        if any(counts.values()):
            starts, ends = self._checkpoint.starts(batch), self._checkpoint.ends(batch)
            self._services.invalid.publish(self._view, counts, starts, ends)

    def _late_rows(self, batch: int, result: Result, seen: Observed) -> Iterator[LateRecord]:
        """The late records of the batch, if the view publishes them."""
        streams = {heard.stream for heard in seen.heard if heard.late}
        if not streams or self._view.late.policy == "drop":
            return iter(())
        stretch = self._checkpoint.starts(batch), self._checkpoint.ends(batch)
        watermark = result.watermark or 0
        return self._services.late.read(self._view, streams, stretch, run=result.run, watermark=watermark)

    def _failed(self, failures: list[Failure]) -> list[FailedRecord]:
        """The records that the batch leaves out since the query fails on them, as they are published."""
        records = self._results.read_failed(failures, self._prepared.definition.digest)
        for record in records:  # the reason may quote the record, so it is only in the topic
            place = f"{record.topic}, partition {record.partition}, offset {record.offset}"
            logger.warning(
                "view %s fails on the record at %s; it is in %s",
                self._view.name,
                place,
                failed_records.topic(self._view.name),
            )
        return records
