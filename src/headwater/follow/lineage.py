"""Lineage: how positions and completeness of a view follow from those of the views that it reads.

No I/O. The topic of a view is an input like any other, and each result says which part of its inputs it
includes. So a position of a stream becomes one of each view that reads the stream, and then one of the views
that read these. Likewise a view is complete only up to what it has read of other views. Running views need
not exchange anything for that: if a batch of the first view changes nothing, the second view needs no batch.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headwater.errors import NotReachedError, UsageError
from headwater.position import Position
from headwater.result import LeftOut, Taken

__all__ = ["History", "Milestone", "complete", "covering", "sources"]

RESULTS_KEPT = 64


class Milestone(msgspec.Struct, frozen=True):
    """The part of a result that says how far its view is; names of state files, for example, are left out."""

    run: str
    inputs: dict[str, dict[int, int]]
    outputs: dict[int, int] = {}
    complete: int | None = None
    views: tuple[str, ...] = ()
    """The views among its inputs."""
    shadow: bool = False
    """Of a run that is being prepared while another one is live; it is not read yet."""
    columns: dict[str, str] = {}
    """The columns of the view's rows in Spark's notation."""
    late: int = 0
    taken: dict[str, Taken] = {}


class History(msgspec.Struct, frozen=True):
    """The newest results of one run of a view, the newest last.

    A new run begins a new history: what an earlier run has read says nothing about it.
    """

    view: str
    results: tuple[Milestone, ...] = ()

    def then(self, result: Milestone) -> "History":
        """The history with one more result."""
        if result.shadow:
            return self
        before = self.results if self.results and self.results[-1].run == result.run else ()
        return History(self.view, (*before[1 - RESULTS_KEPT :], result))

    @property
    def views(self) -> tuple[str, ...]:
        """The views that it reads."""
        return self.results[-1].views if self.results else ()

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of its rows."""
        return self.results[-1].columns if self.results else {}

    @property
    def left_out(self) -> LeftOut | None:
        """What its run has left out; None without a result."""
        if not self.results:
            return None
        last = self.results[-1]
        topics = last.taken.values()
        return LeftOut(
            last.late, sum(topic.invalid for topic in topics), sum(topic.failed for topic in topics)
        )

    def covering(self, position: Position) -> Position | None:
        """The outputs of the first result that covers a position of the view's inputs.

        None if there is none yet. UsageError for a position of topics that the view does not read.
        """
        if not self.results:
            return None
        wanted = {name: offsets for name, offsets in position.offsets.items() if offsets}
        if foreign := wanted.keys() - self.results[-1].inputs.keys():
            raise self.foreign(foreign, self.results[-1].inputs)
        for result in self.results:
            if Position(result.inputs).covers(Position(wanted)):
                return Position({self.view: result.outputs} if result.outputs else {})
        return None

    def complete(self, held: Position) -> int | None:
        """The event time in microseconds up to which the rows of a reader of the topic are complete.

        The reader has read up to ``held``. Corrections may still change the rows. None if no result says so:
        the view has no event time, or the results of such an old position are no longer kept.
        """
        times = [result.complete for result in self.held(held) if result.complete is not None]
        return max(times, default=None)

    def held(self, held: Position) -> Iterator[Milestone]:
        """The results all of whose rows a reader of the view's topic up to ``held`` has, the newest first."""
        here = Position(held.offsets)  # without its build: that of the reader's table does not matter
        for result in reversed(self.results):
            if here.covers(Position({self.view: result.outputs})):
                yield result

    def foreign(self, topics: Iterable[str], expected: Iterable[str]) -> UsageError:
        """The error for a position of topics that the view does not read."""
        return UsageError(
            f"view {self.view!r} does not read {', '.join(sorted(topics))}",
            expected=f"a position of {', '.join(sorted(expected))}",
        )

    def not_reached(self, position: Position, seconds: float) -> NotReachedError:
        """The error after a wait in vain; it says how far the view is."""
        what = f"view {self.view!r} has not reached the position within {seconds:g} s"
        if not self.results:
            return NotReachedError(
                what, got="no result yet", expected=str(position), hint="real-time views have none"
            )
        inputs = self.results[-1].inputs
        here = Position({name: inputs[name] for name in position.offsets if name in inputs} or inputs)
        return NotReachedError(what, got=str(here), expected=str(position), hint="is its pipeline running?")


Histories = Mapping[str, History]
"""By view."""


def covering(histories: Histories, view: str, position: Position) -> Position | None:
    """The outputs of the first result of a view that covers a position of its direct or indirect inputs.

    None if there is no such result yet, or if results of a view in between are not read yet. UsageError for a
    position of other topics.
    """
    history = histories.get(view, History(view))
    by_topic = {name: offsets for name, offsets in position.offsets.items() if offsets}
    if not history.views or not by_topic.keys() - history.views:
        return history.covering(position)
    direct = history.results[-1].inputs
    topics = sources(histories, view)
    if topics is None:
        return None
    if foreign := by_topic.keys() - topics:
        raise history.foreign(foreign, topics)
    wanted = {name: dict(offsets) for name, offsets in by_topic.items() if name in direct}
    for upstream in history.views:
        names = sources(histories, upstream) or set()
        part = Position({name: by_topic[name] for name in by_topic if name in names})
        outputs = covering(histories, upstream, part)
        if outputs is None:
            return None
        offsets = wanted.setdefault(upstream, {})
        for partition, offset in outputs.of(upstream).items():
            offsets[partition] = max(offsets.get(partition, 0), offset)
    return history.covering(Position(wanted))


def complete(histories: Histories, view: str, held: Position) -> int | None:
    """`History.complete`, but not more than the views that it reads were complete when it read them."""
    history = histories.get(view, History(view))
    if not history.views:
        return history.complete(held)
    for result in history.held(held):
        own = [] if result.complete is None else [result.complete]
        upstream = [
            complete(histories, name, Position({name: result.inputs.get(name, {})}))
            for name in result.views
            if _has_event_time(histories, name)
        ]
        bounds = [*own, *(bound for bound in upstream if bound is not None)]
        if bounds and None not in upstream:
            return min(bounds)
    return None


def sources(histories: Histories, view: str) -> set[str] | None:
    """The topics that a view reads, directly or through other views; None if that is not known yet."""
    history = histories.get(view, History(view))
    if not history.results:
        return None
    upstream = [sources(histories, name) for name in history.views]
    if None in upstream:
        return None
    return set(history.results[-1].inputs).union(*(topics or () for topics in upstream))


def _has_event_time(histories: Histories, view: str) -> bool:
    """Whether a view says up to when it is complete; a view without results that were read may do so."""
    results = histories.get(view, History(view)).results
    last = results[-1] if results else None
    if last is None or last.complete is not None:
        return True
    return any(_has_event_time(histories, name) for name in last.views)
