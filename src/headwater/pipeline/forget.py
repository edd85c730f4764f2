"""Forget: a time to live for the state of any operator. A key that has not changed for so long by the clock is removed.

Each value is kept with the time at which it goes, and each of these times with its key, in order:

    k KEY           → TIME VALUE
    t TIME DIGEST   → KEY
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.late import duration_us
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Logic, Moment, Spec, State

__all__ = ["Forgetting", "earliest", "packed", "records", "timer", "unpacked"]

_time = struct.Struct(">q")


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
        due = list(state.between(b"t", timer(moment.now_us + 1)))
        here = set(rows.column("_key").cast(pa.binary()).to_pylist())
        applied = self.logic.apply(rows, _Inside(state), moment)
        touched: dict[bytes, bytes | None] = {
            key: value for _, key in due if key in here for value in _Inside(state).get([key]).values()
        }
        touched |= applied.changes
        changes: dict[bytes, bytes | None] = {timer: None for timer, _ in due}
        changes |= {b"k" + key: None for _, key in due}
        before = state.get([b"k" + key for key in sorted(touched)])
        until = moment.now_us + duration_us(self.after)
        for key, value in touched.items():
            old = before.get(b"k" + key)
            if old is not None:
                changes[timer(unpacked(old), key)] = None
            changes[b"k" + key] = None if value is None else packed(until) + value
            if value is not None:
                changes[timer(until, key)] = key
        return Applied(applied.rows, dict(sorted(changes.items())), earliest(state, changes, moment.now_us))


class _Inside:
    """A state as the logic inside knows it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        found = self._state.get([b"k" + key for key in keys])
        return {key[1:]: value[8:] for key, value in found.items()}

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._state.between(b"k" + start, b"k" + end):
            yield key[1:], value[8:]


def packed(time_us: int) -> bytes:
    """A time-out as it stands before a value."""
    return _time.pack(time_us)


def unpacked(value: bytes) -> int:
    """The time-out of a value."""
    time_us: int = _time.unpack(value[:8])[0]
    return time_us


def timer(time_us: int, key: bytes | None = None) -> bytes:
    """Where a time-out stands in the order of time; without a key, before all of that time."""
    return (
        b"t"
        + _time.pack(time_us)
        + (hashlib.blake2b(key, digest_size=16).digest() if key is not None else b"")
    )


def earliest(state: State, changes: Mapping[bytes, bytes | None], reached: int) -> int | None:
    """The first time-out that is open after the changes, when all up to ``reached`` have been seen to."""
    added = min(
        (key for key, value in changes.items() if key[:1] == b"t" and value is not None), default=None
    )
    kept = next(
        (key for key, _ in state.between(timer(reached + 1), b"u") if changes.get(key, b"") is not None),
        None,
    )
    first = min((key for key in (added, kept) if key is not None), default=None)
    return _time.unpack(first[1:9])[0] if first is not None else None


def records(changes: Iterator[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes | None]]:
    """The keys and values in a state file of such a logic, without what is for its own use."""
    for key, value in changes:
        if key[:1] == b"k":
            yield key[1:], value[8:] if value is not None else None
