"""Joinedtables: the live join of two tables, the faster way for those that come as they are, or through selects and filters only.

A row of a table has a key, and so a place: what a change replaces is what stands there, and nobody has to look how often a row is there. So changes are not turned
into rows that come in and go out (``current.py``) before they are joined, but sent on (``routed.py``) and compared here.

    ON ff l KEY    → ROW        the rows of the left table by what they are joined on; those of the right stand under r

Where ON is too long and cut, ON stands with the row (``entries.py``).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.pipeline import entries
from headwater.pipeline.current import ID, differs
from headwater.pipeline.delta import Delta
from headwater.pipeline.operator import Applied, Moment, State, arrow
from headwater.pipeline.pairs import LETTERS, Batch, Others, Pairs, Side, one_chunk
from headwater.pipeline.routed import FRESH, ROW, SIDE
from headwater.pipeline.rowbytes import concat, placed, unpack
from headwater.pipeline.sorting import ordered

__all__ = ["NULL_ON", "JoinedTables"]

NULL_ON = (b"\xfdl", b"\xfdr")
"""What stands for ON when it is null, on either side: such rows meet nobody. No text begins so."""
BYTES = pa.large_binary()


class JoinedTables(Pairs, frozen=True, kw_only=True):
    """What `Routed` sends, as weighted rows. State: an entry for each row of either table."""

    left: StructType
    right: StructType
    single: tuple[bool, bool] = (False, False)
    """Whether a table is joined on its key, so that there is one row at most, whose KEY is ON."""

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return self.shown(self.left, self.right)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        on, ids, news = (one_chunk(rows.column(name)) for name in ("_key", ID, ROW))
        right, fresh = (rows.column(name).to_numpy() for name in (SIDE, FRESH))
        letters = pc.if_else(pa.array(right), *(pa.scalar(each, BYTES) for each in LETTERS[::-1]))
        places = concat(entries.begins(on), letters, entries.tailed(ids)[0])
        order, _ = ordered(places)
        places, on, news = (each.take(pa.array(order)) for each in (places, on, news))
        cut = entries.are_cut(on)
        olds = _known(places, fresh[order], state, cut=cut)
        right, changed = right[order], differs(olds, news)
        if not changed.all():
            places, on, news, olds = (each.filter(pa.array(changed)) for each in (places, on, news, olds))
            right = right[changed]
        batch, keys = _batch(places, on, right)
        others = [self._met(batch, keys, state, side) for side in (0, 1)]
        if cut:
            others = [each._replace(values=_opened(each.entries, each.values)) for each in others]
        both = pa.concat_arrays([olds, news])
        sides = [self._side(batch, side, both, others[side]) for side in (0, 1)]
        rows = self.pairs(batch, sides, others)
        if cut:
            news, olds = (_closed(places, each, on) for each in (news, olds))
        return Applied(rows, Delta.over(places, news, olds))

    def _met(self, batch: Batch, keys: pa.Array, state: State, side: int) -> Others:
        """What has not changed on a side. A row that is single is there, or it has changed."""
        if not self.single[side]:
            return self.others(batch, state, side)
        wanted = np.ones(len(keys), bool)
        wanted[batch.key[batch.side == side]] = False
        asked = keys.filter(pa.array(wanted))
        places = concat(entries.begins(asked), LETTERS[side], entries.tailed(asked)[0])
        found = pa.array(state.each(places.to_pylist()), BYTES)
        some = found.is_valid().to_numpy(zero_copy_only=False)
        number = np.flatnonzero(wanted)[some]
        there = np.zeros(len(keys), bool)
        there[number] = True
        return Others(places.filter(pa.array(some)).to_pylist(), found.drop_null().to_pylist(), number, there)

    def _side(self, batch: Batch, side: int, both: pa.Array, others: Others) -> Side:
        """The rows of a side: of each change the old one, and the new one behind it. ``both`` has all old ones, and then all new ones."""
        mine = np.flatnonzero(batch.side == side)
        place = np.stack([mine, mine + len(batch.key)], axis=1).ravel()
        place = place[both.is_valid().to_numpy(zero_copy_only=False)[place]]
        new = place >= len(batch.key)
        still = pa.array(others.values, BYTES)
        shown = pa.concat_arrays([both.take(pa.array(place)), still])
        ones = np.ones(len(still), np.int64)
        return Side(
            unpack(*placed(shown), arrow((self.left, self.right)[side])),
            np.concatenate([batch.key[place - len(batch.key) * new], others.keys]),
            np.concatenate([(~new).astype(np.int64), ones]),
            np.concatenate([new.astype(np.int64), ones]),
            len(place),
        )


def _batch(places: pa.Array, on: pa.Array, right: Any) -> tuple[Batch, pa.Array]:
    """What changes, and the keys by number."""
    first = np.ones(len(on), bool)
    first[1:] = pc.not_equal(on[1:], on[:-1]).to_numpy(zero_copy_only=False)
    keys = on.filter(pa.array(first))
    begins = entries.begins(keys).to_pylist()
    return Batch(right.astype(np.int64), np.cumsum(first) - 1, begins, places, len(places)), keys


def _known(places: pa.Array, fresh: Any, state: State, *, cut: bool) -> pa.Array:
    """The rows at some places, at which those that are fresh have none."""
    seen = np.flatnonzero(~fresh)
    asked = places.take(pa.array(seen)).to_pylist()
    stands = state.each(asked)
    found = pa.array(_opened(asked, stands) if cut else stands, BYTES)
    at = np.zeros(len(places), np.int64)
    at[seen] = np.arange(len(seen))
    return found.take(pa.array(at, mask=fresh))


def _opened(places: Sequence[bytes], values: Sequence[bytes | None]) -> list[Any]:
    """The rows in what stands at some places, some of which were cut."""
    return [
        entries.opened(value).data if place[:1] == entries.CUT and value is not None else value
        for place, value in zip(places, values, strict=True)
    ]


def _closed(places: pa.Array, rows: pa.Array, on: pa.Array) -> pa.Array:
    """The same the other way: what stands at some places for these rows; null for none."""
    found = [
        entries.closed(entries.Held(1, row, key)) if place[:1] == entries.CUT and row is not None else row
        for place, row, key in zip(*(each.to_pylist() for each in (places, rows, on)), strict=True)
    ]
    return pa.array(found, BYTES)
