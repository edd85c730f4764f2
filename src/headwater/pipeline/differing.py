"""Differing: the last operator of every view. It knows the row that was published last for each key, and lets only changes through.

What differs is the shard's next state file, and just that file is what the driver publishes.
"""

from collections.abc import Iterator

import msgspec
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
        alone = [key for key, (value, replaces) in taken.items() if value is not None and not replaces]
        for key in state.get(alone):
            raise _not_unique(key)
        return Applied(pa.table({}), differing({key: value for key, (value, _) in taken.items()}, state))


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
    summed = rows.group_by(["_key", "_value"]).aggregate([(WEIGHT, "sum")])
    net = summed.filter(pc.not_equal(summed.column(f"{WEIGHT}_sum"), 0))
    order = pc.sort_indices(net, [("_key", "ascending"), ("_value", "ascending")])
    keys, values = (net.column(name).cast(pa.binary()).take(order).to_pylist() for name in ("_key", "_value"))
    weights = net.column(f"{WEIGHT}_sum").take(order).to_pylist()
    taken: dict[bytes, tuple[bytes | None, bool]] = {}
    for key, value, weight in zip(keys, values, weights, strict=True):
        there, replaces = taken.get(key, (None, False))
        if weight > 0:
            if weight > 1 or there is not None:
                raise _not_unique(key)
            taken[key] = (value, replaces)
        else:
            taken[key] = (there, True)
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
    order = pc.sort_indices(rows, [("_key", "ascending"), ("_value", "ascending")])
    keys, values = (
        rows.column(name).cast(pa.binary()).take(order).to_pylist() for name in ("_key", "_value")
    )
    return zip(keys, values, strict=True)


def differing(rows: dict[bytes, bytes | None], state: State) -> dict[bytes, bytes | None]:
    """The rows that differ from those published last, each with the revision that it gets."""
    published = state.get(list(rows))
    changes: dict[bytes, bytes | None] = {}
    for key, value in rows.items():
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
