"""Isolation: finds the records of a batch on which its query fails, and computes the batch without them.

A trial computes the batch with a part of its records, with the same plan, state and watermark. It publishes
nothing, and no result names the files that its tasks write. A part that fails is halved until a single record
is left. If that record passes alone, records fail only together (two rows that meet in a join): then the
culprit is the first record, in the order of the log, with which the records before it fail.

An aggregate is the exception: a row of it that fails is made of many records, and without the last of them it
would be wrong. Then the view stops.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from headwater.clock import Clock, SystemClock
from headwater.declare.graph import Graph
from headwater.errors import UsageError
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.build.skips import Range
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.engine import Computed, Engine, Failure, Fault, Query
from headwater.pipeline.engine.failure_search import (
    FAILED_FREE,
    FAILED_MAX,
    NotOfRecords,
    TooMany,
    allowed,
    search,
)
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.run.batch_order import BatchOrder
from headwater.pipeline.run.diagnosis import note_place
from headwater.pipeline.topics import Positions
from headwater.result import TICKS, Result

__all__ = ["BatchInput", "Isolation", "Stopping"]

PLACE_S = 30.0
"""How long a view that stops with the first failure searches for the record, to name it."""

logger = logging.getLogger(__name__)


class Stopping(Exception):  # noqa: N818 (not an error: it ends a query between two batches)
    """Raised instead of starting another batch while the runner is stopping."""


class BatchInput:
    """What a batch of a run reads, from its checkpoint and its results; looked up when it is needed."""

    def __init__(
        self, checkpoint: Checkpoint, batch: int, starts: Positions, results: Sequence[Result]
    ) -> None:
        """``starts``: where the batch starts; ``results``: the last ones before it."""
        self.starts = starts
        """Of a topic that is read twice, the smaller offsets."""
        self._checkpoint = checkpoint
        self._batch = batch
        self._results = results

    @cached_property
    def ends(self) -> Positions:
        """Where it ends. Of a topic that is read twice, the greater offsets."""
        return self._checkpoint.ends(self._batch)

    @cached_property
    def ahead(self) -> Positions:
        """Where the source that is ahead starts: the others have yet to read what is before."""
        return self._checkpoint.ends(self._batch - 1)

    @cached_property
    def reached(self) -> Positions:
        """Up to where all of its sources have read after it."""
        return self._checkpoint.reached(self._batch)

    @property
    def recent(self) -> tuple[int, int]:
        """How many records the last batches have read, and on how many of them the query failed."""
        if not self._results:
            return 0, 0
        first, last = self._results[0], self._results[-1]
        whole = first.batch == 0  # a later result says where its batch ends, not where it starts
        begins = first.begun if whole else first.inputs
        read = sum(
            end - begins.get(topic, {}).get(partition, 0)
            for topic, partitions in last.inputs.items()
            for partition, end in partitions.items()
        )
        return read, sum(map(_failed_in, self._results if whole else self._results[1:]))

    @property
    def separate(self) -> bool:
        """Whether Spark keeps the state of a trial apart from that of the attempt that counts."""
        return self._checkpoint.separates_attempts()


class Isolation:
    """Computes the batches of one view without the records on which its query fails.

    Belongs to the query's thread.
    ``known``: records on which an earlier run of the same query has failed; they are left out without a
    trial.
    ``published``: those on which this run has failed, asked when the run is taken over.
    ``bounds``: by partition of a topic, where the log begins and ends.
    """

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        graph: Graph,
        stopping: threading.Event,
        *,
        known: Iterable[Failure] = (),
        published: Callable[[], Iterable[Failure]] = tuple,
        bounds: Callable[[str], Mapping[int, tuple[int, int]]] = lambda _topic: {},
        clock: Clock | None = None,
    ) -> None:
        self.searched = False
        """Whether the last batch has had trials, which may have left files."""
        self._engine = engine
        self._view = prepared.view
        self._skips = prepared.skips
        self._graph = graph
        self._stopping = stopping
        self._known = sorted(known)
        self._ask_published = published
        self._bounds = bounds
        self._clock = clock or SystemClock()

    @cached_property
    def _published(self) -> set[Failure]:
        """Of those that are left out already, the ones that a source of the same topic has yet to read."""
        return set(self._ask_published())

    def skip(self, failed: dict[str, dict[int, list[int]]], batch: BatchInput) -> None:
        """Leaves out, from the next batch on, what a batch that is repeated has left out.

        ``failed``: the failed records that its result names.
        """
        if self._skips is not None:
            again = {
                Failure(topic, partition, offset, "")
                for topic, partitions in failed.items()
                for partition, offsets in partitions.items()
                for offset in offsets
            }
            self._skips.set({_range(failure) for failure in {*again, *_within(batch, self._published)}})
            self._forget(batch, again)

    def compute(
        self, rows: Any, plan: Plan, query: Query | None, batch: BatchInput
    ) -> tuple[Computed, list[Failure]]:
        """A batch, and the records that it leaves out and no batch before it has left out."""
        self.searched = False
        if self._skips is None:
            return self._engine.compute(rows, plan, query), []
        before = _within(batch, self._published)
        places = set(map(_range, before))
        known = [failure for failure in _within(batch, self._known) if _range(failure) not in places]
        self._skips.set({*places, *map(_range, known)})
        try:
            computed, found = self._engine.compute(rows, plan, query), list[Failure]()
        except Exception as error:
            fault = self._engine.fault(error)
            if fault is None:
                raise
            if self._view.on_error == "stop":
                if batch.separate:
                    self._name_record(error, (rows, plan, query), batch, [*before, *known])
                raise
            if not batch.separate:
                raise self._not_separate(fault) from error
            logger.warning(
                "view %s: its query fails on a record of batch %d; searching for it",
                self._view.name,
                plan.batch,
            )
            try:
                computed, found = self._search((rows, plan, query), batch, [*before, *known], fault)
            except NotOfRecords:
                raise error from None
        failures = sorted([*known, *found])
        self._forget(batch, failures)
        return computed, failures

    def _forget(self, batch: BatchInput, failures: Iterable[Failure]) -> None:
        """After a batch with these failures: forgets the records that all sources have read."""
        self._published.update(failures)
        read = [
            failure
            for failure in self._published
            if failure.offset < batch.reached.get(failure.topic, {}).get(failure.partition, 0)
        ]
        self._published.difference_update(read)

    def _search(
        self,
        attempt: tuple[Any, Plan, Query | None],
        batch: BatchInput,
        known: list[Failure],
        fault: Fault,
    ) -> tuple[Computed, list[Failure]]:
        """A batch without the records on which its query fails, and these records.

        The last trial of the search is the one that passes, so its output is the batch.
        """
        order, passed = BatchOrder(self._present(batch)), list[Computed]()
        self.searched = True

        def trial(part: Sequence[int]) -> Fault | None:
            if self._stopping.is_set():
                raise Stopping
            self._leave_out(order.without(part), known)
            return self._try(attempt, passed)

        def blame(number: int, its_fault: Fault) -> None:
            failure = Failure(*order.place(number), its_fault.reason)
            self._check_half(failure, batch)
            self._check_aggregate(failure, its_fault)

        most = allowed(len(order), batch.recent)
        try:
            faults = search(len(order), trial, fault, most, blame)
        except TooMany as error:
            raise self._too_many(len(order), most, error.first) from None
        return passed[0], [
            Failure(*order.place(number), its_fault.reason) for number, its_fault in sorted(faults.items())
        ]

    def _try(self, attempt: tuple[Any, Plan, Query | None], passed: list[Computed]) -> Fault | None:
        """A trial, with the records that are set; what it computes is in ``passed``, unless it fails."""
        rows, _, query = attempt
        try:
            self._engine.forget_attempt(rows, query)
            passed[:] = [self._engine.compute(*attempt)]
        except Exception as error:
            fault = self._engine.fault(error)
            if fault is None:
                raise
            return fault
        return None

    def _name_record(
        self,
        error: Exception,
        attempt: tuple[Any, Plan, Query | None],
        batch: BatchInput,
        known: list[Failure],
    ) -> None:
        """Notes on an error that stops the view at which record it has come, if that is found in time."""
        until = self._clock.monotonic() + PLACE_S
        order = BatchOrder(self._present(batch))

        def trial(part: Sequence[int]) -> Fault | None:
            if self._stopping.is_set() or self._clock.monotonic() > until:
                raise Stopping
            self._leave_out(order.without(part), known)
            return self._try(attempt, [])

        def blame(number: int, fault: Fault) -> None:
            note_place(error, _place(Failure(*order.place(number), fault.reason)))
            raise Stopping

        try:
            search(len(order), trial, self._engine.fault(error), blame=blame)
        except Exception as reason:  # noqa: BLE001  the view stops with the first error in any case
            logger.debug("view %s: the search has ended: %r", self._view.name, reason)

    def _present(self, batch: BatchInput) -> Iterator[Range]:
        """The ranges of a batch, without what retention has deleted before it or since."""
        for part in _ranges(batch.starts, batch.ends):
            begins, _ = self._bounds(part.topic).get(part.partition, (part.first, part.end))
            if begins < part.end:
                yield part._replace(first=max(begins, part.first))

    def _leave_out(self, ranges: Iterable[Range], known: Iterable[Failure]) -> None:
        kept = list(ranges)
        more = {_range(failure) for failure in known if not any(_holds(part, failure) for part in kept)}
        if self._skips is not None:
            self._skips.set([*kept, *more])

    def _check_half(self, failure: Failure, batch: BatchInput) -> None:
        """Raises UsageError if another source of the same topic has taken the record in an earlier batch."""
        if failure.offset < batch.ahead.get(failure.topic, {}).get(failure.partition, 0):
            raise UsageError(
                f"view {self._view.name!r} has stopped: its query fails on a record that it has half taken, "
                "since it reads the topic twice",
                got=f"the record at {_place(failure)}: {failure.reason}",
                hint="change the query so that it accepts the record (try_divide, try_cast, a filter), and "
                f"rebuild it: headwater view rebuild {self._view.name} APP",
            )

    def _check_aggregate(self, failure: Failure, fault: Fault) -> None:
        """Raises UsageError if a row of an aggregate fails, or what is computed from it.

        That is not the fault of the last record: leaving it out would make the row wrong.
        """
        if self._skips is None or not self._skips.aggregates:
            return
        keys = self._engine.keys_alone(self._graph, self._view, failure)
        if keys is None:
            return
        why, hint = (
            "what it computes from an aggregate, or from rows that meet, fails",
            ("change the query so that it accepts such rows (try_divide, a filter)"),
        )
        if fault.overflow:
            why, hint = "an aggregate has become too large for its type", "aggregate a wider type"
        raise UsageError(
            f"view {self._view.name!r} has stopped: {why}",
            got=f"key {', '.join(keys) or 'unknown'}, with the record at {_place(failure)}: {failure.reason}",
            hint=f"{hint}, and rebuild it: headwater view rebuild {self._view.name} APP",
        )

    def _not_separate(self, fault: Fault) -> UsageError:
        return UsageError(
            f"view {self._view.name!r} has stopped: its query fails on a record",
            got=fault.reason,
            hint="its state is of a format in which the record cannot be searched for. A rebuild leaves the "
            f"record out, and continues in the new format: headwater view rebuild {self._view.name} APP",
        )

    def _too_many(self, records: int, most: int, fault: Fault) -> UsageError:
        return UsageError(
            f"view {self._view.name!r} has stopped: its query fails on too many records",
            got=f"more than {most:,} of the {records:,} records of a batch; one of them: {fault.reason}",
            expected=f"{FAILED_FREE} of the recent records, or a tenth of them if that is more, and at most "
            f"{FAILED_MAX:,} in one batch",
            hint="change the query so that it accepts them (try_divide, try_cast, a filter), "
            "and start it again",
        )


def _ranges(starts: Positions, ends: Positions) -> Iterator[Range]:
    for topic, partitions in ends.items():
        for partition, end in partitions.items() if topic != TICKS else ():
            first = starts.get(topic, {}).get(partition, 0)
            if first < end:
                yield Range(topic, partition, first, end)


def _within(batch: BatchInput, failures: Collection[Failure]) -> list[Failure]:
    """Those of a batch. In nearly every batch there are none."""
    ranges = list(_ranges(batch.starts, batch.ends)) if failures else []
    return [failure for failure in failures if any(_holds(part, failure) for part in ranges)]


def _range(failure: Failure) -> Range:
    return Range(failure.topic, failure.partition, failure.offset, failure.offset + 1)


def _holds(part: Range, failure: Failure) -> bool:
    same = (part.topic, part.partition) == (failure.topic, failure.partition)
    return same and part.first <= failure.offset < part.end


def _place(failure: Failure) -> str:
    return f"{failure.topic}, partition {failure.partition}, offset {failure.offset}"


def _failed_in(result: Result) -> int:
    return sum(len(offsets) for partitions in result.failed.values() for offsets in partitions.values())
