"""Isolation: which records of a batch a query fails on, found by halving the batch, and the batch computed without them.

A trial computes the batch with a part of its records, by the same plan, state and watermark; it publishes nothing, and what its tasks write
counts for nothing. A part that fails is halved until a single record is left. Where that passes by itself, records fail only together (two rows
that meet in a join): then it is the first one, in the order of the log, with which the records before it fail.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from headwater.errors import UsageError
from headwater.graph import Graph
from headwater.pipeline import time
from headwater.pipeline.engine import Computed, Engine, Fault, Prepared, Query
from headwater.pipeline.failed import Failure
from headwater.pipeline.operator import Plan
from headwater.pipeline.skips import Range
from headwater.pipeline.topics import Positions

__all__ = ["FAILED_MAX", "Isolation", "NotOfRecords", "Stopping", "TooMany", "search"]

FAILED_MAX = 100
"""A batch with more failing records stops its view: then the query is wrong, not a record."""
logger = logging.getLogger(__name__)

Trial = Callable[[Sequence[int]], Fault | None]
"""Computes a batch with some of its records only, by their numbers; why that fails."""


class Stopping(Exception):  # noqa: N818 (not an error: it ends a query between two batches)
    """Raised instead of taking another batch once the runner is stopping."""


class TooMany(Exception):  # noqa: N818  its caller says it in the words of the view
    """More records fail than ``FAILED_MAX``."""

    def __init__(self, first: Fault) -> None:
        self.first = first


class NotOfRecords(Exception):  # noqa: N818  likewise
    """A batch fails without any of its records: what is kept from earlier ones is at fault."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def search(count: int, trial: Trial, fault: Fault | None, most: int = FAILED_MAX) -> dict[int, Fault]:
    """The records, of so many that fail together with a fault, without which the others pass, each with its own fault.

    The last trial is of all the others, and passes. About the logarithm of ``count`` trials for each record that is found. None is found when
    everything passes in the end: what failed at first does not fail again. Raises ``NotOfRecords`` when it fails without any record.
    """
    found: dict[int, Fault] = {}
    rest: Sequence[int] = range(count)
    without = trial(rest[:0])
    if without is not None:
        raise NotOfRecords(without)
    while fault is not None:
        if len(found) == most:
            raise TooMany(found[min(found)])
        culprit = _alone(rest, trial, fault) or _with_those_before(rest, trial)
        if culprit is None:
            break
        number, its = culprit
        found[number] = its
        rest = [each for each in rest if each != number]
        fault = trial(rest)
    return found


def _alone(part: Sequence[int], trial: Trial, fault: Fault) -> tuple[int, Fault] | None:
    """A record of a part that fails by itself. Where the first half passes, the second one is taken to fail, and only the last record tried."""
    known = False
    while len(part) > 1:
        middle = len(part) // 2
        its = trial(part[:middle])
        known = its is not None
        part, fault = (part[middle:], fault) if its is None else (part[:middle], its)
    if not known:
        its = trial(part)
        return None if its is None else (part[0], its)
    return part[0], fault


def _with_those_before(part: Sequence[int], trial: Trial) -> tuple[int, Fault] | None:
    """The record with which a part begins to fail: those before it pass. None when all of it passes."""
    fault = trial(part)
    if fault is None:
        return None
    passes, fails = 0, len(part)
    while fails - passes > 1:
        middle = (passes + fails) // 2
        its = trial(part[:middle])
        if its is None:
            passes = middle
        else:
            fails, fault = middle, its
    return part[fails - 1], fault


