"""What a sink does with a folder: FolderLock, one delivering process for each folder of view tables, and `sync`."""

import fcntl
import os
from pathlib import Path

from headwater.errors import StorageError

__all__ = ["FolderLock", "sync"]


class FolderLock:
    """Held from construction to `release`, and given back by the kernel when the process dies."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self._file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            hint = "stop that console, or give this one another folder with the setting 'store'"
            raise StorageError(f"view folder {folder} is in use by another console", hint=hint) from error

    def release(self) -> None:
        os.close(self._file)


def sync(folder: Path) -> None:
    """Makes the names in a folder last; the files themselves are synced by whoever wrote them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
