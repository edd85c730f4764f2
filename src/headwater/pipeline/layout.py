"""Layout: how an operator's entries stand in its state, for those who look at it from outside: who owns an entry, where is a key's value.

An operator whose entries are not simply its keys says so (``Logic.layout``), and results hand it on (``Result.layouts``): so state can
be moved between shards and read without the application.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from headwater.errors import UsageError
from headwater.formats import RESULT
from headwater.pipeline import counts, entries, owned

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
"""Layouts of entries that are each a key and its value; counts come after them."""
COUNTING = {COUNTED, COUNTED_FORGETTING, COUNTED_WAITING}
CHUNKS = (b"e", b"w")
"""Letters of chunks (``chunks.py``)."""


class Layout(NamedTuple):
    """What an entry is, and where the value of a key is."""

    owner: Callable[[bytes, bytes], bytes]
    """The key that an entry belongs to."""
    named: Callable[[bytes], bytes | None]
    """The key whose value an entry is; None for one that is something else."""
    place: Callable[[bytes], bytes]
    """The entry in which the value of a key is."""
    value: Callable[[bytes], bytes]
    """That value in what stands there."""
    shards: Callable[[bytes, int], Sequence[int]] = lambda key, count: (shard_of(key, count),)
    """In which of so many shards a key may be."""


def _under(letter: bytes) -> Callable[[bytes], bytes | None]:
    return lambda entry: entry[1:] if entry[:1] == letter else None


def _owner(entry: bytes, value: bytes) -> bytes:
    """Time-outs stand under ``t``, with their key as value, and chunks under two letters; all else has its key behind one letter."""
    if entry[:1] in CHUNKS:
        return owned.owner(value)
    if entry[:1] == counts.LETTER:
        return counts.owner(entry, value)
    return value if entry[:1] == b"t" else entry[1:]


_PLAIN = Layout(lambda entry, _: entry, lambda entry: entry, lambda key: key, lambda value: value)
_FORGETTING = Layout(_owner, _under(b"k"), lambda key: b"k" + key, lambda value: value[8:])
_WAITING = Layout(_owner, _under(b"r"), lambda key: b"r" + key, lambda value: value)
LAYOUTS = {
    PLAIN: _PLAIN,
    # ``counts.py``: the same, and behind all keys how many rows those have that have several
    COUNTED: _PLAIN._replace(
        owner=lambda entry, value: counts.owner(entry, value) if counts.is_count(entry) else entry,
        named=lambda entry: None if counts.is_count(entry) else entry,
    ),
    # ``stage.py``: the same, each key in the partition in which Spark has grouped its rows
    GROUPS: _PLAIN._replace(shards=lambda _, count: range(count)),
    # ``timers.py``: k KEY → TIME VALUE, and t TIME DIGEST → KEY; ``asof.py`` has chunks of rows beside them
    FORGETTING: _FORGETTING,
    COUNTED_FORGETTING: _FORGETTING,
    # ``ready.py``: the same for rows that wait, and r KEY → ROW for those that were published
    WAITING: _WAITING,
    COUNTED_WAITING: _WAITING,
    # ``entries.py``: KEY ff LETTER TAIL → WEIGHT, many of them for a key; ``grouped.py`` has a row of each key under g
    ENTRIES: Layout(entries.owner, entries.named, entries.place, entries.data_of),
    # ``routed.py``: a letter and KEY; nobody asks for the values of keys
    ROUTES: Layout(lambda entry, _: entry[1:], lambda _: None, lambda key: key, lambda value: value),
    # ``within.py``: many entries for a key, none of which says whose it is
    OWNED: Layout(lambda _, value: owned.owner(value), lambda _: None, lambda key: key, lambda value: value),
}


def layout(name: str) -> Layout:
    """A layout by the name that results have for it. UsageError for one that this version does not know."""
    if name not in LAYOUTS:
        raise UsageError(f"state has an unknown layout {name!r}", expected=", ".join(filter(None, LAYOUTS)))
    return LAYOUTS[name]


def format_of(layouts: Iterable[str]) -> int:
    """The format of a result that names such layouts: code that knows no counts must not continue with a state that has some."""
    return RESULT.newest if COUNTING & {*layouts} else 1


def values(
    form: Layout, entries: Iterable[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """The keys and their values in some entries, without what is for an operator's own use; None where a key is removed."""
    for entry, value in entries:
        key = form.named(entry)
        if key is not None:
            yield key, form.value(value) if value is not None else None


def shard_of(key: bytes, shards: int) -> int:
    """The shard of a key, as the shell of operators finds it in Spark (``operator.sharded``)."""
    return crc32(key) % shards
