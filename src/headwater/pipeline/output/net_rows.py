"""Net rows: the changes of a batch of weighted rows by key: the inserted row, and how many are retracted."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import UsageError
from headwater.pipeline.arrow.sort_keys import ordered
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["NetRows", "binaries", "net_by_key", "net_rows", "not_unique", "rows_left"]

BYTES = pa.large_binary()
Counts = npt.NDArray[np.int64]


class NetRows(NamedTuple):
    """The keys that a batch changes, in order. Changes that cancel are left out."""

    keys: pa.Array
    values: pa.Array
    """The row that is inserted, or null."""
    inserted: Counts
    """How many of it are inserted."""
    retracted: Counts
    """How many rows are retracted."""


def net_rows(rows: pa.Table) -> NetRows:
    """The net changes of a batch. Raises UsageError if different rows of a key are inserted."""
    keys, values = binaries(rows, "_key"), binaries(rows, "_value")
    weights = rows.column(WEIGHT).to_numpy()
    order, fresh = ordered(keys)
    inserts = weights[order] > 0
    key = np.cumsum(fresh) - 1
    several = np.abs(weights[order]) != 1
    for places in (np.flatnonzero(inserts), np.flatnonzero(~inserts)):
        several[places[1:][key[places[1:]] == key[places[:-1]]]] = True
    if not several.any():
        return _single(keys, values, order, inserts, key)
    numbers = np.zeros(len(key) and key[-1] + 1, bool)
    numbers[key[several]] = True
    several = numbers[key]
    one = np.flatnonzero(~several)
    fresh = np.append(True, key[one][1:] != key[one][:-1])[: len(one)]
    single = _single(keys, values, order[one], inserts[one], np.cumsum(fresh) - 1)
    summed = _summed(keys, values, weights, order[several])
    whole = [
        pa.concat_arrays(both) if isinstance(both[0], pa.Array) else np.concatenate(both)
        for both in zip(single, summed, strict=True)
    ]
    order = ordered(whole[0])[0]
    return NetRows(
        *(part[order] if isinstance(part, np.ndarray) else part.take(pa.array(order)) for part in whole)
    )


def net_by_key(rows: pa.Table) -> dict[bytes, tuple[bytes | None, int, int]]:
    """The same by key, as row, inserted and retracted."""
    net = net_rows(rows)
    changes = zip(net.values.to_pylist(), net.inserted.tolist(), net.retracted.tolist(), strict=True)
    return dict(zip(net.keys.to_pylist(), changes, strict=True))


def rows_left(key: bytes, change: tuple[bytes | None, int, int], row: bytes | None, count: int) -> int:
    """How many rows a key has after a change, if it had ``count`` copies of ``row``.

    Raises UsageError for rows that differ.
    """
    value, inserted, retracted = change
    stays = max(count - retracted, 0)
    if stays and inserted and value != row:
        raise not_unique(key)
    return stays + inserted


def _single(keys: pa.Array, values: pa.Array, order: Any, inserts: Any, key: Any) -> NetRows:
    """Of keys with at most one inserted and one retracted row, each with weight 1.

    ``key``: the number of the key of each row, in their order.
    """
    inserted, retracted = places = [np.full(int(key[-1]) + 1 if len(key) else 0, -1) for _ in range(2)]
    for place, chosen in zip(places, (inserts, ~inserts), strict=True):
        place[key[chosen]] = order[chosen]
    length = pc.binary_length(values).to_numpy()
    alike = (inserted >= 0) & (retracted >= 0) & (length[inserted] == length[retracted])
    same = pc.equal(values.take(pa.array(inserted[alike])), values.take(pa.array(retracted[alike])))
    changes = np.ones(len(inserted), bool)
    changes[alike] = ~same.to_numpy(zero_copy_only=False)
    inserted, retracted = inserted[changes], retracted[changes]
    names = keys.take(pa.array(np.maximum(inserted, retracted)))
    shown = values.take(pa.array(inserted, mask=inserted < 0))
    return NetRows(names, shown, (inserted >= 0).astype(np.int64), (retracted >= 0).astype(np.int64))


def _summed(keys: pa.Array, values: pa.Array, weights: Any, order: Any) -> NetRows:
    """The same for keys with several inserted or retracted rows, which may cancel."""
    net: dict[bytes, Counter[bytes]] = {}
    texts = (column.take(pa.array(order)).to_pylist() for column in (keys, values))
    for key, value, weight in zip(*texts, weights[order].tolist(), strict=True):
        net.setdefault(key, Counter())[value] += weight
    changes: dict[bytes, tuple[bytes | None, int, int]] = {}
    for key, of_key in net.items():
        inserted = +of_key
        if len(inserted) > 1:
            raise not_unique(key)
        if any(of_key.values()):
            changes[key] = (next(iter(inserted), None), inserted.total(), (-of_key).total())
    rows, ins, outs = zip(*changes.values(), strict=True) if changes else ((), (), ())
    return NetRows(
        pa.array(changes, BYTES), pa.array(rows, BYTES), np.array(ins, np.int64), np.array(outs, np.int64)
    )


def not_unique(key: bytes) -> UsageError:
    return UsageError(
        f"the key of the view is not unique: there are two rows with {key.decode()!r}, and they differ",
        expected="one row for each key, or copies of it",
        hint="name more columns in key=, or combine the rows of a key with hw.group; "
        "of events with one id, take the first with hw.distinct",
    )


def binaries(rows: pa.Table, name: str) -> pa.Array:
    """A column of text as large binaries."""
    return rows.column(name).cast(BYTES).combine_chunks()
