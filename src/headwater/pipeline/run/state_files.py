"""State files of one run: where they are, and which of them results still need."""

from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path

from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.state.files import Place, names, remove
from headwater.result import Result, files_of

__all__ = ["StateFiles", "places"]

VERSIONS_KEPT = 8
"""The state files of this many results are kept, so that a batch can be repeated."""

FileName = tuple[str, str]
"""The operator and the name of a file."""


class StateFiles:
    """The state files of one run. Belongs to the query's thread.

    Created before the run is taken over, and opened after it. Files that are there only at the second moment
    may be a successor's, which has fenced this driver and published results while it was suspended: they are
    left alone.
    """

    def __init__(self, checkpoint: Checkpoint, operators: Iterable[str]) -> None:
        self.places: dict[str, Place] = {}
        """By operator."""
        self._checkpoint = checkpoint
        self._operators = tuple(operators)
        self._needed: deque[set[FileName]] = deque(maxlen=VERSIONS_KEPT)
        self._stored = self._names()

    def open(self, copies: Path, generation: str, results: Iterable[Result]) -> None:
        """After the run was taken over: removes the files of attempts that no result names."""
        self.places = places(self._checkpoint, copies, self._operators, generation)
        self._needed.extend(files_of(result.state) for result in results)
        self._remove(self._stored - set().union(*self._needed))

    def strays(self, result: Result) -> set[FileName]:
        """Before a batch is published: the files that neither its result needs nor the last ones.

        Trials of the batch have left them. Once it is published, no successor had begun when they were
        listed, so they are none of a successor's.
        """
        return self._names() - files_of(result.state).union(*self._needed)

    def keep(self, last: Result, strays: Collection[FileName] = ()) -> None:
        """After a batch: removes the files that none of the last few results needs, and its strays."""
        full = len(self._needed) == VERSIONS_KEPT
        oldest = self._needed[0] if full else set()
        self._needed.append(files_of(last.state))
        self._remove(oldest.union(strays) - set().union(*self._needed))

    def _names(self) -> set[FileName]:
        stored = places(self._checkpoint, Path(), self._operators, "")
        return {(operator, name) for operator, place in stored.items() for name in names(place)}

    def _remove(self, files: set[FileName]) -> None:
        for operator, name in files:
            remove(self.places[operator], name)


def places(
    checkpoint: Checkpoint, copies: Path, operators: Iterable[str], generation: str
) -> dict[str, Place]:
    """Where the state of each operator of a run is."""
    view = checkpoint.folder.parent.name
    return {
        name: Place(
            str(checkpoint.folder / "shards" / name),
            str(copies / checkpoint.run / generation / name),
            # A rebuild continues from the rows that were published, so it needs the state of this step.
            f"headwater view reset {view}" if name == PUBLISH else f"headwater view rebuild {view} APP",
        )
        for name in operators
    }
