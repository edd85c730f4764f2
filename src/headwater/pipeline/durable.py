"""Durable: what Spark has written of a checkpoint, synced before the result that speaks of it is published.

Spark renames its files into place and syncs none of them: after a power cut those of the last half minute may be there and empty, while the log,
which syncs, holds the results of their batches. So the driver syncs what is new before each transaction: positions and Spark's own state of the batch, and the commit of the one
before it. Whatever is empty after a power cut is newer than the last result, and is taken away at the start (``Checkpoint.mend``).
"""

import os
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import StorageError

__all__ = ["Durable"]

PARTS = ("offsets", "commits", "sources", "state")


class Durable:
    """The files of one checkpoint that are known to be on the disk. Belongs to the query's thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: set[str] = set()

    def sync(self) -> list[str]:
        """Syncs all files that have come since the last call, with their folders, and returns them. StorageError when that fails."""
        found = {file for part in PARTS for file in _files(str(self._folder / part))}
        new = sorted(found - self._synced)
        try:
            for path in (*new, *{os.path.dirname(file) for file in new}):  # noqa: PTH120  text is all that is needed
                _sync(path)
        except FileNotFoundError:
            return self.sync()  # Spark has cleaned up meanwhile
        except OSError as error:
            raise StorageError(
                f"checkpoint {self._folder} cannot be synced",
                got=error.strerror or str(error),
                hint="the next start goes on behind the last result",
            ) from error
        self._synced = found
        return new


def _files(folder: str) -> Iterator[str]:
    """All files in a folder and in those below, but for those that are still being written, and checksums, which Spark can do without."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry.path)
        else:
            yield entry.path


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
