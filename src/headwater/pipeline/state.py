"""State: one shard's values by key, one version for each batch. DESIGN.md beside it says why it is built so.

The truth is in files that are written once and never changed (``statefile.py``): a delta for each batch, now and then merged. A **chain**
is the list of files that make a version; a result of the batch protocol names it, and a file that no result
names was never there. So that a task finds its keys without reading the chain, each machine keeps a **copy** of the shard in
LMDB (``statecopy.py``), memory-mapped and open to every worker process, and brings it up to the version it needs with the deltas that are missing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from headwater.errors import StorageError
from headwater.pipeline.delta import Delta, tabled
from headwater.pipeline.points import passes
from headwater.pipeline.statecopy import NONE, Copy, copies, opened
from headwater.pipeline.statefile import Place, Size, columns, contents, whole_file, write
from headwater.result import Chain, Chains

__all__ = ["Shard", "check_size", "size_of"]

CHAIN_FILES_MAX = 16
"""Beyond so many files, those that are outweighed by what came after them are merged."""


def size_of(chain: Chain) -> Size:
    """The size of a shard after the last file of its chain."""
    return Size(chain[-1].entries, chain[-1].state_bytes) if chain else Size()


def check_size(view: str, before: Chains, after: Chains, limit: int) -> None:
    """Raises StorageError when a batch lets a shard grow beyond the limit; one that is beyond it already may shrink."""
    for name, chains in after.items():
        for shard, (old, new) in enumerate(zip(before[name], chains, strict=True)):
            size = size_of(new)
            if size.state_bytes > max(limit, size_of(old).state_bytes):
                raise StorageError(
                    f"view {view!r}: state of {name}, shard {shard} of {len(chains)}, grows beyond its limit",
                    got=f"{size.state_bytes:,} bytes in {size.entries:,} entries",
                    expected=f"at most {limit:,} (setting state_bytes_max)",
                    hint=f"let keys go with forget=, divide them with headwater view scale {view} --shards N, or raise the limit",
                )


class Shard:
    """A shard at one version, read by one task. Nothing of the batch under way is ever written into the copy.

    Raises StorageError, naming the file, when one of the chain is missing or damaged.
    """

    def __init__(self, place: Place, number: int, chain: Chain) -> None:
        self.place = place
        self.number = number
        self.chain = chain
        self.version = chain[-1].version if chain else NONE
        self._asked: set[bytes] = set()
        self._found: dict[bytes, bytes] = {}
        """The values of those that were asked for and are there."""
        here = copies(place)
        self._copy = opened(here / str(number))
        self._copy.advance(place, chain)
        if self._copy.version() != self.version:  # the copy of a later batch: an older one is being repeated
            self._copy = Copy(here / f"{number}.at-{self.version}.{os.getpid()}", fresh=True)
            self._copy.advance(place, chain)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one; fastest for sorted keys."""
        found = self._copy.get(keys)
        self._asked.update(keys)
        self._found |= found
        return found

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What stands at each key, None for nothing; fastest for sorted keys. For logics whose changes say what was there before."""
        return self._copy.each(keys)

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from one key up to, not with, another, in order; for keys of at most 511 bytes."""
        for key, value in self._copy.between(start, end):
            self._asked.add(key)
            self._found[key] = value
            yield key, value

    def stretches(self, wanted: Sequence[tuple[bytes, bytes, int]]) -> list[list[tuple[bytes, bytes]]]:
        return self._copy.stretches(wanted)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything, in the order of the keys."""
        return self._copy.items()

    def extended(self, batch: int, attempt: str, changes: Mapping[bytes, bytes | None]) -> Chain:
        """The chain with this batch's changes, written and synced. None removes a key."""
        chain = self._merged(attempt) if len(self.chain) >= CHAIN_FILES_MAX else self.chain
        if not changes:
            return chain
        name = f"{self.number}-{batch}-{attempt}.delta"
        size = self._size_with(changes)
        return (*chain, write(self.place, name, batch, [tabled(changes)], whole=not chain, size=size))

    def _size_with(self, changes: Mapping[bytes, bytes | None]) -> Size:
        """The size after the changes. Logics have asked for nearly all that they change, so this hardly reads."""
        if isinstance(changes, Delta):
            return changes.grown(size_of(self.chain))
        if not changes.keys() <= self._asked:
            self.get([key for key in changes if key not in self._asked])
        before = size_of(self.chain)
        values = list(changes.values())
        added = sum(map(len, changes)) + sum(map(len, filter(None, values)))
        removed = values.count(None)
        if removed:
            added -= sum(len(key) for key, value in changes.items() if value is None)
        replaced = self._found.keys() & changes.keys()
        gone = sum(map(len, replaced)) + sum(map(len, map(self._found.__getitem__, replaced)))
        return Size(
            before.entries + len(changes) - removed - len(replaced), before.state_bytes + added - gone
        )

    def _merged(self, attempt: str) -> Chain:
        """The same state in fewer files: those from the first on that is lighter than all behind it become one."""
        sizes = [file.size_bytes for file in self.chain]
        behind = [sum(sizes[at + 1 :]) for at in range(len(sizes))]
        outweighed = [at for at, size in enumerate(sizes) if size <= behind[at]]
        at = min([*outweighed, len(sizes) - CHAIN_FILES_MAX // 2])
        name = f"{self.number}-{self.version}-{attempt}.merged"
        kept, merged = self.chain[:at], self.chain[at:]
        size = size_of(self.chain)
        if not kept:
            file = whole_file(self.place, name, self.version, self.items(), size)
        else:
            together: dict[bytes, bytes | None] = {}
            for each in merged:
                together.update(contents(self.place, each))
            ordered = {key: together[key] for key in sorted(together)}
            file = write(self.place, name, self.version, [columns(ordered)], whole=False, size=size)
        passes("state files are merged")
        return (*kept, file)
