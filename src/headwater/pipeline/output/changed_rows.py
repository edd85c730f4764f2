"""Changed rows: the last operator of every view.

It knows the last published row of each key and emits only changes.
The rows that differ are the shard's next state file, and exactly that file is published by the driver.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.pipeline.arrow.row_bytes import concat, placed
from headwater.pipeline.arrow.sort_keys import ordered
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.output.net_rows import NetRows, binaries, net_rows, not_unique
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.files import Size
from headwater.pipeline.state.row_counts import counts_in, entries
from headwater.pipeline.time.open_ends import ends_in
from headwater.pipeline.time.watermark import Moment

__all__ = [
    "NO_ROWS",
    "ORDER",
    "PUBLISH",
    "AppendedRows",
    "ChangedRows",
    "changes_of",
    "revised",
    "without_revision",
]

PUBLISH = "publish"
"""The name of this step among the operators of a view."""
ORDER = "_order"
"""The offset of the record, for rows that come from one record each."""
REVISION = b',"_revision":'
FIRST = REVISION + b"1}"
END = b"}"
COLON, ZERO = b":0"
FAR = (1 << 63) - 1
BYTES = pa.large_binary()
NO_ROWS = StructType([])


class ChangedRows(Spec, frozen=True):
    """Rows as ``_key`` and ``_value``.

    A null value deletes the key from the view. State: the row as it was published. If a batch has several
    rows for a key, the one from the latest record wins (``_order``), so batch boundaries do not affect the
    result.

    With ``weighted`` a row has a ``_weight`` too, and a key whose row is retracted is deleted unless another
    row is inserted. Equal rows of a key are one row, which is deleted with the last of them; rows that differ
    are refused. State then has counts as well (``pipeline/state/row_counts.py``).

    With ``_until`` a row has the time at which it is complete; it is published before that.
    """

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    weighted: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        delta = self._counted(rows, state) if self.weighted else _compared(rows, state)
        return Applied(pa.table({}), delta, ends=ends_in(rows, moment.watermark))

    def _counted(self, rows: pa.Table, state: State) -> Delta:
        net = net_rows(rows)
        published = _published(net.keys, state)
        is_published = published.is_valid().to_numpy(zero_copy_only=False)
        counts, stored_counts = counts_in(state, net.keys)
        before = counts * is_published
        stays = np.maximum(before - net.retracted, 0)
        _check_unique(net, published, (stays > 0) & (net.inserted > 0))
        after = stays + net.inserted
        rows_of = net.keys, net.values, published
        changes = (stays == 0) | (net.inserted > 0)
        if not changes.all():
            rows_of = tuple(column.filter(pa.array(changes)) for column in rows_of)
        recounted = (after != before) & ((after > 1) | (before > 1))
        return _with_counts(_changes(*rows_of), net.keys, after, stored_counts, recounted)


class AppendedRows(Spec, frozen=True):
    """Emits every row as its own record, in the order of key and value: every attempt writes the same."""

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    keeps: bool = False

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        keys, values = binaries(rows, "_key"), binaries(rows, "_value")
        order = pa.array(_places(rows, keys)[0])
        delta = Delta(keys.take(order), values.take(order), Size())
        return Applied(pa.table({}), delta, ends=ends_in(rows, moment.watermark))


def _compared(rows: pa.Table, state: State) -> Delta:
    keys, values = _sorted(rows)
    return Delta.over(*_changes(keys, values, _published(keys, state)))


def _check_unique(net: NetRows, published: pa.Array, both: Any) -> None:
    """Refuses inserted rows if another row of the key stays, unless they are equal.

    ``both``: where that is so.
    """
    if not both.any():
        return
    keys, values, published = (column.filter(pa.array(both)) for column in (net.keys, net.values, published))
    revision = _text(_revision(published))
    differs = pc.not_equal(concat(_closed(values, REVISION), revision, END), published)
    if pc.any(differs).as_py():
        raise not_unique(keys.filter(differs)[0].as_py())


def _sorted(rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """The keys in order, and one row of each: the newest by ``_order``, else the greatest.

    Null is greatest.
    """
    keys, values = binaries(rows, "_key"), binaries(rows, "_value")
    picked, fresh = _places(rows, keys)
    last = picked[np.append(fresh[1:], True)[: len(fresh)]]
    return keys.take(pa.array(last)), values.take(pa.array(last))


def _places(rows: pa.Table, keys: pa.Array) -> tuple[Any, Any]:
    """The positions of rows in the order of key, record and value, and which begin a new key."""
    order, fresh = ordered(keys)
    if fresh.all():
        return order, fresh
    by = [name for name in ("_key", ORDER, "_value") if name in rows.column_names]
    order = pc.sort_indices(rows, [(name, "ascending") for name in by])
    return order.to_numpy().astype(np.int64), fresh


def changes_of(rows: Mapping[bytes, bytes | None], state: State) -> Delta:
    """The rows that differ from the last published ones, with their revisions.

    ``rows`` are in the order of keys.
    """
    keys = pa.array(rows, BYTES)
    return Delta.over(*_changes(keys, pa.array(rows.values(), BYTES), _published(keys, state)))


def _published(keys: pa.Array, state: State) -> pa.Array:
    return pa.array(state.each(keys.to_pylist()), BYTES)


def _changes(keys: pa.Array, values: pa.Array, published: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The keys whose rows differ from the published ones, these rows revised, and the published rows."""
    present, is_published = (
        column.is_valid().to_numpy(zero_copy_only=False) for column in (values, published)
    )
    if not is_published.any():
        if not present.all():
            keys, values, published = (
                column.filter(pa.array(present)) for column in (keys, values, published)
            )
        return keys, _closed(values, FIRST), published
    again = present & is_published
    open_rows = _closed(values, REVISION)
    revision = np.zeros(len(keys), np.int64)
    revision[again] = _revision(published.filter(pa.array(again)))
    same = np.zeros(len(keys), bool)
    same[again] = pc.equal(
        concat(open_rows.filter(pa.array(again)), _text(revision[again]), END),
        published.filter(pa.array(again)),
    ).to_numpy(zero_copy_only=False)
    differs = pa.array(~same & (present | is_published))
    keys, open_rows, published = (column.filter(differs) for column in (keys, open_rows, published))
    next_revision = _text(revision[differs.to_numpy(zero_copy_only=False)] + 1)
    return keys, concat(open_rows, next_revision, END), published


