"""Differing: the last operator of every view. It knows the row that was published last for each key, and lets only changes through.

What differs is the shard's next state file, and just that file is what the driver publishes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.errors import UsageError
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.wire import WEIGHT

__all__ = [
    "NO_ROWS",
    "PUBLISH",
    "Appending",
    "Differing",
    "appended",
    "consolidated",
    "differing",
    "revised",
]

PUBLISH = "publish"
"""The name of this step among the operators of a view."""
REVISION = b',"_revision":'
FIRST = REVISION + b"1}"
NO_ROWS = StructType([])


class Differing(Spec, frozen=True):
    """Rows as ``_key`` and ``_value``; a null value takes the key out of the view. State: the row as it was published.

    With ``weighted`` a row has a ``_weight`` too, and a key whose row goes out is taken out unless another comes in.
    """

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    weighted: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        if not self.weighted:
            return Applied(pa.table({}), differing(_sorted(rows), state))
        taken = consolidated(rows)
        published = state.get(list(taken))
        for key in published:
            value, replaces = taken[key]
            if value is not None and not replaces:
                raise _not_unique(key)
        return Applied(
            pa.table({}), _revisions(((key, value) for key, (value, _) in taken.items()), published)
        )


class Appending(Spec, frozen=True):
    """Every row is let through, as a record of its own; their order is that of key and value."""

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    keeps: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        ordered = enumerate(_ordered(rows))
        return Applied(pa.table({}), {n.to_bytes(8): msgspec.msgpack.encode(row) for n, row in ordered})


def appended(changes: Iterator[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
    """The records in a file of rows that were appended."""
    for _, row in changes:
        if row is not None:
            yield _record.decode(row)


_record = msgspec.msgpack.Decoder(tuple[bytes, bytes])


def consolidated(rows: pa.Table) -> dict[bytes, tuple[bytes | None, bool]]:
    """Of each key that changes, in order: the row that comes in, or None, and whether one goes out."""
    keys, values = _binaries(rows, "_key"), _binaries(rows, "_value")
    weights = rows.column(WEIGHT).to_numpy()
    order, fresh = _by_key(keys)
    key = np.cumsum(fresh) - 1
    at = [order[weights[order] > 0], order[weights[order] < 0]]
    places = [np.full(int(fresh.sum()), -1) for _ in at]
    of = [key[weights[order] > 0], key[weights[order] < 0]]
    if any((np.bincount(each) > 1).any() for each in of) or (np.abs(weights) > 1).any():
        return _added_up(keys, values, weights, order)
    for place, number, row in zip(places, of, at, strict=True):
        place[number] = row
    came, went = places
    still = (came >= 0) | (went >= 0)
    both = (came >= 0) & (went >= 0)
    same = pc.equal(values.take(pa.array(came[both])), values.take(pa.array(went[both])))
    still[both] = ~same.to_numpy(zero_copy_only=False)
    came, went = came[still], went[still]
    names = keys.take(pa.array(np.maximum(came, went))).to_pylist()
    shown = values.take(pa.array(came, mask=came < 0)).to_pylist()
    return dict(zip(names, zip(shown, (went >= 0).tolist(), strict=True), strict=True))


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
        hint="name more columns in key=, or bring the rows of a key together with hw.group; if the view's filters were changed: headwater view rebuild",
    )


def _sorted(rows: pa.Table) -> dict[bytes, bytes | None]:
    """The rows by key; of two rows with a key the greater one stays."""
    return dict(_ordered(rows))


def _ordered(rows: pa.Table) -> Iterator[tuple[bytes, bytes | None]]:
    """The rows in an order of their own, so that every attempt writes the same."""
    keys, values = _binaries(rows, "_key"), _binaries(rows, "_value")
    order, fresh = _by_key(keys)
    picked = pa.array(order)
    if not fresh.all():
        picked = pc.sort_indices(rows, [("_key", "ascending"), ("_value", "ascending")])
    return zip(keys.take(picked).to_pylist(), values.take(picked).to_pylist(), strict=True)


def _by_key(keys: pa.Array) -> tuple[Any, Any]:
    """Where rows are in the order of their keys, and which of these is not the one before it."""
    order = pc.sort_indices(keys)
    ordered = keys.take(order)
    fresh = np.ones(len(keys), bool)
    fresh[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    return order.to_numpy().astype(np.int64), fresh


def _binaries(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).cast(pa.large_binary()).combine_chunks()


def differing(rows: dict[bytes, bytes | None], state: State) -> dict[bytes, bytes | None]:
    """The rows that differ from those published last, each with the revision that it gets."""
    return _revisions(rows.items(), state.get(list(rows)))


def _revisions(
    rows: Iterable[tuple[bytes, bytes | None]], published: Mapping[bytes, bytes]
) -> dict[bytes, bytes | None]:
    if not published:
        return {key: value[:-1] + FIRST for key, value in rows if value is not None}
    changes: dict[bytes, bytes | None] = {}
    for key, value in rows:
        last = published.get(key)
        if last is None:
            if value is not None:
                changes[key] = value[:-1] + FIRST
        elif value is None:
            changes[key] = None
        else:
            cut = last.rindex(REVISION)
            if last[:cut] != value[:-1]:
                changes[key] = b"%b%b%d}" % (value[:-1], REVISION, int(last[cut + len(REVISION) : -1]) + 1)
    return changes


def revised(row: bytes, published: bytes | None) -> bytes:
    """A row of another run as it goes on in this one: as published if it is the same, with the next revision otherwise."""
    bare = row[: row.rindex(REVISION)]
    if published is None:
        return bare + FIRST
    cut = published.rindex(REVISION)
    if published[:cut] == bare:
        return published
    return b"%b%b%d}" % (bare, REVISION, int(published[cut + len(REVISION) : -1]) + 1)
