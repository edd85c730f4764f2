"""Bounds: by what rows were late in each batch of a real-time view, in a file of its checkpoint.

Such a query runs on while the driver tells it a bound, and reports by which one a batch was split when the batch has ended. A crash may come
between the end and the report. So a bound is written down, with the batch from which it holds, before the query is told.
"""

import os
from pathlib import Path

import msgspec

from headwater.formats import BOUNDS

__all__ = ["Bounds"]

NAME = "bounds.json"


class _Bound(msgspec.Struct, frozen=True):
    since: int
    """The first batch that it holds in."""
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
        """The bound of a batch; None where nobody has noted one."""
        return next((each.time_us for each in reversed(self._bounds) if each.since <= batch), None)

    def note(self, since: int, time_us: int, settled: int) -> None:
        """From a batch on it is this one; what only batches up to the settled one went by is forgotten."""
        if self.of(since) == time_us and all(each.since <= since for each in self._bounds):
            return
        kept = [each for each in self._bounds if each.since < since]
        old = sum(each.since <= settled for each in kept)
        self._bounds = [*kept[max(0, old - 1) :], _Bound(since, time_us)]
        self._write()

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        with part.open("wb") as out:
            out.write(msgspec.json.encode(_Stored(self._bounds)))
            out.flush()
            os.fsync(out.fileno())
        part.replace(self._file)
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
