"""Up lock: one supervisor at a time owns the processes of a data folder."""

import contextlib
import fcntl
import os
from pathlib import Path

from headwater.errors import StorageError

__all__ = ["UpLock"]


class UpLock:
    """Held from construction to `release`; the kernel releases it when the process dies."""

    def __init__(self, folder: Path) -> None:
        """StorageError if another process holds it."""
        self._file = os.open(folder / "run" / ".up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._file, 32, 0).decode().strip() or "another process"
            os.close(self._file)
            raise StorageError(
                f"data folder {folder} is in use by another headwater up",
                got=f"a lock held by process {owner}",
                hint="stop that one first",
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._file)
