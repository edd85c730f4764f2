"""Checkpoint sync: Spark's files of a batch are synced before its result is published.

Spark renames its files into place and syncs none of them. After a power cut those of the last half minute may
be there and empty, while the log, which syncs, has the results of their batches. So before each transaction
the driver syncs what is new: positions and Spark's own state of the batch, and the commit of the batch
before. A file that is empty after a power cut is newer than the last result, and the start removes it
(``Checkpoint.mend``).
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
        """Syncs all files that are new since the last call, with their folders, and returns them.

        Raises StorageError if that fails.
        """
        files = {file for part in PARTS for file in _files(str(self._folder / part))}
        new = sorted(files - self._synced)
        try:
            for path in (*new, *{os.path.dirname(file) for file in new}):  # noqa: PTH120  paths are text
                _sync(path)
        except FileNotFoundError:
            return self.sync()  # Spark has cleaned up in between
        except OSError as error:
            raise StorageError(
                f"checkpoint {self._folder} cannot be synced",
                got=error.strerror or str(error),
                hint="the next start continues after the last result",
            ) from error
        self._synced = files
        return new


def _files(folder: str) -> Iterator[str]:
    """All files in a folder and its subfolders.

    Files that are still being written are left out, and checksums, which Spark can do without.
    """
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
