"""Differing: the last operator of every view. It knows the row that was published last for each key, and lets only changes through.

What differs is the shard's next state file, and just that file is what the driver publishes.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline.counts import counts_in, entries
from headwater.pipeline.delta import Delta
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.rowbytes import concat, placed
from headwater.pipeline.sorting import ordered
from headwater.pipeline.statefile import Size
from headwater.pipeline.wire import WEIGHT

__all__ = [
    "NO_ROWS",
    "ORDER",
    "PUBLISH",
    "Appending",
    "Differing",
    "Net",
    "bare",
    "consolidated",
    "differing",
    "left",
    "revised",
]

PUBLISH = "publish"
"""The name of this step among the operators of a view."""
ORDER = "_order"
"""Of rows that were each made of one record: its offset."""
REVISION = b',"_revision":'
FIRST = REVISION + b"1}"
END = b"}"
COLON, ZERO = b":0"
FAR = (1 << 63) - 1
BYTES = pa.large_binary()
NO_ROWS = StructType([])


class Differing(Spec, frozen=True):
    """Rows as ``_key`` and ``_value``; a null value takes the key out of the view. State: the row as it was published.

    Of two rows of a key in a batch the newer one counts, where rows have the ``_order`` of their records: so it does not
    matter how the log is cut into batches.

    With ``weighted`` a row has a ``_weight`` too, and a key whose row goes out is taken out unless another comes in. Equal rows of a key are one row, which
    goes out with the last of them; rows that differ are refused. State then has counts as well (``counts.py``).
    """

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    weighted: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        if not self.weighted:
            keys, values = _sorted(rows)
            return Applied(pa.table({}), Delta.over(*_changes(keys, values, _published(keys, state))))
        net = _net(rows)
        published = _published(net.keys, state)
        known = published.is_valid().to_numpy(zero_copy_only=False)
        counts, counted = counts_in(state, net.keys)
        before = counts * known
        stays = np.maximum(before - net.went, 0)
        _check_unique(net, published, (stays > 0) & (net.came > 0))
        after = stays + net.came
        rows_of = net.keys, net.values, published
        moved = (stays == 0) | (net.came > 0)
        if not moved.all():
            rows_of = tuple(each.filter(pa.array(moved)) for each in rows_of)
        again = (after != before) & ((after > 1) | (before > 1))
        return Applied(pa.table({}), _counted(_changes(*rows_of), net.keys, after, counted, again))


class Appending(Spec, frozen=True):
    """Every row is let through, as a record of its own. Their order is that of key and value, so that every attempt writes the same."""

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    keeps: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        keys, values = _binaries(rows, "_key"), _binaries(rows, "_value")
        order = pa.array(_places(rows, keys)[0])
        return Applied(pa.table({}), Delta(keys.take(order), values.take(order), Size()))


class Net(NamedTuple):
    """The keys that a batch changes, in order: the row that comes in or null, how many of it do, and how many rows go out. What cancels is left out."""

    keys: pa.Array
    values: pa.Array
    came: npt.NDArray[np.int64]
    went: npt.NDArray[np.int64]


def consolidated(rows: pa.Table) -> dict[bytes, tuple[bytes | None, int, int]]:
    """The same by key."""
    net = _net(rows)
    changes = zip(net.values.to_pylist(), net.came.tolist(), net.went.tolist(), strict=True)
    return dict(zip(net.keys.to_pylist(), changes, strict=True))


def left(key: bytes, change: tuple[bytes | None, int, int], row: bytes | None, count: int) -> int:
    """How many rows a key has after a change, when it had ``count`` times this row. Raises UsageError for rows that differ."""
    value, came, went = change
    stays = max(count - went, 0)
    if stays and came and value != row:
        raise _not_unique(key)
    return stays + came


def _net(rows: pa.Table) -> Net:
    keys, values = _binaries(rows, "_key"), _binaries(rows, "_value")
    weights = rows.column(WEIGHT).to_numpy()
    order, fresh = ordered(keys)
    comes = weights[order] > 0
    key = np.cumsum(fresh) - 1
    several = np.abs(weights[order]) != 1
    for each in (np.flatnonzero(comes), np.flatnonzero(~comes)):
        several[each[1:][key[each[1:]] == key[each[:-1]]]] = True
    if not several.any():
        return _single(keys, values, order, comes, key)
    numbers = np.zeros(len(key) and key[-1] + 1, bool)
    numbers[key[several]] = True
    several = numbers[key]
    one = np.flatnonzero(~several)
    fresh = np.append(True, key[one][1:] != key[one][:-1])[: len(one)]
    alone = _single(keys, values, order[one], comes[one], np.cumsum(fresh) - 1)
    added = _added_up(keys, values, weights, order[several])
    whole = [
        pa.concat_arrays(both) if isinstance(both[0], pa.Array) else np.concatenate(both)
        for both in zip(alone, added, strict=True)
    ]
    order = ordered(whole[0])[0]
    return Net(
        *(each[order] if isinstance(each, np.ndarray) else each.take(pa.array(order)) for each in whole)
    )


def _single(keys: pa.Array, values: pa.Array, order: Any, comes: Any, key: Any) -> Net:
    """Of keys that have at most one row that comes in and one that goes out, each once. ``key``: the number of the key of each row, in their order."""
    came, went = places = [np.full(int(key[-1]) + 1 if len(key) else 0, -1) for _ in range(2)]
    for place, of in zip(places, (comes, ~comes), strict=True):
        place[key[of]] = order[of]
    length = pc.binary_length(values).to_numpy()
    alike = (came >= 0) & (went >= 0) & (length[came] == length[went])
    same = pc.equal(values.take(pa.array(came[alike])), values.take(pa.array(went[alike])))
    still = np.ones(len(came), bool)
    still[alike] = ~same.to_numpy(zero_copy_only=False)
    came, went = came[still], went[still]
    names = keys.take(pa.array(np.maximum(came, went)))
    shown = values.take(pa.array(came, mask=came < 0))
    return Net(names, shown, (came >= 0).astype(np.int64), (went >= 0).astype(np.int64))


def _added_up(keys: pa.Array, values: pa.Array, weights: Any, order: Any) -> Net:
    """The same where a key has more than one row that comes in, or goes out; they may cancel."""
    net: dict[bytes, Counter[bytes]] = {}
    texts = (each.take(pa.array(order)).to_pylist() for each in (keys, values))
    for key, value, weight in zip(*texts, weights[order].tolist(), strict=True):
        net.setdefault(key, Counter())[value] += weight
    taken: dict[bytes, tuple[bytes | None, int, int]] = {}
    for key, of in net.items():
        came = +of
        if len(came) > 1:
            raise _not_unique(key)
        if any(of.values()):
            taken[key] = (next(iter(came), None), came.total(), (-of).total())
    rows, ins, outs = zip(*taken.values(), strict=True) if taken else ((), (), ())
    return Net(
        pa.array(taken, BYTES), pa.array(rows, BYTES), np.array(ins, np.int64), np.array(outs, np.int64)
    )


def _check_unique(net: Net, published: pa.Array, beside: Any) -> None:
    """Refuses rows that come in beside others which stay, unless they are equal."""
    if not beside.any():
        return
    keys, values, published = (each.filter(pa.array(beside)) for each in (net.keys, net.values, published))
    revision = _text(_revision(published))
    other = pc.not_equal(concat(_closed(values, REVISION), revision, END), published)
    if pc.any(other).as_py():
        raise _not_unique(keys.filter(other)[0].as_py())


def _not_unique(key: bytes) -> UsageError:
    return UsageError(
        f"the key of the view is not unique: there are two rows with {key.decode()!r}, and they differ",
        expected="one row for each key, or copies of it",
        hint="name more columns in key=, or bring the rows of a key together with hw.group; of events with one id, take the first with hw.distinct",
    )


def _sorted(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """The keys in order, and their rows; of two rows with a key the newer one stays, by ``_order`` if they have it, or else the greater one, a null being the greatest."""
    keys, values = _binaries(rows, "_key"), _binaries(rows, "_value")
    picked, fresh = _places(rows, keys)
    last = picked[np.append(fresh[1:], True)[: len(fresh)]]
    return keys.take(pa.array(last)), values.take(pa.array(last))


def _places(rows: pa.Table, keys: pa.Array) -> tuple[Any, Any]:
    """Where rows are in the order of key, record and value, and which has not the key of the one before it."""
    order, fresh = ordered(keys)
    if fresh.all():
        return order, fresh
    by = [name for name in ("_key", ORDER, "_value") if name in rows.column_names]
    order = pc.sort_indices(rows, [(name, "ascending") for name in by])
    return order.to_numpy().astype(np.int64), fresh


def _binaries(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).cast(BYTES).combine_chunks()


def differing(rows: Mapping[bytes, bytes | None], state: State) -> Delta:
    """The rows that differ from those published last, each with the revision that it gets. ``rows`` are in the order of their keys."""
    keys = pa.array(rows, BYTES)
    return Delta.over(*_changes(keys, pa.array(rows.values(), BYTES), _published(keys, state)))


def _published(keys: pa.Array, state: State) -> pa.Array:
    return pa.array(state.each(keys.to_pylist()), BYTES)


def _changes(keys: pa.Array, values: pa.Array, published: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The keys whose rows differ from those published, their rows with the next revision, and what was published."""
    comes, known = (each.is_valid().to_numpy(zero_copy_only=False) for each in (values, published))
    if not known.any():
        if not comes.all():
            keys, values, published = (each.filter(pa.array(comes)) for each in (keys, values, published))
        return keys, _closed(values, FIRST), published
    again = comes & known
    bare = _closed(values, REVISION)
    revision = np.zeros(len(keys), np.int64)
    revision[again] = _revision(published.filter(pa.array(again)))
    same = np.zeros(len(keys), bool)
    same[again] = pc.equal(
        concat(bare.filter(pa.array(again)), _text(revision[again]), END), published.filter(pa.array(again))
    ).to_numpy(zero_copy_only=False)
    some = pa.array(~same & (comes | known))
    keys, bare, published = (each.filter(some) for each in (keys, bare, published))
    return keys, concat(bare, _text(revision[some.to_numpy(zero_copy_only=False)] + 1), END), published


