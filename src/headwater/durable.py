"""Files that survive a power cut: the names in a folder, and a small file that is replaced as a whole."""

import os
from pathlib import Path

__all__ = ["replace_file", "sync_folder"]


def sync_folder(folder: Path | str) -> None:
    """Makes the names in a folder durable. Who wrote the files syncs them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file atomically and durably: even a power cut leaves the old content or all of the new."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)
