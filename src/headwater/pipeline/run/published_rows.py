"""Published rows: the rows that a run of a view has published, as its state holds them.

How another run continues.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from headwater.pipeline.output.changed_rows import revised
from headwater.pipeline.run.results import Columns, columns
from headwater.pipeline.state.files import Place, batches, contents
from headwater.pipeline.state.layouts import AS_THEY_ARE, Layout, layout, values
from headwater.pipeline.state.row_counts import rows_in
from headwater.pipeline.state.shard import Shard
from headwater.result import Chain

__all__ = ["Published", "batch_changes", "differences", "taken_over"]

LOOKUPS = 10_000

Row = tuple[bytes, bytes]


def batch_changes(
    place: Place, chains: Iterable[Chain], form: str, batch: int, *, append: bool
) -> Iterator[Columns]:
    """The records that a batch publishes, from the files that its shards have written."""
    for chain in chains:
        if chain and chain[-1].version == batch:
            if append or form in AS_THEY_ARE:
                yield from (tuple(rows_in(part).columns) for part in batches(place, chain[-1]))
            else:
                yield from columns(values(layout(form), contents(place, chain[-1])))


class Published:
    """Rows by key, from all shards of a run at one version."""

    def __init__(self, place: Place, chains: Sequence[Chain], form: Layout) -> None:
        self.shards = [Shard(place, number, chain) for number, chain in enumerate(chains)]
        self._form = form

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows of those keys that have one."""
        wanted: list[list[bytes]] = [[] for _ in self.shards]
        for key in keys:
            for number in self._form.shards(key, len(self.shards)):
                wanted[number].append(self._form.place(key))
        entries = (
            entry
            for shard, places in zip(self.shards, wanted, strict=True)
            for entry in shard.get(places).items()
        )
        return dict(row for entry in entries if (row := self.row(entry)) is not None)

    def items(self) -> Iterator[Row]:
        for shard in self.shards:
            for entry in shard.items():
                if (row := self.row(entry)) is not None:
                    yield row

    def row(self, entry: Row) -> Row | None:
        """The key and row in an entry of the state; None for an entry that is not a row."""
        key = self._form.named(entry[0])
        return None if key is None else (key, self._form.value(entry[1]))

    def with_row(self, entry: Row, row: bytes) -> Row:
        """An entry with another row in it."""
        key, value = entry
        return key, value[: len(value) - len(self._form.value(value))] + row


def taken_over(new: Published, shard: Shard, old: Published) -> Iterator[Row]:
    """The entries of a new run's shard, with revisions that continue those of the old run."""
    entries = shard.items()
    while part := list(islice(entries, LOOKUPS)):
        rows = [new.row(entry) for entry in part]
        old_rows = old.get([row[0] for row in rows if row is not None])
        for entry, row in zip(part, rows, strict=True):
            yield entry if row is None else new.with_row(entry, revised(row[1], old_rows.get(row[0])))


def differences(old: Published, new: Published) -> Iterator[tuple[bytes, bytes | None]]:
    """The changes that turn the old run's rows into the new one's: rows that differ, and tombstones."""
    rows = new.items()
    while part := list(islice(rows, LOOKUPS)):
        old_rows = old.get([key for key, _ in part])
        new_rows = ((key, revised(row, old_rows.get(key))) for key, row in part)
        yield from ((key, row) for key, row in new_rows if row != old_rows.get(key))
    rows = old.items()
    while part := list(islice(rows, LOOKUPS)):
        remaining = new.get([key for key, _ in part])
        yield from ((key, None) for key, _ in part if key not in remaining)
