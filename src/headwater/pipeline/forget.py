"""Forget: a time to live for the rows of a view. A key that has not changed for so long by the clock is removed.

It is put around the publication (``stage.py``); what the operators before it keep stays, or is forgotten by event time. Each value is kept
with the time at which it goes, as ``timers.py`` has it. Counts of equal rows (``counts.py``) have no time: they go with their keys.

    c KEY           → COUNT         the entry ``ff KEY`` of the logic inside
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.late import duration_us
from headwater.pipeline import counts, timers
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Logic, Moment, Spec, State, Stretch

__all__ = ["Forgetting"]


class Forgetting(Spec, frozen=True, kw_only=True):
    """A logic whose keys are removed when they have not changed for ``after``; one that is due and gets a row stays."""

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
        here = set(rows.column("_key").cast(pa.binary()).to_pylist())
        applied = self.logic.apply(rows, _Inside(state), moment)
        touched: dict[bytes, bytes | None] = {
            key: value for _, key in due if key in here for value in _Inside(state).get([key]).values()
        }
        touched.update(applied.changes)
        changes: dict[bytes, bytes | None] = {timer: None for timer, _ in due}
        changes |= {timers.place(key): None for _, key in due}
        changes |= {_entry(each): touched.pop(each) for each in [*touched] if counts.is_count(each)}
        gone = pa.array(sorted(key for _, key in due if key not in here), pa.large_binary())
        changes |= dict.fromkeys(state.get([_entry(each) for each in counts.places(gone).to_pylist()]))
        before = state.get([timers.place(key) for key in sorted(touched)])
        until = moment.now_us + duration_us(self.after)
        for key, value in touched.items():
            after = timers.kept(until, value) if value is not None else None
            changes |= timers.changed(key, before.get(timers.place(key)), after)
        opens = timers.earliest(state, changes, moment.now_us)
        return Applied(applied.rows, dict(sorted(changes.items())), opens)


class _Inside:
    """A state as the logic inside knows it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        return {key: value for key, value in zip(keys, self.each(keys), strict=True) if value is not None}

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        entries = [_entry(key) for key in keys]
        found = zip(entries, self._state.each(entries), strict=True)
        return [None if value is None else _value(entry, value) for entry, value in found]

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for entry, value in self._state.between(_entry(start), _entry(end)):
            yield _key(entry), _value(entry, value)

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        inside = [(_entry(start), _entry(end), most) for start, end, most in wanted]
        found = self._state.stretches(inside)
        return [[(_key(entry), _value(entry, value)) for entry, value in part] for part in found]


def _entry(key: bytes) -> bytes:
    """Where an entry of the logic inside is."""
    return counts.letter_for(key, b"k")


def _key(entry: bytes) -> bytes:
    return counts.PREFIX + entry[1:] if entry[:1] == counts.LETTER else entry[1:]


def _value(entry: bytes, value: bytes) -> bytes:
    return value if entry[:1] == counts.LETTER else value[8:]
