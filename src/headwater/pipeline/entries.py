"""Entries: many entries of one key in a shard's state, each with a weight, so that a key with a million of them costs only what changes.

    KEY ff LETTER TAIL      → WEIGHT        an entry of a key; nothing for a weight of 1 and no data

KEY is text, in which no byte is ff, so that the entries of a key are those that begin with it. TAIL says which of them it is. State orders no keys of more
than 511 bytes: a long KEY and a long TAIL are cut, a digest stands behind what is left, and the whole is in the value.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.rowbytes import concat
from headwater.pipeline.sorting import ordered

__all__ = [
    "CUT",
    "Changed",
    "Held",
    "are_cut",
    "begins",
    "changed",
    "closed",
    "data_of",
    "named",
    "opened",
    "owner",
    "place",
    "tailed",
    "value_of",
    "values",
    "weights",
    "weights_in",
]

END = b"\xff"
CUT = b"\xfe"
"""What a KEY begins with that was cut; text does not."""
OWN = b"g"
KEY_BYTES_MAX = 200
TAIL_BYTES_MAX = 290
DIGEST_BYTES = 16


class Held(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The value of an entry."""

    weight: int
    data: bytes | None = None
    """What the tail does not say."""
    key: bytes | None = None
    """The key that owns it, if it was cut."""


class Changed(NamedTuple):
    """What a batch changes, in the order of the entries."""

    entries: pa.Array
    row: Any
    """One of the rows that the batch has of each."""
    weight: Any


_decode = msgspec.msgpack.Decoder(Held).decode
ONCE = Held(1)


def are_cut(keys: pa.Array) -> bool:
    """Whether some keys are too long to stand in entries as they are."""
    return len(keys) > 0 and pc.max(pc.binary_length(keys)).as_py() > KEY_BYTES_MAX


def begins(keys: pa.Array) -> pa.Array:
    """What the entries of keys begin with. ``keys`` are binary."""
    if are_cut(keys):
        keys = pa.array([_cut(each, KEY_BYTES_MAX, CUT) for each in keys.to_pylist()], pa.binary())
    return concat(keys, END)


def tailed(tails: pa.Array) -> tuple[pa.Array, Any]:
    """Tails as they stand in entries, and which of them were cut, if any."""
    if not len(tails) or pc.max(pc.binary_length(tails)).as_py() <= TAIL_BYTES_MAX:
        return tails, None
    short = [_cut(each, TAIL_BYTES_MAX) for each in tails.to_pylist()]
    return pa.array(short, tails.type), pc.greater(pc.binary_length(tails), TAIL_BYTES_MAX).to_numpy(
        zero_copy_only=False
    )


def changed(entries: pa.Array, weights: Any) -> Changed:
    """Rows with the same entry as one, with their weights added up; what comes to nothing is left out."""
    if not len(entries):
        return Changed(entries, np.zeros(0, np.int64), np.zeros(0, np.int64))
    rows, fresh = ordered(entries)
    starts = np.flatnonzero(fresh)
    totals = np.add.reduceat(weights[rows], starts)
    some = totals != 0
    chosen = rows[starts[some]]
    return Changed(entries.take(pa.array(chosen)), chosen, totals[some])


def value_of(entry: bytes, weight: int, data: bytes | None, key: bytes) -> bytes:
    """What stands at an entry of a key."""
    cut = key if entry[:1] == CUT else None
    return b"" if weight == 1 and data is None and cut is None else closed(Held(weight, data, cut))


def closed(held: Held) -> bytes:
    return msgspec.msgpack.encode(held)


def opened(value: bytes) -> Held:
    return _decode(value) if value else ONCE


def owner(entry: bytes, value: bytes) -> bytes:
    """The key that an entry belongs to."""
    key = _decode(value).key if entry[:1] == CUT else entry[: entry.index(END)]
    return key or b""


def named(entry: bytes) -> bytes | None:
    """The key whose own value an entry is."""
    return entry[:-2] if entry[-2:] == END + OWN and entry[:1] != CUT else None


def place(key: bytes) -> bytes:
    """The entry with a key's own value."""
    return _cut(key, KEY_BYTES_MAX, CUT) + END + OWN


def data_of(value: bytes) -> bytes:
    """What stands there, for people."""
    return opened(value).data or b""


def _cut(text: bytes, most: int, mark: bytes = b"") -> bytes:
    if len(text) <= most:
        return text
    return (
        mark
        + text[: most - DIGEST_BYTES - len(mark)]
        + hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
    )


def weights_in(known: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> Any:
    """The weights of entries, of which some are known."""
    if any(known.values()):
        return weights(list(map(known.get, wanted)))
    return np.fromiter(map(known.__contains__, wanted), bool, len(wanted)).astype(np.int64)


def weights(values: Sequence[bytes | None] | pa.Array) -> Any:
    """The weights of entries by what stands there; 0 where nothing does."""
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.large_binary())
    found = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    told = np.flatnonzero(pc.fill_null(pc.binary_length(column), 0).to_numpy())
    if len(told):
        found[told] = [opened(each).weight for each in column.take(pa.array(told)).to_pylist()]
    return found


def values(weights: Any) -> pa.Array:
    """What stands at entries with these weights and nothing else to say."""
    if not (weights >> 1).any():  # each 0 or 1
        there = pa.py_buffer(np.packbits(weights.astype(bool), bitorder="little"))
        bounds = pa.py_buffer(np.zeros(len(weights) + 1, np.int64))
        return pa.Array.from_buffers(pa.large_binary(), len(weights), [there, bounds, pa.py_buffer(b"")])
    found = [None if each == 0 else b"" if each == 1 else closed(Held(each)) for each in weights.tolist()]
    return pa.array(found, pa.large_binary())
