"""Differing: the last operator of every view. It knows the row that was published last for each key, and lets only changes through.

What differs is the shard's next state file, and just that file is what the driver publishes.
"""

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headwater.graph import View
from headwater.pipeline import operator, wire
from headwater.pipeline.forget import Forgetting
from headwater.pipeline.operator import Applied, Logic, Moment, Site, Spec, State

__all__ = ["PUBLISH", "appended", "differing", "revised", "staged"]

PUBLISH = "publish"
"""The name of this step among the operators of a view."""
REVISION = b',"_revision":'
NO_ROWS = StructType([])


class Differing(Spec, frozen=True):
    """Rows as ``_key`` and ``_value``; a null value takes the key out of the view. State: the row as it was published."""

    kind: str = PUBLISH
    key: tuple[str, ...] = ()

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        return Applied(pa.table({}), differing(_sorted(rows), state))


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


def staged(rows: DataFrame, view: View, site: Site) -> DataFrame:
    """The view's rows on their way into its topic: what comes out is only what the shards have written."""
    logic: Logic = Appending() if view.append else Differing()
    if view.forget is not None:
        logic = Forgetting(logic=logic, after=view.forget)
    site.add(PUBLISH, logic, rows)
    key, value = wire.expressions(rows.schema, view)
    keyed = rows.selectExpr(f"{value} AS _value", f"{key} AS _key")
    return operator.shell(PUBLISH, logic, operator.sharded(keyed, site, logic.timed), NO_ROWS)


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
                changes[key] = b"%b%b1}" % (value[:-1], REVISION)
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
        return b"%b%b1}" % (bare, REVISION)
    cut = published.rindex(REVISION)
    if published[:cut] == bare:
        return published
    return b"%b%b%d}" % (bare, REVISION, int(published[cut + len(REVISION) : -1]) + 1)
