"""Lineage: how far views are, by the newest of their results; positions and times are followed through views of views. No I/O.

A view's topic is an input like any other, and its results say of what it has made that. So a position of a stream becomes one of each
view that reads it, and then one of those that read these. In the same way a view is complete only as far as what it has read of other
views is: nothing has to be passed on while they run, and a batch in which the first view changes nothing needs none in the second.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headwater.errors import Behind, UsageError
from headwater.position import Position

__all__ = ["History", "Mark", "complete", "covering", "made_of"]

RESULTS_KEPT = 64


class Mark(msgspec.Struct, frozen=True):
    """What of a result says how far its view is. The rest, above all the names of state files, is not kept here."""

    run: str
    inputs: dict[str, dict[int, int]]
    outputs: dict[int, int] = {}
    complete: int | None = None
    views: tuple[str, ...] = ()
    """The views among its inputs."""
    shadow: bool = False
    """Of a run that is only prepared beside the live one: nobody reads it yet."""
    columns: dict[str, str] = {}
    """The columns of the view's rows in Spark's notation."""


class History(msgspec.Struct, frozen=True):
    """The newest results of one view, of one run, the newest last. No I/O.

    A new run begins a new history: what an earlier one has read says nothing about it.
    """

    view: str
    results: tuple[Mark, ...] = ()

    def then(self, result: Mark) -> "History":
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

    def covering(self, position: Position) -> Position | None:
        """The outputs of the first result that covers a position of its inputs, or None while there is none; UsageError for foreign topics."""
        if not self.results:
            return None
        asked = {name: offsets for name, offsets in position.offsets.items() if offsets}
        if foreign := asked.keys() - self.results[-1].inputs.keys():
            raise self.foreign(foreign, self.results[-1].inputs)
        for result in self.results:
            if Position(result.inputs).covers(Position(asked)):
                return Position({self.view: result.outputs} if result.outputs else {})
        return None

    def complete(self, held: Position) -> int | None:
        """Up to when the rows of whoever has read the view's topic up to ``held`` are complete, but for corrections, in microseconds.

        None when no result says so: the view keeps no time, or so little of it was read that the results of then are no longer kept.
        """
        found = [result.complete for result in self.held(held) if result.complete is not None]
        return max(found, default=None)

    def held(self, held: Position) -> Iterator[Mark]:
        """The results of which whoever has read the view's topic up to ``held`` has all rows, the newest first."""
        here = Position(held.offsets)  # in which build of a table they are reached does not matter
        for result in reversed(self.results):
            if here.covers(Position({self.view: result.outputs})):
                yield result

    def foreign(self, topics: Iterable[str], known: Iterable[str]) -> UsageError:
        """The error for a position of topics that the view does not read."""
        return UsageError(
            f"view {self.view!r} does not read {', '.join(sorted(topics))}",
            expected=f"a position of {', '.join(sorted(known))}",
        )

    def behind(self, position: Position, seconds: float) -> Behind:
        """The error for whoever has waited in vain; it says how far the view is."""
        what = f"view {self.view!r} has not come so far within {seconds:g} s"
        if not self.results:
            return Behind(what, got="no result yet", expected=str(position), hint="real-time views have none")
        inputs = self.results[-1].inputs
        here = Position({name: inputs[name] for name in position.offsets if name in inputs} or inputs)
        return Behind(what, got=str(here), expected=str(position), hint="is its pipeline running?")


Histories = Mapping[str, History]


def covering(known: Histories, view: str, position: Position) -> Position | None:
    """The outputs of the first result of a view that covers a position of what it is made of.

    None while there is no such result, or the results of a view in between were not read yet. UsageError for foreign topics.
    """
    history = known.get(view, History(view))
    asked = {name: offsets for name, offsets in position.offsets.items() if offsets}
    if not history.views or not asked.keys() - history.views:
        return history.covering(position)
    own = history.results[-1].inputs
    topics = made_of(known, view)
    if topics is None:
        return None
    if foreign := asked.keys() - topics:
        raise history.foreign(foreign, topics)
    wanted = {name: dict(offsets) for name, offsets in asked.items() if name in own}
    for each in history.views:
        below = made_of(known, each) or set()
        made = covering(known, each, Position({name: asked[name] for name in asked if name in below}))
        if made is None:
            return None
        into = wanted.setdefault(each, {})
        for partition, offset in made.of(each).items():
            into[partition] = max(into.get(partition, 0), offset)
    return history.covering(Position(wanted))


def complete(known: Histories, view: str, held: Position) -> int | None:
    """Up to when the rows of whoever has read the view's topic up to ``held`` are complete, but for corrections, in microseconds.

    None when no result says so: the view keeps no time, or so little of it was read that the results of then are no longer kept.
    """
    history = known.get(view, History(view))
    if not history.views:
        return history.complete(held)
    for result in history.held(held):
        own = [] if result.complete is None else [result.complete]
        theirs = [
            complete(known, each, Position({each: result.inputs.get(each, {})}))
            for each in result.views
            if _keeps_time(known, each)
        ]
        bounds = [*own, *(bound for bound in theirs if bound is not None)]
        if bounds and None not in theirs:
            return min(bounds)
    return None


def made_of(known: Histories, view: str) -> set[str] | None:
    """The topics that a view is made of, its inputs and theirs; None when that is not known yet."""
    history = known.get(view, History(view))
    if not history.results:
        return None
    below = [made_of(known, each) for each in history.views]
    return None if None in below else set(history.results[-1].inputs).union(*(each or () for each in below))


def _keeps_time(known: Histories, view: str) -> bool:
    """Whether a view says up to when it is complete; one whose results were not read yet may."""
    results = known.get(view, History(view)).results
    last = results[-1] if results else None
    return last is None or last.complete is not None or any(_keeps_time(known, each) for each in last.views)
