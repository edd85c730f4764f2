"""Late bounds: the time before which rows were late, for each batch of a real-time view, in a file.

The driver sets a bound while such a query runs, and the query reports the bound of a batch after the batch
has ended. A crash may come between the end and the report. So a bound is stored, with the batch from which it
holds, before it is set.
"""

from pathlib import Path

import msgspec

from headwater.durable import replace_file
from headwater.formats import BOUNDS

__all__ = ["Bounds"]

NAME = "bounds.json"


class _Bound(msgspec.Struct, frozen=True):
    since: int
    """The first batch in which it holds."""
    time_us: int


class _Stored(msgspec.Struct, frozen=True):
    bounds: list[_Bound] = []
    format: int = 1


class Bounds:
    """The bounds of one run of a view. Belongs to the thread that settles its batches."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        stored = _Stored()
        if self._file.exists():
            stored = BOUNDS.decode(self._file.read_bytes(), _Stored, f"{self._file}")
        self._bounds = list(stored.bounds)

    def of(self, batch: int) -> int | None:
        """The bound of a batch; None if none was stored."""
        return next((bound.time_us for bound in reversed(self._bounds) if bound.since <= batch), None)

    def note(self, since: int, time_us: int, settled: int) -> None:
        """Stores the bound that holds from a batch on; drops bounds that only settled batches have used."""
        if self.of(since) == time_us and all(bound.since <= since for bound in self._bounds):
            return
        kept = [bound for bound in self._bounds if bound.since < since]
        old = sum(bound.since <= settled for bound in kept)
        self._bounds = [*kept[max(0, old - 1) :], _Bound(since, time_us)]
        self._write()

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, msgspec.json.encode(_Stored(self._bounds)))
