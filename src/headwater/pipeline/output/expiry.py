"""Expiry: a time to live for the rows of a view.

A key that has not changed for this time by the clock is deleted. It wraps the publication
(``pipeline/build/last_step.py``). The state of the operators before it stays, or is dropped by event time.
Each value is stored with its expiry time (``pipeline/state/timers.py``). Counts of equal rows
(``pipeline/state/row_counts.py``) have no time: they are deleted with their keys.

    c KEY           → COUNT         the entry ``ff KEY`` of the wrapped logic
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.declare.duration import duration_us
from headwater.pipeline.operator.logic import Applied, Logic, Spec
from headwater.pipeline.state import row_counts, timers
from headwater.pipeline.state.contract import State, Stretch
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import FORGETTING
from headwater.pipeline.time.watermark import Moment

__all__ = ["Expiry"]


class Expiry(Spec, frozen=True, kw_only=True):
    """A logic whose keys are deleted if they have not changed for ``after``.

    One that is due and gets a row stays.
    """

    logic: Logic
    after: str
    timed: str = "clock"
    layout: str = FORGETTING

    @property
    def kind(self) -> str:
        return self.logic.kind

    @property
    def key(self) -> tuple[str, ...]:
        return self.logic.key

    def schema(self, rows: StructType) -> StructType:
        return self.logic.schema(rows)

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        due = timers.due(state, moment.now_us)
        changed = set(rows.column("_key").cast(pa.binary()).to_pylist())
        applied = self.logic.apply(rows, _Wrapped(state), moment)
        touched: dict[bytes, bytes | None] = {
            key: value for _, key in due if key in changed for value in _Wrapped(state).get([key]).values()
        }
        touched.update(applied.changes)
        changes: dict[bytes, bytes | None] = {timer: None for timer, _ in due}
        changes |= {timers.place(key): None for _, key in due}
        changes |= {_entry(key): touched.pop(key) for key in [*touched] if row_counts.is_count(key)}
        gone = pa.array(sorted(key for _, key in due if key not in changed), pa.large_binary())
        changes |= dict.fromkeys(state.get([_entry(count) for count in row_counts.places(gone).to_pylist()]))
        before = state.get([timers.place(key) for key in sorted(touched)])
        until = moment.now_us + duration_us(self.after)
        for key, value in touched.items():
            after = timers.kept(until, value) if value is not None else None
            changes |= timers.changed(key, before.get(timers.place(key)), after)
        opens = timers.earliest(state, changes, moment.now_us)
        return Applied(applied.rows, Delta.of(changes, state), opens, applied.ends)


class _Wrapped:
    """The state as the wrapped logic sees it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        return {key: value for key, value in zip(keys, self.each(keys), strict=True) if value is not None}

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        entries = [_entry(key) for key in keys]
        stored = zip(entries, self._state.each(entries), strict=True)
        return [None if value is None else _value(entry, value) for entry, value in stored]

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry, value in self._state.between(_entry(start), _entry(end)):
            yield _key(entry), _value(entry, value)

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        inside = [(_entry(start), _entry(end), most) for start, end, most in wanted]
        parts = self._state.stretches(inside)
        return [[(_key(entry), _value(entry, value)) for entry, value in part] for part in parts]


def _entry(key: bytes) -> bytes:
    """The entry that has an entry of the wrapped logic."""
    return row_counts.letter_for(key, b"k")


def _key(entry: bytes) -> bytes:
    return row_counts.PREFIX + entry[1:] if entry[:1] == row_counts.LETTER else entry[1:]


def _value(entry: bytes, value: bytes) -> bytes:
    return value if entry[:1] == row_counts.LETTER else value[8:]
