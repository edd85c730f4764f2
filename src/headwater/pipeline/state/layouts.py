"""Layouts: how an operator arranges the entries of its state: whose they are, where a key's value is.

An operator whose entries are not simply its keys names its layout (``Logic.layout``), and results record it
(``Result.layouts``). So any program can move state between shards and read it, without the application.
"""

from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from headwater.errors import UsageError
from headwater.formats import RESULT
from headwater.pipeline.state import key_prefix, row_counts
from headwater.pipeline.state import weighted_entries as entries

__all__ = [
    "AS_THEY_ARE",
    "COUNTED",
    "COUNTED_FORGETTING",
    "COUNTED_WAITING",
    "ENTRIES",
    "FORGETTING",
    "GROUPS",
    "OWNED",
    "PLAIN",
    "ROUTES",
    "WAITING",
    "Layout",
    "format_of",
    "layout",
    "shard_of",
    "values",
]

PLAIN = ""
COUNTED = "counts"
COUNTED_FORGETTING = "forget counts"
COUNTED_WAITING = "wait counts"
ENTRIES = "entries"
FORGETTING = "forget"
GROUPS = "groups"
OWNED = "own"
ROUTES = "routes"
WAITING = "wait"
AS_THEY_ARE = {PLAIN, GROUPS, COUNTED}
"""Layouts whose rows are entries as they are, with their counts after them."""
COUNTING = {COUNTED, COUNTED_FORGETTING, COUNTED_WAITING}
TIMER = b"t"
CHUNKS = (b"e", b"w")
"""Letters of chunks (``time_chunks.py``)."""


class Layout:
    """Each entry is a key and its value, in the shard of the key's hash."""

    def owner(self, entry: bytes, value: bytes) -> bytes:  # noqa: ARG002
        """The key that an entry belongs to."""
        return entry

    def named(self, entry: bytes) -> bytes | None:
        """The key whose value an entry has; None for an entry of another kind."""
        return entry

    def place(self, key: bytes) -> bytes:
        """The entry that has the value of a key."""
        return key

    def value(self, stored: bytes) -> bytes:
        """The value of a key, in what that entry holds."""
        return stored

    def shards(self, key: bytes, count: int) -> Sequence[int]:
        """The shards that may have a key, of this many."""
        return (shard_of(key, count),)


class CountedLayout(Layout):
    """The same, and after all keys the number of rows of those that have several (``row_counts.py``)."""

    def owner(self, entry: bytes, value: bytes) -> bytes:
        return row_counts.owner(entry, value) if row_counts.is_count(entry) else entry

    def named(self, entry: bytes) -> bytes | None:
        return None if row_counts.is_count(entry) else entry


class GroupsLayout(Layout):
    """Each key is in the partition where Spark has grouped its rows (``pipeline/build/last_step.py``)."""

    def shards(self, key: bytes, count: int) -> Sequence[int]:  # noqa: ARG002
        return range(count)


class LetteredLayout(Layout):
    """An entry begins with a letter. One letter is for the values of keys.

    A time-out has its key as value; chunks and counts name theirs in their own ways; after any other letter
    comes the key.
    """

    letter: bytes

    def owner(self, entry: bytes, value: bytes) -> bytes:
        if entry[:1] in CHUNKS:
            return key_prefix.owner(value)
        if entry[:1] == row_counts.LETTER:
            return row_counts.owner(entry, value)
        return value if entry[:1] == TIMER else entry[1:]

    def named(self, entry: bytes) -> bytes | None:
        return entry[1:] if entry[:1] == self.letter else None

    def place(self, key: bytes) -> bytes:
        return self.letter + key


class ForgettingLayout(LetteredLayout):
    """``k`` KEY → TIME VALUE, and ``t`` TIME DIGEST → KEY (``timers.py``).

    ``pipeline/asof/lookup_as_of.py`` has chunks of rows in addition.
    """

    letter = b"k"

    def value(self, stored: bytes) -> bytes:
        return stored[8:]


class WaitingLayout(LetteredLayout):
    """The same for waiting rows, and ``r`` KEY → ROW for published ones (``output/complete_rows.py``)."""

    letter = b"r"


class EntriesLayout(Layout):
    """KEY ``ff`` LETTER TAIL → WEIGHT, many for a key (``weighted_entries.py``).

    ``pipeline/tables/group.py`` has a row of each key under ``g``.
    """

    def owner(self, entry: bytes, value: bytes) -> bytes:
        return entries.owner(entry, value)

    def named(self, entry: bytes) -> bytes | None:
        return entries.named(entry)

    def place(self, key: bytes) -> bytes:
        return entries.place(key)

    def value(self, stored: bytes) -> bytes:
        return entries.data_of(stored)


class RoutesLayout(Layout):
    """A letter and KEY (``pipeline/tables/join_by_key.py``); no key has a value to show."""

    def owner(self, entry: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return entry[1:]

    def named(self, entry: bytes) -> bytes | None:  # noqa: ARG002
        return None


class OwnedLayout(Layout):
    """Many entries for a key.

    Their values begin with it (``key_prefix.py``, ``pipeline/interval/bound.py``).
    """

    def owner(self, entry: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return key_prefix.owner(value)

    def named(self, entry: bytes) -> bytes | None:  # noqa: ARG002
        return None


LAYOUTS: dict[str, Layout] = {
    PLAIN: Layout(),
    COUNTED: CountedLayout(),
    GROUPS: GroupsLayout(),
    FORGETTING: ForgettingLayout(),
    COUNTED_FORGETTING: ForgettingLayout(),
    WAITING: WaitingLayout(),
    COUNTED_WAITING: WaitingLayout(),
    ENTRIES: EntriesLayout(),
    ROUTES: RoutesLayout(),
    OWNED: OwnedLayout(),
}
"""By the names that results have for them."""


def layout(name: str) -> Layout:
    """A layout by its name in results. Raises UsageError for a name that this version does not know."""
    if name not in LAYOUTS:
        raise UsageError(f"state has an unknown layout {name!r}", expected=", ".join(filter(None, LAYOUTS)))
    return LAYOUTS[name]


def format_of(layouts: Iterable[str]) -> int:
    """The format of a result with these layouts: code without counts must not continue with them."""
    return RESULT.newest if COUNTING & {*layouts} else 1


def values(
    form: Layout, changes: Iterable[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """The keys and their values in some entries, without those for an operator's own use.

    None removes a key.
    """
    for entry, stored in changes:
        key = form.named(entry)
        if key is not None:
            yield key, form.value(stored) if stored is not None else None


def shard_of(key: bytes, shards: int) -> int:
    """The shard of a key, as the operators' shell computes it in Spark (``pipeline/operator/apply.py``)."""
    return crc32(key) % shards
