"""Files that survive a power cut: the names in a folder, and a small file that is replaced as a whole."""

import os
from pathlib import Path

from headwater.errors import StorageError, UsageError

__all__ = ["make_folder", "replace_file", "sync_folder"]


def make_folder(path: Path) -> Path:
    """Makes a folder and those around it, unless they exist; returns it.

    UsageError if a file has that name, or the name of one around it; StorageError if it cannot be made.
    """
    taken = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    if taken is not None:
        raise UsageError(
            f"{path} cannot be a folder",
            got=f"{taken}, which is a file" if taken != path else "a file",
            expected="a folder, or a name that is free",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"folder {path} cannot be made", got=error.strerror or str(error), hint="choose another place"
        ) from error
    return path


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