class Isolation:
    """Computes the batches of one view, and leaves out the records on which its query fails. Belongs to the query's thread.

    ``known`` are records that an earlier run of the same query has failed on: they are left out untried.
    """

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        graph: Graph,
        stopping: threading.Event,
        known: Iterable[Failure] = (),
    ) -> None:
        self._engine = engine
        self._view = prepared.view
        self._skips = prepared.skips
        self._graph = graph
        self._stopping = stopping
        self._known = sorted(known)

    def skip(self, failed: dict[str, dict[int, list[int]]]) -> None:
        """Leaves out, from the next batch on, the records that a result names."""
        if self._skips is not None:
            self._skips.set(
                Range(topic, partition, offset, offset + 1)
                for topic, partitions in failed.items()
                for partition, offsets in partitions.items()
                for offset in offsets
            )

    def compute(
        self, rows: Any, plan: Plan, query: Query | None, stretch: tuple[Positions, Positions]
    ) -> tuple[Computed, list[Failure]]:
        """A batch, and the records that are left out of it; ``stretch`` is what it reads, from and up to."""
        if self._skips is None:
            return self._engine.compute(rows, plan, query), []
        batch = list(_ranges(*stretch))
        known = [each for each in self._known if any(_holds(part, each) for part in batch)]
        self._skips.set(map(_range, known))
        try:
            return self._engine.compute(rows, plan, query), known
        except Exception as error:
            fault = self._engine.fault(error)
            if fault is None or self._view.on_error == "stop":
                raise
            logger.warning(
                "view %s: its query fails on a record of batch %d; looking for it",
                self._view.name,
                plan.batch,
            )
            try:
                computed, found = self._found((rows, plan, query), batch, known, fault)
            except NotOfRecords:
                raise error from None
        return computed, sorted([*known, *found])

    def _found(
        self,
        attempt: tuple[Any, Plan, Query | None],
        batch: list[Range],
        known: list[Failure],
        fault: Fault,
    ) -> tuple[Computed, list[Failure]]:
        """A batch without the records on which its query fails, and these: the last trial of a search is the one that passes without them."""
        order, passed = _Order(batch), list[Computed]()
        rows, _, query = attempt

        def trial(part: Sequence[int]) -> Fault | None:
            if self._stopping.is_set():
                raise Stopping
            self._leave_out(order.without(part), known)
            try:
                self._engine.forget_attempt(rows, query)
                passed[:] = [self._engine.compute(*attempt)]
            except Exception as error:
                fault = self._engine.fault(error)
                if fault is None:
                    raise
                return fault
            return None

        try:
            faults = search(len(order), trial, fault)
        except TooMany as error:
            raise self._too_many(error.first) from None
        found = []
        for number, its in sorted(faults.items()):
            found.append(Failure(*order.place(number), its.reason))
            self._check_aggregate(found[-1], its)
        return passed[0], found

    def _leave_out(self, ranges: Iterable[Range], known: Iterable[Failure]) -> None:
        kept = list(ranges)
        more = [_range(each) for each in known if not any(_holds(part, each) for part in kept)]
        if self._skips is not None:
            self._skips.set([*kept, *more])

    def _check_aggregate(self, failure: Failure, fault: Fault) -> None:
        """An aggregate that overflows is not the fault of the record that comes last, which passes by itself: to leave that out would make the row wrong."""
        if self._skips is None or not (fault.overflow and self._skips.aggregates):
            return
        keys = self._engine.keys_alone(self._graph, self._view, failure)
        if keys is not None:
            raise UsageError(
                f"view {self._view.name!r} has stopped: an aggregate has become too large for its type",
                got=f"key {', '.join(keys) or 'unknown'}, with the record at {_place(failure)}: {failure.reason}",
                hint=f"aggregate a wider type, and rebuild it: headwater view rebuild {self._view.name} APP",
            )

    def _too_many(self, fault: Fault) -> UsageError:
        return UsageError(
            f"view {self._view.name!r} has stopped: its query fails on more than {FAILED_MAX} records of a batch",
            got=fault.reason,
            hint="change the query so that it takes them (try_divide, try_cast, a filter), and start it again",
        )


class _Order:
    """The records of a batch by numbers, topic by topic and partition by partition in the order of their offsets."""

    def __init__(self, batch: Sequence[Range]) -> None:
        self._batch = sorted(batch)
        self._begins = [0]
        for part in self._batch:
            self._begins.append(self._begins[-1] + part.end - part.first)

    def __len__(self) -> int:
        return self._begins[-1]

    def place(self, number: int) -> tuple[str, int, int]:
        for part, (begin, end) in zip(self._batch, pairwise(self._begins), strict=True):
            if begin <= number < end:
                return part.topic, part.partition, part.first + number - begin
        raise IndexError(number)

    def without(self, taken: Sequence[int]) -> Iterator[Range]:
        """The ranges that are left out where only some records are taken."""
        gaps = list(_gaps(taken, len(self)))
        for part, (begin, end) in zip(self._batch, pairwise(self._begins), strict=True):
            for first, last in gaps:
                low, high = max(first, begin), min(last, end)
                if low < high:
                    yield Range(
                        part.topic, part.partition, part.first + low - begin, part.first + high - begin
                    )


def _gaps(taken: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """The stretches of so many numbers between those that are taken."""
    if isinstance(taken, range):  # a part that was only halved so far may be long
        yield from ((0, taken.start), (taken.stop, count))
        return
    before = 0
    for number in taken:
        if number > before:
            yield before, number
        before = number + 1
    yield before, count


def _ranges(starts: Positions, ends: Positions) -> Iterator[Range]:
    for topic, partitions in ends.items():
        for partition, end in partitions.items() if topic != time.TICKS else ():
            first = starts.get(topic, {}).get(partition, 0)
            if first < end:
                yield Range(topic, partition, first, end)


def _range(failure: Failure) -> Range:
    return Range(failure.topic, failure.partition, failure.offset, failure.offset + 1)


def _holds(part: Range, failure: Failure) -> bool:
    same = (part.topic, part.partition) == (failure.topic, failure.partition)
    return same and part.first <= failure.offset < part.end


def _place(failure: Failure) -> str:
    return f"{failure.topic}, partition {failure.partition}, offset {failure.offset}"
