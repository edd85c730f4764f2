"""Counts: how many equal rows of a view share a key, in the state of its publication.

    ff KEY          → COUNT         two or more: a row that is there once has no entry
    ff fe DIGEST    → COUNT KEY     the same for a key that is too long to be ordered

A producer that tries again, a join with copies on one side: the view shows such rows once, and takes the row out with the last of them. Keys of rows are
text, which has neither of the two bytes: so counts come after all rows of a state, and rows are stored as they were before there were counts.
"""

import hashlib
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.rowbytes import concat

if TYPE_CHECKING:
    from headwater.pipeline.operator import State

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
"""What it is in states whose entries all begin with a letter."""
LONG = b"\xfe"
END = PREFIX + PREFIX
KEY_BYTES_MAX = 500
DIGEST_BYTES = 16

Counts = npt.NDArray[np.int64]


def counts_in(state: "State", keys: pa.Array) -> tuple[Counts, pa.Array]:
    """How often the row of each key is there according to the entries of counts, 1 where there is none; and these entries.

    A state without counts is not asked for those of its keys.
    """
    found = pa.nulls(len(keys), pa.large_binary())
    counts = np.ones(len(keys), np.int64)
    if not state.stretches([(PREFIX, END, 1)])[0]:
        return counts, found
    found = pa.array(state.each(places(keys).to_pylist()), pa.large_binary())
    there = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
    counts[there] = [count(each) for each in found.take(pa.array(there)).to_pylist()]
    return counts, found


def count(value: bytes) -> int:
    """How many rows an entry says there are."""
    return int(value.partition(b" ")[0])


def place(key: bytes) -> bytes:
    """The entry of a key."""
    if len(key) <= KEY_BYTES_MAX:
        return PREFIX + key
    return PREFIX + LONG + hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def places(keys: pa.Array) -> pa.Array:
    """The entries of keys."""
    if len(keys) and pc.max(pc.binary_length(keys)).as_py() > KEY_BYTES_MAX:
        return pa.array([place(key) for key in keys.to_pylist()], pa.large_binary())
    return concat(PREFIX, keys)


def entries(keys: pa.Array, counts: Counts, before: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The entries of keys in their order, what is there from now on, and what was there; null for a row that is there once, or not at all."""
    where = places(keys)
    held = pa.array(map(value, keys.to_pylist(), counts.tolist()), pa.large_binary())
    order = pc.array_sort_indices(where)
    return where.take(order), held.take(order), before.take(order)


def value(key: bytes, count: int) -> bytes | None:
    """What is at the entry of a key."""
    if count < 2:
        return None
    return b"%d" % count if len(key) <= KEY_BYTES_MAX else b"%d %b" % (count, key)


def is_count(entry: bytes) -> bool:
    return entry[:1] == PREFIX


def letter_for(entry: bytes, letter: bytes) -> bytes:
    """An entry in a state in which rows are at a letter and their keys."""
    return LETTER + entry[1:] if is_count(entry) else letter + entry


def owner(entry: bytes, value: bytes) -> bytes:
    """The key whose rows an entry counts; the first byte of the entry says that it is a count, whatever it is."""
    return value.partition(b" ")[2] if entry[1:2] == LONG else entry[1:]


def rows_in(part: pa.RecordBatch) -> pa.RecordBatch:
    """The rows among some entries of a state in the order of their keys: what comes before its counts."""
    keys = part.column(0)
    if not len(keys) or not is_count(keys[len(keys) - 1].as_py()):
        return part
    return part.slice(0, bisect_left(range(len(keys)), True, key=lambda at: is_count(keys[at].as_py())))
