"""A disk in memory: for topics that need not outlive the process, and for tests that take the power away."""

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headwater.errors import StorageError
from headwater.log.disk import File

__all__ = ["MemoryDisk", "Operation"]

Operation = Literal["write", "sync", "read"]


@dataclass
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class _MemoryFile:
    def __init__(self, disk: "MemoryDisk", path: Path, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._disk.check("write", self._path, len(data))
        content = self._inode.content
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data

    def read(self, length: int, position: int) -> bytes:
        self._disk.check("read", self._path, length)
        return bytes(self._inode.content[position : position + length])

    def truncate(self, size: int) -> None:
        del self._inode.content[size:]

    def size(self) -> int:
        return len(self._inode.content)

    def sync(self) -> None:
        self._disk.check("sync", self._path)
        self._inode.synced = bytes(self._inode.content)

    def close(self) -> None:
        pass


class MemoryDisk:
    """A disk that knows what a power cut would leave: what was synced, under the names that were synced.

    ``failing`` names the calls that fail from now on (``write``, ``sync``, ``read``), everywhere or in the folder ``failing_in``;
    ``full_after_bytes`` lets that much more be written. Any thread may call it.
    """

    def __init__(self) -> None:
        self.failing: set[Operation] = set()
        self.failing_in: Path | None = None
        self.full_after_bytes: int | None = None
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._renamed: dict[Path, Path] = {}
        self._moved: list[tuple[Path, Path]] = []
        """Folders that were renamed since their parent was synced."""
        self._naming = threading.Lock()
        self._locked: set[Path] = set()

    def check(self, operation: Operation, path: Path, size: int = 0) -> None:
        """Fails as asked for."""
        if operation in self.failing and (
            self.failing_in is None or self.failing_in in (path, *path.parents)
        ):
            raise OSError(errno.EIO, f"{operation} failed on request")
        if self.full_after_bytes is not None and operation == "write":
            if size > self.full_after_bytes:
                raise OSError(errno.ENOSPC, "no space left on device")
            self.full_after_bytes -= size

    def power_cut(self, seed: int | None = None) -> "MemoryDisk":
        """The disk as it is found afterwards: only what was synced.

        With a seed, a random part of the rest has made it: names in any order, writes torn or with a hole of zeros.
        """
        after = MemoryDisk()
        chance = random.Random(seed)  # noqa: S311  not for secrets
        with self._naming:
            names = self._durable_names if seed is None else self._some_names(chance)
            for path, inode in names.items():
                content = inode.synced if seed is None else _torn(inode, chance)
                after._names[path] = after._durable_names[path] = _Inode(bytearray(content), content)
        return after

    def _some_names(self, chance: random.Random) -> dict[Path, _Inode]:
        """Each change of a name that was not synced has happened or not; both sides of a rename together."""
        happened: dict[Path, bool] = {}
        names: dict[Path, _Inode] = {}
        for path in sorted(self._names.keys() | self._durable_names.keys()):
            change = self._renamed.get(path, path)
            inode = (
                self._names if happened.setdefault(change, chance.random() < 0.5) else self._durable_names
            ).get(path)
            if inode is not None:
                names[path] = inode
        return names

    def open(self, path: Path, *, create: bool = False) -> File:
        with self._naming:
            if path not in self._names:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
                self._names[path] = _Inode()
            return _MemoryFile(self, path, self._names[path])

    def read(self, path: Path) -> bytes | None:
        self.check("read", path)
        inode = self._names.get(path)
        return bytes(inode.content) if inode else None

    def replace(self, path: Path, data: bytes) -> None:
        self.check("write", path, len(data))
        self.check("sync", path)
        with self._naming:
            self._names[path] = self._durable_names[path] = _Inode(bytearray(data), data)

    def names(self, folder: Path) -> list[str]:
        with self._naming:
            return sorted(
                {path.relative_to(folder).parts[0] for path in self._names if folder in path.parents}
            )

    def make_folder(self, folder: Path) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        self.check("sync", folder)
        with self._naming:
            here = {path: inode for path, inode in self._names.items() if path.parent == folder}
            kept = {path: inode for path, inode in self._durable_names.items() if path.parent != folder}
            self._durable_names = kept | here
            self._renamed = {path: old for path, old in self._renamed.items() if path.parent != folder}
            self._sync_folders_in(folder)

    def _sync_folders_in(self, folder: Path) -> None:
        """Folders of this one that were renamed or removed stay so."""
        for old, new in [move for move in self._moved if move[1].parent == folder]:
            self._moved.remove((old, new))
            self._durable_names = {
                new / path.relative_to(old) if old in path.parents else path: inode
                for path, inode in self._durable_names.items()
            }
            self._renamed = {path: key for path, key in self._renamed.items() if key != old}
        left = {path.parent for path in self._names}
        self._durable_names = {
            path: inode
            for path, inode in self._durable_names.items()
            if path.parent.parent != folder or path.parent in left
        }

    def exists(self, path: Path) -> bool:
        return path in self._names

    def rename(self, old: Path, new: Path) -> None:
        with self._naming:
            self._names[new] = self._names.pop(old)
            self._renamed[new] = self._renamed.get(old, old)

    def rename_folder(self, old: Path, new: Path) -> None:
        with self._naming:
            for path in [path for path in self._names if old in path.parents]:
                moved = new / path.relative_to(old)
                self._names[moved] = self._names.pop(path)
                self._renamed[moved] = self._renamed[path] = old
            self._moved.append((old, new))

    def remove(self, path: Path) -> None:
        with self._naming:
            self._names.pop(path, None)

    def remove_folder(self, folder: Path) -> None:
        with self._naming:
            self._names = {path: inode for path, inode in self._names.items() if folder not in path.parents}

    def lock(self, folder: Path) -> Callable[[], None]:
        if folder in self._locked:
            raise StorageError(f"data folder {folder} is in use by another broker")
        self._locked.add(folder)
        return lambda: self._locked.discard(folder)


def _torn(inode: _Inode, chance: random.Random) -> bytes:
    """What was synced and some of what was written behind it; a block in between may not have arrived."""
    synced, written = inode.synced, bytes(inode.content)
    if not written.startswith(synced):
        return synced
    end = chance.randint(len(synced), len(written))
    tail = bytearray(written[len(synced) : end])
    if tail and chance.random() < 0.3:
        start = chance.randrange(len(tail))
        stop = chance.randint(start, len(tail))
        tail[start:stop] = bytes(stop - start)
    return synced + bytes(tail)
