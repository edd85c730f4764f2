"""Complete rows: the publication of a view that emits only complete rows (``emit="ready"``).

A row waits until the watermark has reached its ``_until``. A later change is a correction, from a straggler
within the horizon: the row is published again at once, with its next revision.

    k KEY           → TIME ROW      a row that waits
    t TIME DIGEST   → KEY           its time (``pipeline/state/timers.py``)
    r KEY           → ROW           the last published row
    c KEY           → COUNT         with weights: the count of the row that waits, or was published
                                    (``pipeline/state/row_counts.py``)
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.output.changed_rows import NO_ROWS, PUBLISH, changes_of, without_revision
from headwater.pipeline.output.net_rows import net_by_key, rows_left
from headwater.pipeline.state import row_counts, timers
from headwater.pipeline.state.contract import State, Stretch
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import WAITING
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["CompleteRows"]


class CompleteRows(Spec, frozen=True):
    """Rows as ``_key``, ``_value`` and ``_until`` in microseconds.

    A null value deletes the key from the view, or with ``weighted`` a ``_weight`` of -1.
    """

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    weighted: bool = False
    timed: str = "watermark"
    layout: str = WAITING

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        changes: dict[bytes, bytes | None] = {}
        new = _weighted(rows, state, changes) if self.weighted else _by_key(rows)
        due = timers.due(state, moment.watermark)
        keys = sorted({*new, *(key for _, key in due)})
        waiting = state.get([timers.place(key) for key in keys])
        complete: dict[bytes, bytes | None] = {}
        for key in keys:
            before = waiting.get(timers.place(key))
            value, until = new[key] if key in new else _due(before)
            waits = value is not None and until > moment.watermark
            after = timers.kept(until, value) if waits and value is not None else None
            if before is not None or after is not None:
                changes |= timers.changed(key, before, after)
            if not waits:
                complete[key] = value
        changes |= {b"r" + key: row for key, row in changes_of(complete, _Published(state)).items()}
        return Applied(
            pa.table({}), Delta.of(changes, state), timers.earliest(state, changes, moment.watermark)
        )


class _Published:
    """The published rows by key, as a state of their own."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        return {key[1:]: row for key, row in self._state.get(list(map(self.place, keys))).items()}

    @staticmethod
    def place(key: bytes) -> bytes:
        return b"r" + key

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.get(keys).get, keys))

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key[1:], row) for key, row in self._state.between(b"r" + start, b"r" + end))

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        inside = [(b"r" + start, b"r" + end, most) for start, end, most in wanted]
        return [[(key[1:], value) for key, value in part] for part in self._state.stretches(inside)]


def _by_key(rows: pa.Table) -> dict[bytes, tuple[bytes | None, int]]:
    """The row of each key, the greatest of several, and when it is complete.

    One without a time is complete.
    """
    order = pc.sort_indices(rows, [(name, "ascending") for name in ("_key", "_value", "_until")])
    keys, values = (
        rows.column(name).cast(pa.binary()).take(order).to_pylist() for name in ("_key", "_value")
    )
    until = pc.fill_null(rows.column("_until"), timers.EARLIEST).take(order).to_pylist()
    return dict(zip(keys, zip(values, until, strict=True), strict=True))


def _weighted(
    rows: pa.Table, state: State, changes: dict[bytes, bytes | None]
) -> dict[bytes, tuple[bytes | None, int]]:
    """The same for rows with weights, of the keys whose row changes.

    Adds the counts of rows to ``changes``.
    """
    net = net_by_key(rows)
    until = _by_key(rows.filter(pc.greater(rows.column(WEIGHT), 0)))
    entries = {key: row_counts.letter_for(row_counts.place(key), b"") for key in net}
    stored = state.get(
        [entry for key in net for entry in (timers.place(key), _Published.place(key), entries[key])]
    )
    new: dict[bytes, tuple[bytes | None, int]] = {}
    for key, change in net.items():
        waiting, published = stored.get(timers.place(key)), stored.get(_Published.place(key))
        row = waiting[8:] if waiting is not None else None
        if waiting is None and published is not None:
            row = without_revision(published)
        counted = stored.get(entries[key])
        before = 0 if row is None else 1 if counted is None else row_counts.count(counted)
        after = rows_left(key, change, row, before)
        if row_counts.value(key, after) != counted:
            changes[entries[key]] = row_counts.value(key, after)
        value, inserted, _ = change
        if inserted or not after:
            new[key] = (value, until[key][1] if inserted else timers.EARLIEST)
    return new


def _due(waiting: bytes | None) -> tuple[bytes | None, int]:
    """A row whose time has come."""
    return (waiting[8:], timers.time_of(waiting)) if waiting is not None else (None, timers.EARLIEST)