def _with_counts(
    changes: tuple[pa.Array, ...], keys: pa.Array, counts: Any, stored: pa.Array, recounted: Any
) -> Delta:
    """Changes of rows, and of the counts of the recounted keys. ``stored``: the entries of counts so far."""
    if not recounted.any():
        return Delta.over(*changes)
    chosen = pa.array(recounted)
    count_changes = entries(keys.filter(chosen), counts[recounted], stored.filter(chosen))
    return Delta.over(*map(pa.concat_arrays, zip(changes, count_changes, strict=True)))


def _closed(rows: pa.Array, end: bytes) -> pa.Array:
    """Rows with ``end`` instead of the brace at their end."""
    return pc.binary_replace_slice(rows, -1, FAR, end)


def _text(numbers: Any) -> pa.Array:
    return pa.array(numbers).cast(pa.large_string()).cast(BYTES)


def _revision(published: pa.Array) -> Any:
    """The revisions at the end of rows, from the digits before the brace, last one first."""
    data, begins = placed(published)
    cells = np.frombuffer(data, np.uint8)
    at = begins + pc.binary_length(published).to_numpy() - 2
    number, unit = np.zeros(len(at), np.int64), 1
    unread = np.arange(len(at))
    while len(unread):
        digit = cells[at[unread]]
        unread, digit = unread[digit != COLON], digit[digit != COLON]
        number[unread] += (digit.astype(np.int64) - ZERO) * unit
        at[unread] -= 1
        unit *= 10
    return number


def without_revision(published: bytes) -> bytes:
    """A row without its revision."""
    return published[: published.rindex(REVISION)] + END


def revised(row: bytes, published: bytes | None) -> bytes:
    """A row of another run as this one continues it: as published if it is the same, else revised."""
    open_row = row[: row.rindex(REVISION)]
    if published is None:
        return open_row + FIRST
    cut = published.rindex(REVISION)
    if published[:cut] == open_row:
        return published
    return b"%b%b%d}" % (open_row, REVISION, int(published[cut + len(REVISION) : -1]) + 1)
