"""Ready: the publication of a view whose rows go out once they are complete (``emit="ready"``), and not before.

A row waits until the watermark has reached its ``_until``. What comes later is a correction, from a straggler within the horizon: the
row goes out again at once, with its next revision.

    k KEY           → TIME ROW      a row that waits
    t TIME DIGEST   → KEY           when its time has come (``timers.py``)
    r KEY           → ROW           the row as it was published last
    c KEY           → COUNT         of rows with weights: how often the row is there that waits, or was published (``counts.py``)
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headwater.pipeline import counts, timers
from headwater.pipeline.differing import NO_ROWS, PUBLISH, bare, consolidated, differing, left
from headwater.pipeline.layout import WAITING
from headwater.pipeline.operator import Applied, Moment, Spec, State, Stretch
from headwater.pipeline.wire import WEIGHT

__all__ = ["Ready"]


class Ready(Spec, frozen=True):
    """Rows as ``_key``, ``_value`` and ``_until`` in microseconds; a null value takes the key out of the view, or a ``_weight``."""

    kind: str = PUBLISH
    key: tuple[str, ...] = ()
    weighted: bool = False
    timed: str = "watermark"
    layout: str = WAITING

    def schema(self, rows: StructType) -> StructType:  # noqa: ARG002
        return NO_ROWS

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        changes: dict[bytes, bytes | None] = {}
        given = _weighted(rows, state, changes) if self.weighted else _by_key(rows)
        due = timers.due(state, moment.watermark)
        keys = sorted({*given, *(key for _, key in due)})
        waiting = state.get([timers.place(key) for key in keys])
        complete: dict[bytes, bytes | None] = {}
        for key in keys:
            before = waiting.get(timers.place(key))
            value, until = given[key] if key in given else _taken(before)
            waits = value is not None and until > moment.watermark
            after = timers.kept(until, value) if waits and value is not None else None
            if before is not None or after is not None:
                changes |= timers.changed(key, before, after)
            if not waits:
                complete[key] = value
        changes |= {b"r" + key: row for key, row in differing(complete, _Published(state)).items()}
        return Applied(
            pa.table({}), dict(sorted(changes.items())), timers.earliest(state, changes, moment.watermark)
        )


class _Published:
    """The rows that were published, by key."""

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
    """The row of each key and when it is complete; of two rows with a key the greater one. One without a time is complete."""
    order = pc.sort_indices(rows, [(name, "ascending") for name in ("_key", "_value", "_until")])
    keys, values = (
        rows.column(name).cast(pa.binary()).take(order).to_pylist() for name in ("_key", "_value")
    )
    until = pc.fill_null(rows.column("_until"), timers.EARLIEST).take(order).to_pylist()
    return dict(zip(keys, zip(values, until, strict=True), strict=True))


def _weighted(
    rows: pa.Table, state: State, changes: dict[bytes, bytes | None]
) -> dict[bytes, tuple[bytes | None, int]]:
    """The same for rows with weights: of the keys that have another row from now on, or none. Puts the counts of rows into the changes."""
    net = consolidated(rows)
    until = _by_key(rows.filter(pc.greater(rows.column(WEIGHT), 0)))
    entries = {key: counts.letter_for(counts.place(key), b"") for key in net}
    here = state.get(
        [each for key in net for each in (timers.place(key), _Published.place(key), entries[key])]
    )
    given: dict[bytes, tuple[bytes | None, int]] = {}
    for key, change in net.items():
        waiting, shown = here.get(timers.place(key)), here.get(_Published.place(key))
        row = waiting[8:] if waiting is not None else bare(shown) if shown is not None else None
        counted = here.get(entries[key])
        before = 0 if row is None else 1 if counted is None else counts.count(counted)
        after = left(key, change, row, before)
        if counts.value(key, after) != counted:
            changes[entries[key]] = counts.value(key, after)
        value, came, _ = change
        if came or not after:
            given[key] = (value, until[key][1] if came else timers.EARLIEST)
    return given


def _taken(waiting: bytes | None) -> tuple[bytes | None, int]:
    """A row whose time has come."""
    return (waiting[8:], timers.time_of(waiting)) if waiting is not None else (None, timers.EARLIEST)
