"""The rows of one batch, sorted by their groups, and the value of an aggregate for each group."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.arrow.row_bytes import concat
from headwater.pipeline.arrow.sort_keys import numbered
from headwater.pipeline.state import weighted_entries
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["GroupColumn", "Groups", "read_groups"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Groups(NamedTuple):
    """The rows of a batch, sorted by group. Groups are numbered from 0, in the order of their prefixes."""

    rows: pa.Table
    weights: Numbers
    keys: list[bytes]
    """The text of each group's key."""
    prefixes: list[bytes]
    """The prefix of each group's entries in the state."""
    group: Numbers
    """The group of each row."""
    starts: Numbers
    """The first row of each group."""
    row_prefixes: pa.Array
    """The prefix of the entries of each row."""


class GroupColumn(NamedTuple):
    """An aggregate of every group, before the batch and after it."""

    before: pa.Array
    after: pa.Array
    differs: Flags
    """Where the two are different. Means nothing for a group that exists only before or only after the
    batch."""


def read_groups(rows: pa.Table, by: Sequence[str]) -> Groups:
    """Sorts the rows of a batch by their groups."""
    rows = rows.combine_chunks()
    keys = rows.column("_key").combine_chunks().cast(pa.binary())
    row_prefixes = weighted_entries.begins(keys)
    null = rows.column(by[0]).is_null().combine_chunks()
    if len(by) == 1 and pc.any(null).as_py():  # a null has the same text as the value "[null]"
        row_prefixes = pc.if_else(null, concat(row_prefixes, b"\xff"), row_prefixes)
    prefixes, group = numbered(row_prefixes)
    order = np.argsort(group, kind="stable")
    group = group[order]
    starts = np.searchsorted(group, np.arange(len(prefixes)))
    weights = (
        rows.column(WEIGHT).to_numpy().astype(np.int64)
        if WEIGHT in rows.column_names
        else np.ones(len(group), np.int64)
    )
    return Groups(
        rows.take(pa.array(order)),
        weights[order],
        keys.take(pa.array(order[starts])).to_pylist(),
        prefixes.to_pylist(),
        group,
        starts,
        row_prefixes.take(pa.array(order)),
    )
