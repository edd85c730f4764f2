"""Shard: the values of one shard by key, with one version for each batch.

``pipeline/DESIGN.md`` gives the reasons.
The truth is in files that are written once and never changed (``files.py``): a delta for each batch, merged
now and then. A **chain** is the list of files that make a version; a result of the batch protocol names it,
and a file that no result names does not count. So that a task finds its keys without reading the chain, each
machine keeps a **copy** of the shard in LMDB (``copies.py``), memory-mapped and open to every worker process,
and applies the deltas that it lacks.
"""

import os
from collections.abc import Iterator, Sequence

from headwater.errors import StorageError
from headwater.pipeline.kill_points import passes
from headwater.pipeline.state.contract import Stretch
from headwater.pipeline.state.copies import NONE, Copy, copies, opened
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.files import Place, Size, columns, contents, whole_file, write
from headwater.result import Chain, Chains

__all__ = ["Shard", "check_size", "size_of"]

CHAIN_FILES_MAX = 16
"""In a longer chain, files that are smaller than all after them together are merged."""


def size_of(chain: Chain) -> Size:
    """The size of a shard after the last file of its chain."""
    return Size(chain[-1].entries, chain[-1].state_bytes) if chain else Size()


def check_size(view: str, before: Chains, after: Chains, limit: int) -> None:
    """Raises StorageError if a batch lets a shard grow beyond the limit.

    One that is beyond it already may shrink.
    """
    for name, chains in after.items():
        for shard, (old, new) in enumerate(zip(before[name], chains, strict=True)):
            size = size_of(new)
            if size.state_bytes > max(limit, size_of(old).state_bytes):
                raise StorageError(
                    f"view {view!r}: state of {name}, shard {shard} of {len(chains)}, grows beyond its limit",
                    got=f"{size.state_bytes:,} bytes in {size.entries:,} entries",
                    expected=f"at most {limit:,} (setting state_bytes_max)",
                    hint="let keys expire with forget=, divide them with "
                    f"headwater view scale {view} --shards N, or raise the limit",
                )


class Shard:
    """A shard at one version, read by one task. The current batch is never written into the copy.

    Raises StorageError, naming the file, if a file of the chain is missing or damaged.
    """

    def __init__(self, place: Place, number: int, chain: Chain) -> None:
        self.place = place
        self.number = number
        self.chain = chain
        self.version = chain[-1].version if chain else NONE
        folder = copies(place)
        self._copy = opened(folder / str(number))
        self._copy.advance(place, chain)
        if self._copy.version() != self.version:  # the copy of a later batch: an older one is being repeated
            self._copy = Copy(folder / f"{number}.at-{self.version}.{os.getpid()}", fresh=True)
            self._copy.advance(place, chain)

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._copy.each(keys)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._copy.get(keys)

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._copy.between(start, end)

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        return self._copy.stretches(wanted)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in the order of the keys."""
        return self._copy.items()

    def extended(self, batch: int, attempt: str, delta: Delta) -> Chain:
        """The chain with this batch's changes, written and synced."""
        chain = self._merged(attempt) if len(self.chain) >= CHAIN_FILES_MAX else self.chain
        if not len(delta):
            return chain
        name = f"{self.number}-{batch}-{attempt}.delta"
        size = delta.grown(size_of(self.chain))
        return (*chain, write(self.place, name, batch, [delta.table], whole=not chain, size=size))

    def _merged(self, attempt: str) -> Chain:
        """The same state in fewer files.

        The files from the first one on that is smaller than all after it together become one.
        """
        sizes = [file.size_bytes for file in self.chain]
        later = [sum(sizes[at + 1 :]) for at in range(len(sizes))]
        outweighed = [at for at, size in enumerate(sizes) if size <= later[at]]
        at = min([*outweighed, len(sizes) - CHAIN_FILES_MAX // 2])
        name = f"{self.number}-{self.version}-{attempt}.merged"
        kept, merged = self.chain[:at], self.chain[at:]
        size = size_of(self.chain)
        if not kept:
            file = whole_file(self.place, name, self.version, self.items(), size)
        else:
            together: dict[bytes, bytes | None] = {}
            for part in merged:
                together.update(contents(self.place, part))
            ordered = {key: together[key] for key in sorted(together)}
            file = write(self.place, name, self.version, [columns(ordered)], whole=False, size=size)
        passes("state files are merged")
        return (*kept, file)
