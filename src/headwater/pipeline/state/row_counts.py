"""Row counts: how many equal rows of a view share a key, in the state of its publication.

    ff KEY          → COUNT         two or more: a row that is there once has no entry
    ff fe DIGEST    → COUNT KEY     the same for a key that is too long to be ordered

Copies of a row come from producers that retry, or from joins with copies on one side. The view shows such
rows once, and retracts the row with the last of them. Keys of rows are text, which has neither of the two
bytes: so counts come after all rows of a state, and the format of rows is the same as without counts.
"""

import hashlib
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.arrow.row_bytes import concat

if TYPE_CHECKING:
    from headwater.pipeline.state.contract import State

__all__ = [
    "LETTER",
    "PREFIX",
    "Counts",
    "count",
    "counts_in",
    "entries",
    "is_count",
    "letter_for",
    "owner",
    "place",
    "places",
    "rows_in",
    "value",
]

PREFIX = b"\xff"
LETTER = b"c"
"""The prefix in states whose entries all begin with a letter."""
LONG = b"\xfe"
END = PREFIX + PREFIX
KEY_BYTES_MAX = 500
DIGEST_BYTES = 16

Counts = npt.NDArray[np.int64]


def counts_in(state: "State", keys: pa.Array) -> tuple[Counts, pa.Array]:
    """The count of each key's row, 1 without an entry; and the values of these entries.

    A state without counts is not searched for them.
    """
    stored = pa.nulls(len(keys), pa.large_binary())
    counts = np.ones(len(keys), np.int64)
    if not state.stretches([(PREFIX, END, 1)])[0]:
        return counts, stored
    stored = pa.array(state.each(places(keys).to_pylist()), pa.large_binary())
    several = np.flatnonzero(stored.is_valid().to_numpy(zero_copy_only=False))
    counts[several] = [count(value) for value in stored.take(pa.array(several)).to_pylist()]
    return counts, stored


def count(value: bytes) -> int:
    """The count in the value of an entry."""
    return int(value.partition(b" ")[0])


def place(key: bytes) -> bytes:
    """The entry with the count of a key."""
    if len(key) <= KEY_BYTES_MAX:
        return PREFIX + key
    return PREFIX + LONG + hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def places(keys: pa.Array) -> pa.Array:
    """The entries with the counts of keys."""
    if len(keys) and pc.max(pc.binary_length(keys)).as_py() > KEY_BYTES_MAX:
        return pa.array([place(key) for key in keys.to_pylist()], pa.large_binary())
    return concat(PREFIX, keys)


def entries(keys: pa.Array, counts: Counts, before: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The entries of keys in order, their new values, and their old ones.

    Null for a row that is there once, or not.
    """
    where = places(keys)
    held = pa.array(map(value, keys.to_pylist(), counts.tolist()), pa.large_binary())
    order = pc.array_sort_indices(where)
    return where.take(order), held.take(order), before.take(order)


def value(key: bytes, count: int) -> bytes | None:
    """The value of the entry of a key."""
    if count < 2:
        return None
    return b"%d" % count if len(key) <= KEY_BYTES_MAX else b"%d %b" % (count, key)


def is_count(entry: bytes) -> bool:
    return entry[:1] == PREFIX


def letter_for(entry: bytes, letter: bytes) -> bytes:
    """An entry in a state whose rows are under a letter and their key."""
    return LETTER + entry[1:] if is_count(entry) else letter + entry


def owner(entry: bytes, value: bytes) -> bytes:
    """The key whose rows an entry counts. The first byte of the entry may be ``ff`` or a letter."""
    return value.partition(b" ")[2] if entry[1:2] == LONG else entry[1:]


def rows_in(part: pa.RecordBatch) -> pa.RecordBatch:
    """The rows among entries in the order of their keys: those before the counts."""
    keys = part.column(0)
    if not len(keys) or not is_count(keys[len(keys) - 1].as_py()):
        return part
    return part.slice(0, bisect_left(range(len(keys)), True, key=lambda at: is_count(keys[at].as_py())))