def _counted(
    changes: tuple[pa.Array, ...], keys: pa.Array, counts: Any, before: pa.Array, some: Any
) -> Delta:
    """Changes of rows, and of the counts of some keys. ``before``: the entries of counts."""
    if not some.any():
        return Delta.over(*changes)
    counted = entries(keys.filter(pa.array(some)), counts[some], before.filter(pa.array(some)))
    return Delta.over(*map(pa.concat_arrays, zip(changes, counted, strict=True)))


def _closed(rows: pa.Array, end: bytes) -> pa.Array:
    """Rows with something else for the brace at their end."""
    return pc.binary_replace_slice(rows, -1, FAR, end)


def _text(numbers: Any) -> pa.Array:
    return pa.array(numbers).cast(pa.large_string()).cast(BYTES)


def _revision(published: pa.Array) -> Any:
    """The revisions at the end of rows: the digits before the brace, from the last one on."""
    data, begins = placed(published)
    cells = np.frombuffer(data, np.uint8)
    at = begins + pc.binary_length(published).to_numpy() - 2
    number, unit = np.zeros(len(at), np.int64), 1
    still = np.arange(len(at))
    while len(still):
        digit = cells[at[still]]
        still, digit = still[digit != COLON], digit[digit != COLON]
        number[still] += (digit.astype(np.int64) - ZERO) * unit
        at[still] -= 1
        unit *= 10
    return number


def bare(published: bytes) -> bytes:
    """A row without its revision."""
    return published[: published.rindex(REVISION)] + END


def revised(row: bytes, published: bytes | None) -> bytes:
    """A row of another run as it goes on in this one: as published if it is the same, with the next revision otherwise."""
    bare = row[: row.rindex(REVISION)]
    if published is None:
        return bare + FIRST
    cut = published.rindex(REVISION)
    if published[:cut] == bare:
        return published
    return b"%b%b%d}" % (bare, REVISION, int(published[cut + len(REVISION) : -1]) + 1)
