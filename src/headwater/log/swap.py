"""Swap: puts a compacted segment in the place of those that it was made from, in steps that a crash may stop anywhere.

The new files stand beside the old ones under names that end in ``.cleaned``, synced. Then the intention is written to the file
``swap``, the new files are renamed over the first old ones, the other old ones are removed, and ``swap`` is removed. A start
that finds ``swap`` finishes these steps; one that finds only ``.cleaned`` files removes them.
"""

from pathlib import Path

import msgspec

from headwater.log.disk import Disk

__all__ = ["CLEANED", "carry_out", "finish"]

CLEANED = ".cleaned"
FILE = "swap"


class _Intention(msgspec.Struct, frozen=True):
    base_offset: int
    removed: list[int]


def carry_out(disk: Disk, folder: Path, base_offset: int, removed: list[int]) -> None:
    """Exchanges the files of a segment, and removes those of its neighbours that it has taken in."""
    disk.sync_folder(folder)
    disk.replace(folder / FILE, msgspec.json.encode(_Intention(base_offset, removed)))
    finish(disk, folder)


def finish(disk: Disk, folder: Path) -> None:
    """Does what is left of an exchange, and removes files that no intention speaks of."""
    data = disk.read(folder / FILE)
    if data is not None:
        intention = msgspec.json.decode(data, type=_Intention)
        for ending in (".log", ".index"):
            name = f"{intention.base_offset:020}{ending}"
            if disk.exists(folder / (name + CLEANED)):
                disk.rename(folder / (name + CLEANED), folder / name)
        for base in intention.removed:
            disk.remove(folder / f"{base:020}.log")
            disk.remove(folder / f"{base:020}.index")
        disk.sync_folder(folder)
        disk.remove(folder / FILE)
        disk.sync_folder(folder)
        return
    for name in disk.names(folder):
        if name.endswith(CLEANED):
            disk.remove(folder / name)
