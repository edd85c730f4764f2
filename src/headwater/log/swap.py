"""Swap: puts a compacted segment in the place of those that it was made from, in steps that a crash may stop anywhere.

The new files stand beside the old ones under names that end in ``.cleaned``, synced. Then the intention is written to the file
``swap``, the new files are renamed over the first old ones, the other old ones are removed, and ``swap`` is removed. A start
that finds ``swap`` finishes these steps; one that finds only ``.cleaned`` files removes them.
"""

from pathlib import Path

import msgspec

from headwater.log.disk import Disk

__all__ = ["CLEANED", "conclude", "exchange", "finish", "intend"]

CLEANED = ".cleaned"
FILE = "swap"


class _Intention(msgspec.Struct, frozen=True):
    base_offset: int
    removed: list[int]


def intend(disk: Disk, folder: Path, base_offset: int, removed: list[int]) -> None:
    """Writes the intention, durably. Nothing that a reader sees has changed yet, so this may run in a thread."""
    disk.sync_folder(folder)
    disk.replace(folder / FILE, msgspec.json.encode(_Intention(base_offset, removed)))


def exchange(disk: Disk, folder: Path) -> None:
    """Renames and removes as intended, without waiting for the disk."""
    data = disk.read(folder / FILE)
    if data is None:
        return
    intention = msgspec.json.decode(data, type=_Intention)
    for ending in (".log", ".index"):
        name = f"{intention.base_offset:020}{ending}"
        if disk.exists(folder / (name + CLEANED)):
            disk.rename(folder / (name + CLEANED), folder / name)
    for base in intention.removed:
        disk.remove(folder / f"{base:020}.log")
        disk.remove(folder / f"{base:020}.index")


def conclude(disk: Disk, folder: Path) -> None:
    """Makes the exchange durable and takes the intention back. May run in a thread."""
    disk.sync_folder(folder)
    disk.remove(folder / FILE)
    disk.sync_folder(folder)


def finish(disk: Disk, folder: Path) -> None:
    """At a start: does what is left of an exchange, and removes files that no intention speaks of."""
    if disk.exists(folder / FILE):
        exchange(disk, folder)
        conclude(disk, folder)
    for name in disk.names(folder):
        if name.endswith(CLEANED):
            disk.remove(folder / name)
