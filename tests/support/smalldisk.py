"""A disk of a few megabytes, real to every process, that a test fills, empties and takes the right to write from."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "small_disk"]


class SmallDisk:
    """A file system of its own at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, leave_bytes: int = 0) -> None:
        """Takes what room there is, but for so much."""
        ballast = self.folder / "ballast"
        with ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                while self.free_bytes() >= leave_bytes + size:
                    try:
                        file.write(bytes(size))
                    except OSError:
                        break

    def empty(self) -> None:
        """Gives the room back."""
        (self.folder / "ballast").unlink()

    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def forbid(self) -> None:
        """Nothing can be written from now on, as on a disk that the system has given up; a file that is open for writing prevents it."""
        self._remount("ro")

    def allow(self) -> None:
        self._remount("rw")

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mounts it; only root can."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a disk")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
