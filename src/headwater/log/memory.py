"""A disk in memory: for topics that need not outlive the process, and for tests that take the power away."""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headwater.errors import StorageError
from headwater.log.disk import File

__all__ = ["MemoryDisk"]


@dataclass
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class _MemoryFile:
    def __init__(self, disk: "MemoryDisk", inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._disk.check("write", len(data))
        content = self._inode.content
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data

    def read(self, length: int, position: int) -> bytes:
        return bytes(self._inode.content[position : position + length])

    def truncate(self, size: int) -> None:
        del self._inode.content[size:]

    def size(self) -> int:
        return len(self._inode.content)

    def sync(self) -> None:
        self._disk.check("sync", 0)
        self._inode.synced = bytes(self._inode.content)

    def close(self) -> None:
        pass


class MemoryDisk:
    """A disk that knows what a power cut would leave: what was synced, under the names that were synced.

    ``failing`` names the calls that fail from now on (``write``, ``sync``); ``full_after_bytes`` lets that much more be
    written. Any thread may call it.
    """

    def __init__(self) -> None:
        self.failing: set[Literal["write", "sync"]] = set()
        self.full_after_bytes: int | None = None
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._locked: set[Path] = set()

    def check(self, operation: Literal["write", "sync"], size: int) -> None:
        """Fails as asked for."""
        if operation in self.failing:
            raise OSError(errno.EIO, f"{operation} failed on request")
        if self.full_after_bytes is not None and operation == "write":
            if size > self.full_after_bytes:
                raise OSError(errno.ENOSPC, "no space left on device")
            self.full_after_bytes -= size

    def power_cut(self, seed: int | None = None) -> "MemoryDisk":
        """The disk as it is found afterwards. With a seed, a random part of what was not synced has made it, torn."""
        after = MemoryDisk()
        chance = random.Random(seed)  # noqa: S311  not for secrets
        for path, inode in self._durable_names.items():
            content = inode.synced
            if seed is not None and inode.content.startswith(content):
                content = bytes(inode.content[: chance.randint(len(content), len(inode.content))])
            after._names[path] = after._durable_names[path] = _Inode(bytearray(content), content)
        return after

    def open(self, path: Path, *, create: bool = False) -> File:
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._names[path] = _Inode()
        return _MemoryFile(self, self._names[path])

    def read(self, path: Path) -> bytes | None:
        inode = self._names.get(path)
        return bytes(inode.content) if inode else None

    def replace(self, path: Path, data: bytes) -> None:
        self.check("write", len(data))
        self.check("sync", 0)
        self._names[path] = self._durable_names[path] = _Inode(bytearray(data), data)

    def names(self, folder: Path) -> list[str]:
        return sorted({path.relative_to(folder).parts[0] for path in self._names if folder in path.parents})

    def make_folder(self, folder: Path) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        self.check("sync", 0)
        gone = [path for path in self._durable_names if path.parent == folder and path not in self._names]
        for path in gone:
            del self._durable_names[path]
        self._durable_names |= {path: inode for path, inode in self._names.items() if path.parent == folder}

    def exists(self, path: Path) -> bool:
        return path in self._names

    def rename(self, old: Path, new: Path) -> None:
        self._names[new] = self._names.pop(old)

    def remove(self, path: Path) -> None:
        self._names.pop(path, None)

    def remove_folder(self, folder: Path) -> None:
        for path in [path for path in self._names if folder in path.parents]:
            self.remove(path)

    def lock(self, folder: Path) -> Callable[[], None]:
        if folder in self._locked:
            raise StorageError(f"data folder {folder} is in use by another broker")
        self._locked.add(folder)
        return lambda: self._locked.discard(folder)
