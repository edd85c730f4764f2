"""Weighted entries: many entries of one key in a shard's state; a batch pays only for those that it changes.

    KEY ff LETTER TAIL      → WEIGHT        an entry of a key; an empty value for a weight of 1 and no data

KEY is text, which has no byte ff, so that the entries of a key are those with that prefix. TAIL identifies
the entry. State orders no keys of more than 511 bytes: a long KEY or TAIL is cut and followed by a digest,
and the value has the whole of it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.arrow.row_bytes import concat
from headwater.pipeline.arrow.sort_keys import ordered

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
"""The prefix of a KEY that was cut; no text begins with it."""
OWN = b"g"
KEY_BYTES_MAX = 200
TAIL_BYTES_MAX = 290
DIGEST_BYTES = 16


class Held(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The value of an entry."""

    weight: int
    data: bytes | None = None
    """Data that is not in the tail."""
    key: bytes | None = None
    """The key that owns it, if it was cut."""


class Changed(NamedTuple):
    """The changes of a batch, in the order of the entries."""

    entries: pa.Array
    row: Any
    """One of the batch's rows for each entry."""
    weight: Any


_decode = msgspec.msgpack.Decoder(Held).decode
ONCE = Held(1)


def are_cut(keys: pa.Array) -> bool:
    """Whether some keys are too long for entries."""
    return len(keys) > 0 and pc.max(pc.binary_length(keys)).as_py() > KEY_BYTES_MAX


def begins(keys: pa.Array) -> pa.Array:
    """The prefix of the entries of each key. ``keys`` are binary."""
    if are_cut(keys):
        keys = pa.array([_cut(key, KEY_BYTES_MAX, CUT) for key in keys.to_pylist()], pa.binary())
    return concat(keys, END)


def tailed(tails: pa.Array) -> tuple[pa.Array, Any]:
    """Tails in the form of entries, and which of them were cut, if any."""
    if not len(tails) or pc.max(pc.binary_length(tails)).as_py() <= TAIL_BYTES_MAX:
        return tails, None
    short = [_cut(tail, TAIL_BYTES_MAX) for tail in tails.to_pylist()]
    return pa.array(short, tails.type), pc.greater(pc.binary_length(tails), TAIL_BYTES_MAX).to_numpy(
        zero_copy_only=False
    )


def changed(entries: pa.Array, weights: Any) -> Changed:
    """Rows with the same entry as one row, with the sum of their weights; a sum of 0 is left out."""
    if not len(entries):
        return Changed(entries, np.zeros(0, np.int64), np.zeros(0, np.int64))
    rows, fresh = ordered(entries)
    starts = np.flatnonzero(fresh)
    totals = np.add.reduceat(weights[rows], starts)
    some = totals != 0
    chosen = rows[starts[some]]
    return Changed(entries.take(pa.array(chosen)), chosen, totals[some])


def value_of(entry: bytes, weight: int, data: bytes | None, key: bytes) -> bytes:
    """The value of an entry of a key."""
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
    """The data in a value, to be shown."""
    return opened(value).data or b""


def _cut(text: bytes, most: int, mark: bytes = b"") -> bytes:
    if len(text) <= most:
        return text
    return (
        mark
        + text[: most - DIGEST_BYTES - len(mark)]
        + hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
    )


def weights_in(stored: Mapping[bytes, bytes], wanted: Sequence[bytes]) -> Any:
    """The weights of entries; 0 for those that are not among ``known``."""
    if any(stored.values()):
        return weights(list(map(stored.get, wanted)))
    return np.fromiter(map(stored.__contains__, wanted), bool, len(wanted)).astype(np.int64)


def weights(values: Sequence[bytes | None] | pa.Array) -> Any:
    """The weights in the values of entries; 0 for no value."""
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.large_binary())
    totals = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    with_data = np.flatnonzero(pc.fill_null(pc.binary_length(column), 0).to_numpy())
    if len(with_data):
        totals[with_data] = [opened(value).weight for value in column.take(pa.array(with_data)).to_pylist()]
    return totals


def values(weights: Any) -> pa.Array:
    """The values of entries with these weights and no data."""
    if not (weights >> 1).any():  # each 0 or 1
        there = pa.py_buffer(np.packbits(weights.astype(bool), bitorder="little"))
        bounds = pa.py_buffer(np.zeros(len(weights) + 1, np.int64))
        return pa.Array.from_buffers(pa.large_binary(), len(weights), [there, bounds, pa.py_buffer(b"")])
    held = [
        None if weight == 0 else b"" if weight == 1 else closed(Held(weight)) for weight in weights.tolist()
    ]
    return pa.array(held, pa.large_binary())
