"""Sorting: keys by number, and rows in an order that does not depend on the one in which they came."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.rowbytes import pack

__all__ = ["by_bytes", "in_order", "numbered"]


def numbered(keys: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Any]:
    """The different keys in order, as binaries, and the number that each row's has among them."""
    encoded = keys.cast(pa.binary())
    encoded = (
        encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    ).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return encoded.dictionary.take(order), rank[encoded.indices.to_numpy()]


def in_order(rows: pa.Table, key: Any, time: Any) -> Any:
    """The places of rows in the order of key and time, and where these are the same, of their bytes."""
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
