"""Swap: replaces segments by the compacted one that was made from them, in steps that a crash may interrupt.

The new files are written and synced under names that end in ``.cleaned``. Then the intention is stored in the
file ``swap``, the new files are renamed over those of the first old segment, the other old ones are removed,
and ``swap`` is removed. A start that finds ``swap`` finishes these steps; a start that finds only
``.cleaned`` files removes them.
"""

from pathlib import Path

import msgspec

from headwater.decoders import from_json
from headwater.log.storage.disk import Disk

__all__ = ["CLEANED", "conclude", "exchange", "finish", "intend"]

CLEANED = ".cleaned"
FILE = "swap"


class _Intention(msgspec.Struct, frozen=True):
    base_offset: int
    removed: list[int]


def intend(disk: Disk, folder: Path, base_offset: int, removed: list[int]) -> None:
    """Stores the intention, durably. Readers see no change yet, so this may run in a thread."""
    disk.sync_folder(folder)
    disk.replace(folder / FILE, msgspec.json.encode(_Intention(base_offset, removed)))


def exchange(disk: Disk, folder: Path, base_offset: int) -> None:
    """Renames the new files, without waiting for the disk. The index of the old segment is removed."""
    name = f"{base_offset:020}"
    if disk.exists(folder / f"{name}.log{CLEANED}"):
        disk.remove(folder / f"{name}.index")
        disk.rename(folder / f"{name}.log{CLEANED}", folder / f"{name}.log")
    if disk.exists(folder / f"{name}.index{CLEANED}"):
        disk.rename(folder / f"{name}.index{CLEANED}", folder / f"{name}.index")


def conclude(disk: Disk, folder: Path, removed: list[int]) -> None:
    """Removes the old files and then the intention, each durably. May run in a thread."""
    for base_offset in removed:
        disk.remove(folder / f"{base_offset:020}.log")
        disk.remove(folder / f"{base_offset:020}.index")
    disk.sync_folder(folder)
    disk.remove(folder / FILE)
    disk.sync_folder(folder)


def finish(disk: Disk, folder: Path) -> None:
    """At a start: finishes an exchange, and removes files that belong to none."""
    data = disk.read(folder / FILE)
    if data is not None:
        intention = from_json(data, _Intention)
        exchange(disk, folder, intention.base_offset)
        conclude(disk, folder, intention.removed)
    for name in disk.names(folder):
        if name.endswith(CLEANED):
            disk.remove(folder / name)
