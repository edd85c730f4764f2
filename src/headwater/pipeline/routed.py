"""Routed: the changes of two tables on their way to where their rows are joined, which is not where their keys are.

A change says what the row of a key is from now on, and goes to the shard of what that row is joined on. When this changes, or the row goes, the shard
in which it was has to hear of it too: so it is kept for each key what its row is joined on, and nothing else.

    l KEY → ON    for a row of the left table; those of the right stand under r
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, BooleanType, StructType

from headwater.pipeline.current import ID, newest
from headwater.pipeline.delta import Delta
from headwater.pipeline.layout import ROUTES
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.pairs import LETTERS, SIDES, one_chunk
from headwater.pipeline.rowbytes import concat, pack

__all__ = ["FRESH", "ON", "ROUTED", "ROW", "SIDE", "Routed"]

ON = "_on"
"""The text of what a row is joined on; null where there is no row, or none that is joined."""
SIDE, ROW, FRESH = "_side", "_row", "_fresh"
KIND = (
    StructType()
    .add("_key", BinaryType())
    .add(SIDE, BooleanType())
    .add(ID, BinaryType())
    .add(ROW, BinaryType())
    .add(FRESH, BooleanType())
)
BYTES, FLAG = pa.large_binary(), pa.bool_()
ROUTED = pa.schema([("_key", BYTES), (SIDE, FLAG), (ID, BYTES), (ROW, BYTES), (FRESH, FLAG)])


class Routed(Spec, frozen=True, kw_only=True):
    """The last change of each key, at what it is joined on.

    ``_side`` is true for the right. ``_row`` has the bytes of the row, null where it no longer is; ``_fresh``: it was not there before.
    """

    key: tuple[str, ...] = (ID,)
    spares: tuple[str, ...] = (ID,)
    kind: str = "route"
    layout: str = ROUTES

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return KIND

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:  # noqa: ARG002
        out: list[pa.Table] = []
        changes: list[tuple[pa.Array, pa.Array, pa.Array]] = []
        for side in (0, 1):
            ids, last = newest(rows.filter(pc.is_valid(rows.column(SIDES[side]))))
            places = concat(LETTERS[side], ids)
            was = pa.array(state.each(places.to_pylist()), BYTES)
            on = one_chunk(last.column(ON)).cast(BYTES)
            there, known = (each.is_valid().to_numpy(zero_copy_only=False) for each in (on, was))
            same = pc.fill_null(pc.equal(was, on), False).to_numpy(zero_copy_only=False)
            here, left, changed = (
                pa.array(np.flatnonzero(each)) for each in (there, known & ~same, ~same & (there | known))
            )
            packed = _packed(last.column(SIDES[side]).take(here))
            out.append(_rows(on.take(here), side, ids.take(here), packed, ~same[there]))
            nothing = pa.nulls(len(left), BYTES)
            out.append(_rows(was.take(left), side, ids.take(left), nothing, np.zeros(len(left), bool)))
            changes.append((places.take(changed), on.take(changed), was.take(changed)))
        keys, news, olds = map(pa.concat_arrays, zip(*changes, strict=True))
        return Applied(pa.concat_tables(out), Delta.over(keys, news, olds))


def _rows(on: pa.Array, side: int, ids: pa.Array, rows: pa.Array, fresh: np.ndarray) -> pa.Table:
    return pa.table([on, np.full(len(on), bool(side)), ids, rows, fresh], schema=ROUTED)


def _packed(structs: pa.ChunkedArray) -> pa.Array:
    kind = structs.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    return pack(pa.table(one_chunk(structs).flatten(), names=names))
