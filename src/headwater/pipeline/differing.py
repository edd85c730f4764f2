"""Differing: the last operator of every view. It knows the row that was published last for each key, and lets only changes through.

What differs is the shard's next state file, and just that file is what the driver publishes.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.errors import UsageError
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
    "consolidated",
    "differing",
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

    With ``weighted`` a row has a ``_weight`` too, and a key whose row goes out is taken out unless another comes in.
    """

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    weighted: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        if not self.weighted:
            keys, values = _sorted(rows)
            return Applied(pa.table({}), _revisions(keys, values, _published(keys, state)))
        keys, values, replaces = _net(rows)
        published = _published(keys, state)
        twice = pc.and_(pc.and_(published.is_valid(), values.is_valid()), pc.invert(pa.array(replaces)))
        if pc.any(twice).as_py():
            raise _not_unique(keys.filter(twice)[0].as_py())
        return Applied(pa.table({}), _revisions(keys, values, published))


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


def consolidated(rows: pa.Table) -> dict[bytes, tuple[bytes | None, bool]]:
    """Of each key that changes, in order: the row that comes in, or None, and whether one goes out."""
    keys, values, replaces = _net(rows)
    return dict(zip(keys.to_pylist(), zip(values.to_pylist(), replaces.tolist(), strict=True), strict=True))


def _net(rows: pa.Table) -> tuple[pa.Array, pa.Array, Any]:
    """The same as columns."""
    keys, values = _binaries(rows, "_key"), _binaries(rows, "_value")
    weights = rows.column(WEIGHT).to_numpy()
    order, fresh = ordered(keys)
    comes = weights[order] > 0
    key = np.cumsum(fresh) - 1
    of, at = (key[comes], key[~comes]), (order[comes], order[~comes])
    if any((each[1:] == each[:-1]).any() for each in of) or (np.abs(weights) != 1).any():
        return _columns(_added_up(keys, values, weights, order))
    came, went = places = [np.full(int(fresh.sum()), -1) for _ in at]
    for place, number, row in zip(places, of, at, strict=True):
        place[number] = row
    length = pc.binary_length(values).to_numpy()
    alike = (came >= 0) & (went >= 0) & (length[came] == length[went])
    same = pc.equal(values.take(pa.array(came[alike])), values.take(pa.array(went[alike])))
    still = np.ones(len(came), bool)
    still[alike] = ~same.to_numpy(zero_copy_only=False)
    came, went = came[still], went[still]
    names = keys.take(pa.array(np.maximum(came, went)))
    return names, values.take(pa.array(came, mask=came < 0)), went >= 0


def _columns(taken: Mapping[bytes, tuple[bytes | None, bool]]) -> tuple[pa.Array, pa.Array, Any]:
    values, replaces = [value for value, _ in taken.values()], [out for _, out in taken.values()]
    return pa.array(taken, BYTES), pa.array(values, BYTES), np.array(replaces, bool)


def _added_up(
    keys: pa.Array, values: pa.Array, weights: Any, order: Any
) -> dict[bytes, tuple[bytes | None, bool]]:
    """The same where a key has more than one row that comes in, or goes out; they may cancel."""
    net: dict[bytes, Counter[bytes]] = {}
    texts = (each.take(pa.array(order)).to_pylist() for each in (keys, values))
    for key, value, weight in zip(*texts, weights[order].tolist(), strict=True):
        net.setdefault(key, Counter())[value] += weight
    taken: dict[bytes, tuple[bytes | None, bool]] = {}
    for key, of in net.items():
        came = list((+of).elements())
        if len(came) > 1:
            raise _not_unique(key)
        if any(of.values()):
            taken[key] = (came[0] if came else None, bool(-of))
    return taken


def _not_unique(key: bytes) -> UsageError:
    return UsageError(
        f"the key of the view is not unique: there are two rows with {key.decode()!r}",
        expected="one row for each key",
        hint="name more columns in key=, or bring the rows of a key together with hw.group; take copies of an event out before with hw.distinct",
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
    return _revisions(keys, pa.array(rows.values(), BYTES), _published(keys, state))


def _published(keys: pa.Array, state: State) -> pa.Array:
    return pa.array(state.each(keys.to_pylist()), BYTES)


def _revisions(keys: pa.Array, values: pa.Array, published: pa.Array) -> Delta:
    comes, known = (each.is_valid().to_numpy(zero_copy_only=False) for each in (values, published))
    if not known.any():
        if not comes.all():
            keys, values, published = (each.filter(pa.array(comes)) for each in (keys, values, published))
        return Delta(keys, _closed(values, FIRST), Size())
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
    news = concat(bare, _text(revision[some.to_numpy(zero_copy_only=False)] + 1), END)
    return Delta.over(keys, news, published)


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


def revised(row: bytes, published: bytes | None) -> bytes:
    """A row of another run as it goes on in this one: as published if it is the same, with the next revision otherwise."""
    bare = row[: row.rindex(REVISION)]
    if published is None:
        return bare + FIRST
    cut = published.rindex(REVISION)
    if published[:cut] == bare:
        return published
    return b"%b%b%d}" % (bare, REVISION, int(published[cut + len(REVISION) : -1]) + 1)
