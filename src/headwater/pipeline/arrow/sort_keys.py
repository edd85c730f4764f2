"""Sort keys: keys by number, and rows in an order that does not depend on their input order."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.arrow.row_bytes import pack

__all__ = ["by_bytes", "in_order", "numbered", "ordered"]

Order = npt.NDArray[np.int64]
"""Positions of rows."""
WINDOW, SECOND = 8, 5
"""The bytes of a key that are one number, and those that are combined with the rank of the bytes before."""
NUMBERS_MAX = 1 << 8 * (WINDOW - SECOND)


def ordered(keys: pa.Array) -> tuple[Order, npt.NDArray[np.bool_]]:
    """The order of large binaries, and which of them, in this order, differs from the one before.

    Sorts their first bytes as numbers, which is ten times as fast; only keys with the same first bytes need
    more.
    """
    count = len(keys)
    fresh = np.ones(count, bool)
    if count < 2:
        return np.arange(count), fresh
    begins, ends = _bounds(keys)
    size = ends - begins
    windows = _windows(keys, begins, ends)
    order = np.argsort(windows)
    places, items, windows = np.arange(count), order, windows[order]
    for skip in (WINDOW, WINDOW + SECOND):
        same = windows[1:] == windows[:-1]
        if not same.any():
            return order, fresh
        tied = np.append(same, False)
        tied[1:] |= same
        number = np.cumsum(np.append(True, ~same))[tied]
        places, items, same = places[tied], items[tied], np.append(False, same)[tied]
        length = size[items]
        if length.max() <= skip and (length[1:] == length[:-1])[same[1:]].all():  # equal as a whole
            fresh[places] = ~same
            return order, fresh
        if skip > WINDOW or number[-1] >= NUMBERS_MAX:
            break
        rest = _windows(keys, begins[items] + skip, ends[items]) >> np.uint64(8 * (WINDOW - SECOND))
        windows = number.astype(np.uint64) << np.uint64(8 * SECOND) | rest
        again = np.argsort(windows)
        items, windows = items[again], windows[again]
        order[places] = items
    left = keys.take(pa.array(items))
    again = pc.sort_indices(left)
    order[places] = items[again.to_numpy()]
    left = left.take(again)
    fresh[places[1:]] = pc.not_equal(left[1:], left[:-1]).to_numpy(zero_copy_only=False)
    return order, fresh


def _bounds(keys: pa.Array) -> tuple[Order, Order]:
    bounds = np.frombuffer(keys.buffers()[1], np.int64, len(keys) + 1, 8 * keys.offset)
    return bounds[:-1], bounds[1:]


def _windows(keys: pa.Array, begins: Order, ends: Order) -> npt.NDArray[np.uint64]:
    """The bytes from these places on as numbers, with zeros after the end of each key."""
    data = keys.buffers()[2]
    if data is None or len(data) < WINDOW:
        data = (data.to_pybytes() if data is not None else b"").ljust(WINDOW, b"\0")
    last = len(data) - WINDOW
    everywhere = np.ndarray((last + 1,), ">u8", data, strides=(1,))
    windows = everywhere[np.minimum(begins, last)].astype(np.uint64)
    windows <<= (8 * np.clip(begins - last, 0, WINDOW - 1)).astype(np.uint64)
    left = np.clip(ends - begins, 0, WINDOW)
    windows &= np.uint64((1 << 64) - 1) << (8 * (WINDOW - np.maximum(left, 1))).astype(np.uint64)
    windows[left == 0] = 0
    return windows


def numbered(keys: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Order]:
    """The distinct keys in order, as binaries, and the number of each row's key among them."""
    encoded = keys.cast(pa.binary())
    encoded = (
        encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    ).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return encoded.dictionary.take(order), rank[encoded.indices.to_numpy()]


def in_order(rows: pa.Table, key: Order, time: Order) -> Order:
    """The order of rows by key, time, and then their bytes."""
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    same = (key[1:] == key[:-1]) & (time[1:] == time[:-1])
    if not same.any():
        return order
    follows = np.concatenate(([False], same))
    tied = np.flatnonzero(follows | np.append(same, False))
    data = pack(rows.take(pa.array(order[tied]))).to_pylist()
    run = np.cumsum(~follows)[tied].tolist()
    order[tied] = order[tied][sorted(range(len(tied)), key=lambda n: (run[n], data[n]))]
    return order


def by_bytes(rows: pa.Table) -> pa.Table:
    """Rows in the order of their bytes."""
    if rows.num_rows <= 1:
        return rows
    return rows.take(pc.sort_indices(pack(rows)))
