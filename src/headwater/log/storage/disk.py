"""The file system as the log uses it: an interface, and the implementation for real disks.

No other module of ``log/`` opens, renames or syncs a file. So a disk that fails, tears its last write or
loses what was not synced (``headwater.testing``) runs the same code. A file belongs to one partition.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headwater.durable import sync_folder
from headwater.errors import StorageError

__all__ = ["Disk", "File", "RealDisk"]

OWNER_FILE, OWNER_FOLDER = 0o600, 0o700
"""Only the user who runs the broker reads the files.

Everybody else asks the broker, which may require a password.
"""


class File(Protocol):
    """An open file.

    A power cut may lose what was written until ``sync`` has returned. Calls raise OSError.
    """

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None: ...
    def read(self, length: int, position: int) -> bytes: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def sync(self) -> None:
        """Blocks until the content is on the disk; may be called from another thread than the writer's."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Folders and files, named by paths."""

    def open(self, path: Path, *, create: bool = False) -> File: ...
    def read(self, path: Path) -> bytes | None:
        """The whole content of a small file; None if it does not exist."""
        ...

    def replace(self, path: Path, data: bytes) -> None:
        """Writes a small file completely or not at all, and durably."""
        ...

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted; none if the folder does not exist."""
        ...

    def make_folder(self, folder: Path) -> None:
        """Creates a folder and its parents, unless they exist."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Makes the names in a folder durable."""
        ...

    def exists(self, path: Path) -> bool: ...
    def rename(self, old: Path, new: Path) -> None:
        """Moves a file, perhaps over another one; durable with the next ``sync_folder``."""
        ...

    def rename_folder(self, old: Path, new: Path) -> None:
        """Moves a folder and everything in it; durable with the next ``sync_folder`` of its parent."""
        ...

    def remove(self, path: Path) -> None: ...
    def remove_folder(self, folder: Path) -> None:
        """Removes a folder and the files in it."""
        ...

    def lock(self, folder: Path) -> Callable[[], None]:
        """Locks a folder for this process until the returned function is called.

        Raises StorageError if it is locked.
        """
        ...


class _RealFile:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._descriptor, view[written:], position + written)

    def read(self, length: int, position: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class RealDisk:
    """The machine's file system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _RealFile(os.open(path, flags, OWNER_FILE))

    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".new")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, OWNER_FILE), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)  # it would take space on a full disk
            raise
        temporary.replace(path)
        self.sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries)
        except FileNotFoundError:
            return []

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(OWNER_FOLDER, parents=True, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def rename_folder(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        for name in self.names(folder):
            self.remove(folder / name)
        if folder.exists():
            folder.rmdir()

    def lock(self, folder: Path) -> Callable[[], None]:
        # Other users may enter it: a cluster's workers may share the checkpoints in it.
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(descriptor, 32, 0).decode().strip() or "another process"
            os.close(descriptor)
            raise StorageError(
                f"data folder {folder} is in use by another broker",
                got=f"a lock held by process {owner}",
                hint="stop that broker or choose another folder with --data",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return lambda: os.close(descriptor)
