"""Published: the rows that a run of a view has published, as its state holds them; and how another run goes on from them."""

from collections.abc import Iterator, Sequence
from itertools import islice

from headwater.pipeline.differing import revised
from headwater.pipeline.layout import Layout
from headwater.pipeline.state import Shard
from headwater.pipeline.statefile import Place
from headwater.result import Chain

__all__ = ["Published", "differences", "taken_over"]

LOOKUPS = 10_000

Row = tuple[bytes, bytes]


class Published:
    """Rows by key, from all shards of a run at one version."""

    def __init__(self, place: Place, chains: Sequence[Chain], form: Layout) -> None:
        self.shards = [Shard(place, number, chain) for number, chain in enumerate(chains)]
        self._form = form

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows of those keys that have one."""
        asked: list[list[bytes]] = [[] for _ in self.shards]
        for key in keys:
            for number in self._form.shards(key, len(self.shards)):
                asked[number].append(self._form.place(key))
        entries = (
            entry
            for shard, wanted in zip(self.shards, asked, strict=True)
            for entry in shard.get(wanted).items()
        )
        return dict(row for entry in entries if (row := self.row(entry)) is not None)

    def items(self) -> Iterator[Row]:
        for shard in self.shards:
            for entry in shard.items():
                if (row := self.row(entry)) is not None:
                    yield row

    def row(self, entry: Row) -> Row | None:
        """The key and row in an entry of the state; None for one that is something else."""
        key = self._form.named(entry[0])
        return None if key is None else (key, self._form.value(entry[1]))

    def with_row(self, entry: Row, row: bytes) -> Row:
        """An entry with another row in it."""
        key, value = entry
        return key, value[: len(value) - len(self._form.value(value))] + row


def taken_over(new: Published, shard: Shard, old: Published) -> Iterator[Row]:
    """The entries of a new run's shard with the revisions that go on from the old run's."""
    entries = shard.items()
    while part := list(islice(entries, LOOKUPS)):
        rows = [new.row(entry) for entry in part]
        known = old.get([row[0] for row in rows if row is not None])
        for entry, row in zip(part, rows, strict=True):
            yield entry if row is None else new.with_row(entry, revised(row[1], known.get(row[0])))


def differences(old: Published, new: Published) -> Iterator[tuple[bytes, bytes | None]]:
    """What readers of the old run have to be told to see the new one: rows that differ, and keys that are gone."""
    rows = new.items()
    while part := list(islice(rows, LOOKUPS)):
        known = old.get([key for key, _ in part])
        made = ((key, revised(row, known.get(key))) for key, row in part)
        yield from ((key, row) for key, row in made if row != known.get(key))
    rows = old.items()
    while part := list(islice(rows, LOOKUPS)):
        here = new.get([key for key, _ in part])
        yield from ((key, None) for key, _ in part if key not in here)
