"""A disk in memory: for topics that may end with the process, and for tests that simulate a power cut."""

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headwater.errors import StorageError
from headwater.log.storage.disk import File

__all__ = ["MemoryDisk", "Operation"]

Operation = Literal["write", "sync", "read"]


@dataclass
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


_Tree = dict[str, dict[str, _Inode]]
"""Files by folder and name."""


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

    ``failing`` names the calls that fail from now on (``write``, ``sync``, ``read``), everywhere or in the
    folder ``failing_in``; after ``full_after_bytes`` more bytes the disk is full. Any thread may call it.
    """

    def __init__(self) -> None:
        self.failing: set[Operation] = set()
        self.failing_in: Path | None = None
        self.full_after_bytes: int | None = None
        self._names: _Tree = {}
        self._durable: _Tree = {}
        self._renamed: dict[str, str] = {}
        """The change of each name since its folder was synced.

        The two names of a rename have the same one.
        """
        self._moved: list[tuple[str, str]] = []
        """Folders that were renamed since their parent was synced."""
        self._naming = threading.Lock()
        self._locked: set[Path] = set()

    def check(self, operation: Operation, path: Path, size: int = 0) -> None:
        """Raises OSError if this operation is set to fail."""
        if operation in self.failing and (
            self.failing_in is None or self.failing_in in (path, *path.parents)
        ):
            raise OSError(errno.EIO, f"{operation} failed on request")
        if self.full_after_bytes is not None and operation == "write":
            if size > self.full_after_bytes:
                raise OSError(errno.ENOSPC, "no space left on device")
            self.full_after_bytes -= size

    def power_cut(self, seed: int | None = None) -> "MemoryDisk":
        """The disk after a power cut: only what was synced.

        With a seed, a random part of the rest has survived too: names in any order, writes torn or with a
        hole of zeros.
        """
        after = MemoryDisk()
        chance = random.Random(seed)  # noqa: S311  not for secrets
        with self._naming:
            tree = self._durable if seed is None else self._some_names(chance)
            for folder, files in tree.items():
                contents = {
                    name: inode.synced if seed is None else _torn(inode, chance)
                    for name, inode in files.items()
                }
                inodes = {name: _Inode(bytearray(data), data) for name, data in contents.items()}
                after._names[folder], after._durable[folder] = inodes, dict(inodes)
        return after

    def _some_names(self, chance: random.Random) -> "_Tree":
        """Names as if each change since the last sync had happened or not; a rename happens as a whole."""
        happened: dict[str, bool] = {}
        names: _Tree = {}
        for folder in sorted(self._names.keys() | self._durable.keys()):
            now, before = self._names.get(folder, {}), self._durable.get(folder, {})
            for name in sorted(now.keys() | before.keys()):
                path = f"{folder}/{name}"
                change = self._renamed.get(path, path)
                inode = (now if happened.setdefault(change, chance.random() < 0.5) else before).get(name)
                if inode is not None:
                    names.setdefault(folder, {})[name] = inode
        return names

    def paths(self) -> list[Path]:
        """All files."""
        return [Path(folder, name) for folder, files in sorted(self._names.items()) for name in sorted(files)]

    def open(self, path: Path, *, create: bool = False) -> File:
        folder, name = _split(path)
        with self._naming:
            inode = self._names.get(folder, {}).get(name)
            if inode is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
                inode = self._names.setdefault(folder, {})[name] = _Inode()
            return _MemoryFile(self, path, inode)

    def read(self, path: Path) -> bytes | None:
        self.check("read", path)
        folder, name = _split(path)
        inode = self._names.get(folder, {}).get(name)
        return bytes(inode.content) if inode else None

    def replace(self, path: Path, data: bytes) -> None:
        self.check("write", path, len(data))
        self.check("sync", path)
        folder, name = _split(path)
        inode = _Inode(bytearray(data), data)
        with self._naming:
            self._names.setdefault(folder, {})[name] = inode
            self._durable.setdefault(folder, {})[name] = inode

    def names(self, folder: Path) -> list[str]:
        path = str(folder)
        with self._naming:
            folders = {
                other[len(path) + 1 :].partition("/")[0]
                for other, files in self._names.items()
                if files and other.startswith(path + "/")
            }
            return sorted(folders | self._names.get(path, {}).keys())

    def make_folder(self, folder: Path) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        self.check("sync", folder)
        path = str(folder)
        with self._naming:
            now, before = self._names.get(path, {}), self._durable.get(path, {})
            if self._renamed:
                for name in now.keys() | before.keys():
                    self._renamed.pop(f"{path}/{name}", None)
            self._durable[path] = dict(now)
            self._sync_folders_in(path)

    def _sync_folders_in(self, parent: str) -> None:
        """Makes it durable that folders in this one were renamed or removed."""
        for old, new in [move for move in self._moved if move[1].rpartition("/")[0] == parent]:
            self._moved.remove((old, new))
            if old in self._durable:
                self._durable[new] = self._durable.pop(old)
            self._renamed = {path: change for path, change in self._renamed.items() if change != old}
        removed = [
            path for path in self._durable if path.rpartition("/")[0] == parent and not self._names.get(path)
        ]
        for path in removed:
            del self._durable[path]

    def exists(self, path: Path) -> bool:
        folder, name = _split(path)
        return name in self._names.get(folder, {})

    def rename(self, old: Path, new: Path) -> None:
        (folder, name), (new_folder, new_name) = _split(old), _split(new)
        with self._naming:
            self._names.setdefault(new_folder, {})[new_name] = self._names[folder].pop(name)
            self._renamed[str(new)] = self._renamed.get(str(old), str(old))

    def rename_folder(self, old: Path, new: Path) -> None:
        with self._naming:
            files = self._names[str(new)] = self._names.pop(str(old))
            for name in files:
                self._renamed[f"{new}/{name}"] = self._renamed[f"{old}/{name}"] = str(old)
            self._moved.append((str(old), str(new)))

    def remove(self, path: Path) -> None:
        folder, name = _split(path)
        with self._naming:
            self._names.get(folder, {}).pop(name, None)

    def remove_folder(self, folder: Path) -> None:
        path = str(folder)
        with self._naming:
            for other in [other for other in self._names if other == path or other.startswith(path + "/")]:
                del self._names[other]

    def lock(self, folder: Path) -> Callable[[], None]:
        if folder in self._locked:
            raise StorageError(f"data folder {folder} is in use by another broker")
        self._locked.add(folder)
        return lambda: self._locked.discard(folder)


def _split(path: Path) -> tuple[str, str]:
    folder, _, name = str(path).rpartition("/")
    return folder, name


def _torn(inode: _Inode, chance: random.Random) -> bytes:
    """What was synced and a part of what was written after it; a block in between may be lost."""
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
