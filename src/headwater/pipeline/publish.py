"""Publish: each batch of a micro-batch view reaches its topic exactly once.

    tasks    own the keys of a shard, compare each row with the one published last, and write what differs as the
             shard's next state file (``differing.py``): so the file holds just the records that the batch publishes
    driver   publishes these files and the batch's result in one transaction (``progress.py``)

Tasks publish nothing, so a task may fail, be repeated or run twice: only files that the result names count. A batch that has
its result already is run and thrown away, since Spark's own state must move on.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headwater.clock import Clock
from headwater.errors import UsageError
from headwater.formats import RESULT
from headwater.pace import Pace, Trailing
from headwater.pipeline import definition, failed, source, time
from headwater.pipeline.attention import Attention, When
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.counts import rows_in
from headwater.pipeline.differing import PUBLISH
from headwater.pipeline.durable import Durable
from headwater.pipeline.engine import Computed, Engine, Prepared, Query
from headwater.pipeline.failed import FailedRecord, Failure
from headwater.pipeline.hearing import Hearing, Stretch
from headwater.pipeline.invalid import InvalidRecords
from headwater.pipeline.isolation import Isolation, Stopping
from headwater.pipeline.late import LateRecord, LateRecords
from headwater.pipeline.layout import AS_THEY_ARE, GROUPS, PLAIN, format_of, layout, values
from headwater.pipeline.observed import Observed
from headwater.pipeline.operator import OBSERVED, Plan, written
from headwater.pipeline.points import passes
from headwater.pipeline.progress import Columns, Progress, columns
from headwater.pipeline.state import check_size
from headwater.pipeline.statefile import Place, batches, contents, names, remove
from headwater.pipeline.topics import Positions
from headwater.result import Chain, Chains, Edit, Result, Taken, files_of

__all__ = ["Publisher", "Stopping", "places"]

Offsets = dict[str, dict[int, list[int]]]
"""By topic and partition."""

START_SECONDS_MAX = 60.0
VERSIONS_KEPT = 8
"""State files of so many results are kept, so that a batch can be repeated."""
EDITS_KEPT = 20
PACE_SECONDS = 0.2
"""How often a view that waits looks how far those are whom it waits for."""

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the batches of one run of a view, in order; called by its query's thread.

    After each batch its records and its result are in the log, the invalid records it met are published and its positions committed.
    """

    def __init__(
        self,
        prepared: Prepared,
        checkpoint: Checkpoint,
        progress: Progress,
        *,
        engine: Engine,
        stopping: threading.Event,
        isolation: Isolation,
        invalid: InvalidRecords,
        late: LateRecords,
        copies: Path,
        state_bytes_max: int,
        clock: Clock,
        attention: Attention,
        watermark: time.Watermark = time.watermark,
        pace: Pace | None = None,
    ) -> None:
        self.stopping = stopping
        self.failure: Exception | None = None
        self.waits_for: Trailing | None = None
        """Who is too far behind for the view to go on; any thread may look."""
        self._pace = pace
        self._prepared = prepared
        self._view = prepared.view
        self._checkpoint = checkpoint
        self._engine = engine
        self._isolation = isolation
        self._invalid = invalid
        self._late = late
        self._clock = clock
        self._attention = attention
        self._durable = Durable(checkpoint.folder)
        self._state_bytes_max = state_bytes_max
        self._progress = progress
        found = self._files()
        self._last = self._opened()
        self._places = places(checkpoint, copies, prepared.timed, self._last.generation)
        known = time.resumed(self._last.heard, self._last.at_ms, attention.now_ms())
        reached = time.NEVER if self._last.watermark is None else self._last.watermark
        self._hearing = Hearing(prepared.inputs, known, reached, watermark)
        self._done_ms = attention.now_ms()
        """When the last batch ended: Spark plans none before that."""
        self._dues: tuple[int | None, int | None] = None, None
        self._needed: deque[set[tuple[str, str]]] = deque(maxlen=VERSIONS_KEPT)
        self._forget_strays(found)
        self._started = threading.Event()
        self._query: Query | None = None
        self._look_ahead()

    def attach(self, query: Query) -> None:
        """Gives the publisher its query; its first batch waits for this."""
        self._query = query
        self._show_position(self._checkpoint.last())
        self._started.set()

    @property
    def due_ms(self) -> int | None:
        """When a time-out falls due and the view wants a tick; any thread may look."""
        by_clock, by_attention = self._dues
        if by_attention is not None:
            by_attention += self._clock.now_ms() - self._attention.now_ms()
        return min((due for due in (by_clock, by_attention) if due is not None), default=None)

    def note_silence(self) -> None:
        """Between two batches: nothing is unread, and all inputs were silent until now."""
        now_ms = self._attention.look()
        for place in list(self._hearing.known):
            self._hearing.silence(place, now_ms)

    def close(self) -> None:
        self._progress.close()
        self._query = None  # Spark keeps publishers, and would keep their queries

    def __call__(self, rows: Any, batch: int) -> None:
        if self.stopping.is_set() or not self._started.wait(START_SECONDS_MAX):
            raise Stopping
        planned = self._attention.when(self._planned_ms(batch), self._done_ms)
        try:
            self._await_followers()
            self._take(rows, batch, planned)
        except Stopping:
            raise
        except Exception as error:
            self.failure = error  # Spark only hands on a text with both sides' stack traces
            raise
        self._show_position(batch)
        self._done_ms = self._attention.now_ms()

    def _planned_ms(self, batch: int) -> int:
        """When the first source of a batch was asked where it ends: not after the batch was planned, and in this process not before Spark began to look."""
        planned_ms = self._checkpoint.planned_ms(batch)
        return planned_ms if self._query is None else min(planned_ms, self._engine.began_ms(self._query))

    def _show_position(self, batch: int) -> None:
        """Tells lag tools how far the view is; not waited for, and told again at the next start."""
        reached = {
            topic: ends for topic, ends in self._checkpoint.reached(batch).items() if topic != time.TICKS
        }
        if reached and not self._progress.shadow:
            self._engine.groups.commit(self._view.name, reached, wait=False)

    def _await_followers(self) -> None:
        """Before a batch is planned: until those who follow the view's rows are near enough."""
        while self._pace is not None and (slow := self._pace.too_far()) is not None:
            if self.waits_for is None:
                logger.info(
                    "view %s waits for %s, which is %d records behind",
                    self._view.name,
                    slow.name,
                    slow.records,
                )
            self.waits_for = slow
            if self.stopping.wait(PACE_SECONDS):
                raise Stopping
        if self.waits_for is not None:
            logger.info("view %s goes on: %s has caught up", self._view.name, self.waits_for.name)
            self.waits_for = None

    def _take(self, rows: Any, batch: int, planned: When) -> None:
        """``planned``: when it was decided what the batch reads. The view may have been held since."""
        passes("batch begins")
        if self._progress.repeated(batch, self._checkpoint.reached(batch)):
            logger.info("view %s: batch %d is published already", self._view.name, batch)
            self._repeat(rows, batch)
            return
        now_ms = self._clock.now_ms()
        before = self._last.inputs or self._begun()
        stretch = Stretch(before, self._checkpoint.sources(batch), self._prepared.batch_records)
        watermark = self._hearing.plan(stretch, planned)
        plan = self._plan(batch, self._last, self._last.state, watermark, now_ms * 1000)
        computed, failures = self._isolation.compute(
            rows, plan, self._query, (before, self._checkpoint.ends(batch))
        )
        passes("batch was computed")
        seen = computed.seen
        self._hearing.take(seen.times(), stretch, planned)
        result = self._result(batch, computed, watermark, now_ms, failed.by_topic(failures))
        check_size(self._view.name, self._last.state, result.state, self._state_bytes_max)
        self._publish_invalid(batch, seen)
        late_rows = self._late_rows(batch, result, seen)
        self._durable.sync()
        self._last = self._progress.publish(
            result,
            self._changes(result.state[PUBLISH], batch),
            late_rows,
            failed.encoded(self._failed(failures)),
        )
        self._look_ahead()
        self._forget_old()
        passes("batch ends")

    def _repeat(self, rows: Any, batch: int) -> None:
        """Runs a batch as it ran, and throws away what comes out."""
        before, known = self._progress.results.get(batch - 1), self._progress.results[batch]
        chains: Chains = before.state if before else {name: [()] * len(c) for name, c in known.state.items()}
        watermark = time.NEVER if known.watermark is None else known.watermark
        self._isolation.skip(known.failed)
        self._engine.repeat(rows, self._plan(batch, before, chains, watermark, known.now_us))
        self._durable.sync()  # Spark has written its state once more, over files that were on the disk
        self._move_spark()

    def _opened(self) -> Result:
        try:
            self._progress.open(self._checkpoint.last)
            return self._known()
        except BaseException:
            self._progress.close()
            raise

    def _known(self) -> Result:
        """The last result, if it is of the same operators and shards."""
        last, shards = self._progress.last, self._prepared.shards
        if last is not None:
            definition.check(self._view.name, last.parts, self._prepared.definition)
        wants = dict.fromkeys(self._prepared.timed, shards)
        if last is None:
            empty: Chains = {name: [()] * shards for name in wants}
            return Result(run="", batch=-1, inputs={}, partitions=0, state=empty)
        had = {name: len(chains) for name, chains in last.state.items()}
        anew = f"make it anew from the log: headwater view rebuild {self._view.name} APP"
        if had != wants:
            raise UsageError(
                f"view {self._view.name!r} cannot go on: its operators or shards have changed",
                got=str(wants),
                expected=str(had),
                hint=anew,
            )
        if last.layouts.get(PUBLISH) == GROUPS != self._prepared.layouts.get(PUBLISH):
            raise UsageError(
                f"view {self._view.name!r} cannot go on: its rows stand where Spark has grouped them",
                expected="a query that ends with a groupBy of nothing but its key",
                hint=anew,
            )
        return last

    def _plan(self, batch: int, before: Result | None, state: Chains, watermark: int, now_us: int) -> Plan:
        """What the tasks of a batch are told: its time, and where their state is. Its judge is told too."""
        if self._prepared.judge is not None:
            self._prepared.judge.check(self._checkpoint.ends(batch))
            self._prepared.judge.tell(watermark, now_us)
        passed = self._passed(before)
        return Plan(batch, self._places, state, watermark, now_us, self._view.late.horizon_us, passed)

    def _result(self, batch: int, computed: Computed, watermark: int, now_ms: int, left: Offsets) -> Result:
        """What the batch has made, from what its shards have written and what was heard."""
        before, (notes, seen) = self._last, computed
        count = self._prepared.shards
        files = {name: written(row["files"], count) for name, row in seen.of(OBSERVED)}
        files[PUBLISH] = written(notes, count)
        state, opens = dict(before.state), dict(before.opens)
        for name, shards in files.items():
            state[name] = [
                shards[number].chain if number in shards else chain
                for number, chain in enumerate(before.state[name])
            ]
            if self._prepared.timed[name]:
                had = before.opens.get(name) or [None] * len(before.state[name])
                opens[name] = [shards[n].open if n in shards else open_us for n, open_us in enumerate(had)]
        return Result(
            format=self._format(left),
            run=self._progress.run,
            batch=batch,
            generation=before.generation,
            inputs=self._checkpoint.reached(batch),
            begun=before.begun or self._begun(),
            partitions=self._progress.partitions,
            state=state,
            layouts=self._prepared.layouts,
            shadow=self._progress.shadow,
            definition=self._prepared.definition.digest,
            parts=self._prepared.definition.parts,
            edits=self._edits(batch),
            columns=self._prepared.columns,
            watermark=watermark if self._prepared.inputs else None,
            complete=self._complete(before, watermark, opens.get(PUBLISH, ())),
            views=self._prepared.views,
            now_us=now_ms * 1000,
            heard=self._hearing.known,
            opens=opens,
            late=before.late + sum(each.late for each in seen.heard),
            taken=self._taken(before, seen, left),
            failed=left,
            stragglers=seen.stragglers() if self._view.late.horizon_us else {},
            at_ms=now_ms,
        )

    def _format(self, left: Offsets) -> int:
        """The oldest format that says all of the result, so that earlier versions refuse only what they would misread."""
        failed_before = any(each.failed for each in self._last.taken.values())
        return RESULT.newest if left or failed_before else format_of(self._prepared.layouts.values())

    def _begun(self) -> Positions:
        return {topic: starts for topic, starts in self._checkpoint.begun().items() if topic != time.TICKS}

    def _taken(self, before: Result, seen: Observed, left: Offsets) -> dict[str, Taken]:
        """What has become of the records of each topic so far. Of a stream without records Spark may have observed nothing."""
        taken, split = dict(before.taken), {each.stream: (each.kept, each.late) for each in seen.heard}
        for name, row in seen.of(source.INVALID):
            topic = self._prepared.sources.get(name)
            if topic is not None:
                began = Taken(0, 0, 0, before.inputs.get(topic, {}))
                invalid, valid = row["records"], row["valid"]
                taken[topic] = taken.get(topic, began).plus(*split.get(name, (valid, 0)), invalid)
        for topic in left.keys() & set(self._prepared.sources.values()):
            began = Taken(0, 0, 0, before.inputs.get(topic, {}))
            taken[topic] = taken.get(topic, began).plus(0, 0, 0, sum(map(len, left[topic].values())))
        return taken

    def _complete(self, before: Result, watermark: int, waiting: Iterable[int | None]) -> int | None:
        """Up to when its rows are complete by its own watermark; what the views say that it reads is added by whoever asks (``wait.py``).

        ``waiting``: the earliest row that each shard of the publication still holds. A shard that the batch had no rows for was not asked for
        those that are due by now: they go out with the next tick.
        """
        if self._prepared.inputs:
            return time.passed(self._passed(before).get(PUBLISH, watermark), waiting)
        return time.NEVER if self._prepared.views and self._prepared.open_ended else None

    def _edits(self, batch: int) -> tuple[Edit, ...]:
        """The changes of the view so far that needed no rebuild, this batch's with them."""
        before, digest = self._last, self._prepared.definition.digest
        if not before.definition or not definition.edited(before.definition, digest):
            return before.edits
        logger.info("view %s has changed; it goes on from batch %d with its state", self._view.name, batch)
        return (*before.edits[1 - EDITS_KEPT :], Edit(digest, batch, before.inputs))

    def _publish_invalid(self, batch: int, seen: Observed) -> None:
        counts = {name: row["records"] for name, row in seen.rows.items() if name.startswith(source.INVALID)}
        if any(counts.values()):
            starts, ends = self._checkpoint.starts(batch), self._checkpoint.ends(batch)
            self._invalid.publish(self._view, counts, starts, ends)

    def _late_rows(self, batch: int, result: Result, seen: Observed) -> Iterator[LateRecord]:
        """The late records that the batch has met, when they are to be published."""
        streams = {each.stream for each in seen.heard if each.late}
        if not streams or self._view.late.policy == "drop":
            return iter(())
        stretch = self._checkpoint.starts(batch), self._checkpoint.ends(batch)
        return self._late.read(self._view, streams, stretch, run=result.run, watermark=result.watermark or 0)

    def _failed(self, failures: list[Failure]) -> list[FailedRecord]:
        """The records that the batch has left out since the query fails on them, as they are to be published."""
        found = self._progress.with_values(failures)
        for each in found:  # the reason may quote the record, so it is only in the topic
            place = f"{each.topic}, partition {each.partition}, offset {each.offset}"
            logger.warning(
                "view %s fails on the record at %s; it is in %s",
                self._view.name,
                place,
                failed.topic(self._view.name),
            )
        return found

    def _changes(self, chains: list[Chain], batch: int) -> Iterator[Columns]:
        form, place = self._prepared.layouts.get(PUBLISH, PLAIN), self._places[PUBLISH]
        for chain in chains:
            if chain and chain[-1].version == batch:
                if self._view.append or form in AS_THEY_ARE:
                    yield from (tuple(rows_in(part).columns) for part in batches(place, chain[-1]))
                else:
                    yield from columns(values(layout(form), contents(place, chain[-1])))

    # ---- time ------------------------------------------------------------------------------------------

    def _passed(self, last: Result | None) -> dict[str, int]:
        """How far the inputs of operators behind others are complete that hold rows back, after a batch: up to its watermark, or to the first held row."""
        opens, watermark = (last.opens, last.watermark) if last is not None else ({}, None)
        return {
            name: time.passed(watermark, [each for other in holds for each in opens.get(other, ())])
            - sum(holds.values())
            for name, holds in self._prepared.holds.items()
        }

    def _look_ahead(self) -> None:
        """After a batch: moves Spark's own watermark, and works out when a tick is due."""
        self._move_spark()
        by_clock: list[int] = []
        by_attention: list[int | None] = []
        for name, opens in self._last.opens.items():
            held_us = sum(self._prepared.holds.get(name, {}).values())
            for open_us in (each for each in opens if each is not None):
                if self._prepared.timed[name] == "watermark":
                    by_attention.append(self._hearing.due_ms(open_us + held_us))
                else:
                    by_clock.append(open_us // 1000 + 1)
        known = (due for due in by_attention if due is not None)
        self._dues = min(by_clock, default=None), min(known, default=None)

    def _move_spark(self) -> None:
        """Spark forgets state by the watermark of ours that has just been used, less the horizon: so it never drops a row that we let through."""
        if self._query is None or self._last.watermark is None:
            return
        reached = self._passed(self._last).get(PUBLISH, self._last.watermark)
        self._engine.forget(self._query, reached - self._view.late.horizon_us)

    # ---- files -----------------------------------------------------------------------------------------

    def _forget_old(self) -> None:
        """Removes the state files that no result of the last few needs."""
        full = len(self._needed) == VERSIONS_KEPT
        oldest = self._needed[0] if full else set()
        self._needed.append(files_of(self._last.state))
        self._remove(oldest - set().union(*self._needed))

    def _forget_strays(self, found: set[tuple[str, str]]) -> None:
        """At the start: removes what attempts have left that came to nothing.

        ``found`` are the files from before the run was taken over. What is there now may be a successor's, which has fenced this driver and made results of its own
        while it was suspended.
        """
        results = [self._progress.results[batch] for batch in sorted(self._progress.results)]
        self._needed.extend(files_of(result.state) for result in results)
        self._remove(found - set().union(*self._needed))

    def _files(self) -> set[tuple[str, str]]:
        """Operator and name of every state file that is there."""
        here = places(self._checkpoint, Path(), self._prepared.timed, "")
        return {(operator, name) for operator, place in here.items() for name in names(place)}

    def _remove(self, files: set[tuple[str, str]]) -> None:
        for operator, name in files:
            remove(self._places[operator], name)


def places(
    checkpoint: Checkpoint, copies: Path, operators: Iterable[str], generation: str
) -> dict[str, Place]:
    """Where the state of each operator of a run is."""
    view = checkpoint.folder.parent.name
    return {
        name: Place(
            str(checkpoint.folder / "shards" / name),
            str(copies / checkpoint.run / generation / name),
            # A rebuild goes on from the rows that were published, so it needs the state of this step.
            f"headwater view reset {view}" if name == PUBLISH else f"headwater view rebuild {view} APP",
        )
        for name in operators
    }
