"""FolderLock: one process at a time delivers into a folder of view tables."""

import fcntl
import os
from pathlib import Path

from headwater.errors import StorageError

__all__ = ["FolderLock"]


class FolderLock:
    """Held from construction to `release`; the kernel releases it when the process dies."""

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
