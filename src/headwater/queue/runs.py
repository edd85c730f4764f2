"""The runs of one share partition: every offset from ``start`` to ``end`` is in exactly one of them.

Neighbours in the same state are one run, and settled offsets at the front are dropped, so there are at most
twice as many runs as records that are not settled.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple, Protocol

from headwater.queue.run import DeliveryState, Run

__all__ = ["Runs", "Snapshot", "Watcher", "join"]

_first = attrgetter("first")


class Snapshot(NamedTuple):
    """A copy of all runs, to go back to."""

    start: int
    end: int
    runs: list[Run]
    counts: list[int]
    available_from: int


class Watcher(Protocol):
    """Hears of every run that changes."""

    def changed(self, run: Run) -> None:
        """These offsets are in another state now."""

    def drop_before(self, start: int) -> None:
        """What was before an offset is forgotten."""

    def reset(self, start: int) -> None:
        """Everything may be different."""


class Runs:
    """A sorted list of runs. One share partition owns it."""

    def __init__(self, start: int, runs: Iterable[Run] = ()) -> None:
        self.start = self.end = start
        """The first offset that is not settled, and the first one of which nothing is known."""
        self._counts = [0] * len(DeliveryState)
        """How many offsets between them are in each state."""
        self._runs: list[Run] = []
        self._available_from = start
        """No available run begins before this."""
        self.watcher: Watcher | None = None
        self._fill(start, runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def unsettled(self) -> int:
        """How many offsets are not settled."""
        return sum(self._counts) - self._counts[DeliveryState.SETTLED]

    def count(self, state: DeliveryState) -> int:
        """How many offsets are in a state."""
        return self._counts[state]

    def at(self, offset: int) -> Run | None:
        """The run that holds an offset; None before the start and from the end on."""
        return self._runs[self._index(offset)] if self.start <= offset < self.end and self._runs else None

    def between(self, first: int, last: int) -> Iterator[Run]:
        """The parts of runs within a range; the runs may be replaced meanwhile."""
        index = self._index(first)
        found = self._runs[index : self._index(last) + 1]
        return (run.cut(first, last) for run in found if run.first <= last and run.last >= first)

    def next_unsettled(self, offset: int) -> int:
        """The first offset from this one on that is not settled, or of which nothing is known."""
        for index in range(self._index(offset), len(self._runs)):
            run = self._runs[index]
            if run.last >= offset and run.state is not DeliveryState.SETTLED:
                return max(run.first, offset)
        return max(offset, self.end)

    def first_available(self) -> int | None:
        """The first offset that is available."""
        for index in range(self._index(self._available_from), len(self._runs)):
            run = self._runs[index]
            if run.state is DeliveryState.AVAILABLE:
                self._available_from = run.first
                return run.first
        self._available_from = self.end
        return None

    def append(self, run: Run) -> None:
        """Adds a run at the end; of a hole before it nothing is known, so its records are available."""
        if run.first > self.end:
            self.append(Run(self.end, run.first - 1, DeliveryState.AVAILABLE))
        if not self._runs and run.state is DeliveryState.SETTLED:
            self.start = self.end = run.last + 1
            return
        self.end = run.last + 1
        self._count(run, 1)
        if self._runs and run.continues(self._runs[-1]):
            self._runs[-1] = self._runs[-1]._replace(last=run.last)
        else:
            self._runs.append(run)

    def replace(self, first: int, last: int, change: Callable[[Run], Run]) -> list[Run]:
        """Changes the parts of runs within a range; returns those that differ from before."""
        low, high = self._index(first), self._index(last) + 1
        changed: list[Run] = []
        pieces = self._pieces(self._runs[low:high], first, last, change, changed)
        if low and pieces and pieces[0].continues(self._runs[low - 1]):
            low -= 1
            pieces[0] = pieces[0]._replace(first=self._runs[low].first)
        if high < len(self._runs) and pieces and self._runs[high].continues(pieces[-1]):
            pieces[-1] = pieces[-1]._replace(last=self._runs[high].last)
            high += 1
        self._runs[low:high] = pieces
        self._drop_settled()
        return changed

    def write(self, run: Run) -> None:
        """Sets the state of a range, known or not: how stored changes are applied."""
        if run.last < self.start:
            if run.state is not DeliveryState.SETTLED:
                self.reopen(run)
            return
        known = run.cut(self.start, self.end - 1) if run.first < self.end else None
        if known is not None:
            self.replace(known.first, known.last, lambda part: run.cut(part.first, part.last))
        if run.last >= self.end:
            self.append(run._replace(first=max(run.first, self.end)))

    def reopen(self, run: Run) -> None:
        """Offsets before the start are not settled; those between are."""
        if run.last + 1 < self.start:
            between = Run(run.last + 1, self.start - 1, DeliveryState.SETTLED)
            joined = [between]
            for follower in self._runs[:1]:
                join(joined, follower)
            self._runs[:1] = joined
            self._count(between, 1)
        self._runs.insert(0, run)
        self.start = run.first
        self._count(run, 1)

    def drop_before(self, offset: int) -> None:
        """Forgets everything before an offset, which becomes the start."""
        if offset <= self.start:
            return
        end = max(self.end, offset)
        self._fill(offset, [run.cut(offset, end) for run in self._runs if run.last >= offset])
        self.end = end
        if self.watcher is not None:
            self.watcher.drop_before(offset)

    def drop_from(self, offset: int) -> None:
        """Forgets everything from an offset on: the log has lost what was there."""
        if offset < self.end:
            runs = [run.cut(self.start, offset - 1) for run in self._runs if run.first < offset]
            self._fill(min(self.start, offset), runs)

    def copy(self) -> Snapshot:
        runs = self._runs.copy()
        return Snapshot(self.start, self.end, runs, self._counts.copy(), self._available_from)

    def restore(self, snapshot: Snapshot) -> None:
        self.start, self.end, self._runs, self._counts, self._available_from = snapshot
        if self.watcher is not None:
            self.watcher.reset(self.start)

    def _fill(self, start: int, runs: Iterable[Run]) -> None:
        self.start = self.end = self._available_from = start
        self._counts, self._runs = [0] * len(DeliveryState), []
        for run in runs:
            self.append(run)

    def _index(self, offset: int) -> int:
        """The index of the run that holds an offset, or would."""
        return max(bisect.bisect_right(self._runs, offset, key=_first) - 1, 0)

    def _pieces(
        self, runs: list[Run], first: int, last: int, change: Callable[[Run], Run], changed: list[Run]
    ) -> list[Run]:
        """What runs become if the parts of them within a range change."""
        pieces: list[Run] = []
        for run in runs:
            if run.first > last or run.last < first:
                join(pieces, run)
                continue
            if run.first < first:
                join(pieces, Run(run.first, first - 1, *run[2:]))
            part = run.cut(first, last)
            after = change(part)
            if after != part:
                changed.append(after)
                self._count(part, -1)
                self._count(after, 1)
                if self.watcher is not None:
                    self.watcher.changed(after)
            join(pieces, after)
            if run.last > last:
                join(pieces, Run(last + 1, run.last, *run[2:]))
        return pieces

    def _count(self, run: Run, sign: int) -> None:
        self._counts[run.state] += sign * run.length
        if sign > 0 and run.state is DeliveryState.AVAILABLE:
            self._available_from = min(self._available_from, run.first)

    def _drop_settled(self) -> None:
        if self._runs and self._runs[0].state is DeliveryState.SETTLED:
            dropped = self._runs.pop(0)
            self._count(dropped, -1)
            self.start = dropped.last + 1


def join(runs: list[Run], run: Run) -> None:
    """Adds a run to a list, as part of the last one if it continues it."""
    if runs and run.continues(runs[-1]):
        runs[-1] = runs[-1]._replace(last=run.last)
    else:
        runs.append(run)
