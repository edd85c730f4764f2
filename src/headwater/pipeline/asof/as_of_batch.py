"""One batch of the lookup as of a time (``lookup_as_of.py``): its output, and the changes of its state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipeline.arrow.row_bytes import unpack
from headwater.pipeline.asof import timeline
from headwater.pipeline.asof.input_rows import (
    Events,
    Numbers,
    columns_of,
    has_key,
    input_schema,
    read_events,
    rows_of,
    times_of,
)
from headwater.pipeline.asof.timeline import FAR, Timeline, Version
from headwater.pipeline.operator.logic import Applied
from headwater.pipeline.operator.two_inputs import LEFT, RIGHT
from headwater.pipeline.operator.weighted_rows import consolidate
from headwater.pipeline.state import time_chunks, timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.time_chunks import Chunk
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

if TYPE_CHECKING:
    from headwater.pipeline.asof.lookup_as_of import LookupAsOf

__all__ = ["AsOfBatch", "value_changes"]

SENT, WAITING = b"e", b"w"
Flags = npt.NDArray[np.bool_]
_NEVER = timers.kept(FAR, b"")
_NO_VERSIONS = timers.kept(FAR, Timeline().packed())


class Part(NamedTuple):
    """Rows to emit: events, the number of the version of each, and their weights."""

    rows: pa.Table
    version: Numbers
    weight: Numbers


class AsOfBatch:
    """One batch. Keys are numbered from 0, in order."""

    def __init__(self, logic: "LookupAsOf", rows: pa.Table, state: State, moment: Moment) -> None:
        self.logic, self.state, self.moment = logic, state, moment
        self.hold = logic.hold_us()
        self.lag = max(moment.watermark - moment.horizon, logic.correct_us, self.hold or 0)
        self.since = moment.watermark - self.lag
        self.left = input_schema(rows.schema, LEFT).append(pa.field(WEIGHT, pa.int32()))
        self.right = pa.schema([input_schema(rows.schema, RIGHT).field(name) for name in logic.columns])
        self.changes: dict[bytes, bytes | None] = {}
        self.out: list[Part] = []
        self.wake: dict[int, int] = {}
        """By key: when its first waiting event is due."""
        self.clear: dict[int, int] = {}
        """By key: when an event is to be forgotten. Taken from its newest known chunk, so a key is looked at
        once per horizon."""

        events = read_events(rows, logic.key, logic.as_of)
        versions = self._versions(rows)
        self._load(events.keys, versions)
        self.lines = timeline.stack_timelines(self._timelines(versions), skip=8)
        self._send(events.lone, np.full(events.lone.num_rows, -1, np.int64))
        changed = self._changed()
        self._correct(changed)
        self._release(changed)
        self._add(events)
        self._forget()
        self._keep()

    def applied(self) -> Applied:
        changes = dict(sorted(self.changes.items()))
        return Applied(
            self._rows(),
            Delta.of(changes, self.state),
            timers.earliest(self.state, changes, self.moment.watermark),
        )

    # ---- keys and versions -----------------------------------------------------------------------------

    def _versions(self, rows: pa.Table) -> dict[bytes, list[Version]]:
        """The versions that the batch brings, by key."""
        mine = rows_of(rows, RIGHT)
        mine = mine.filter(has_key(mine, self.logic.key))
        weights = mine.column(WEIGHT).to_pylist() if self.logic.of_rows else None
        keys = mine.column("_key").cast(pa.binary()).to_pylist()
        table = columns_of(mine, RIGHT)
        return timeline.read_versions(table, keys, self.logic.valid, self.logic.columns, weights)

    def _load(self, event_keys: list[bytes], versions: Mapping[bytes, Sequence[Version]]) -> None:
        """Reads the state of all keys of the batch, and of those whose time-out is due."""
        self.due = {key for _, key in timers.due(self.state, self.moment.watermark)}
        self.keys = sorted({*event_keys, *versions, *self.due}) if versions or self.due else event_keys
        self.number = {key: n for n, key in enumerate(self.keys)} if self.keys is not event_keys else {}
        stored = self.state.get([timers.place(key) for key in self.keys])
        self.kept = [stored.get(timers.place(key)) for key in self.keys]
        self.timer = np.array([FAR if kept is None else timers.time_of(kept) for kept in self.kept], np.int64)
        self.before: dict[int, Timeline] = {}
        self.after: dict[int, Timeline] = {}
        for n in {self.number[key] for key in (*versions, *self.due)}:
            kept, new = self.kept[n], versions.get(self.keys[n], ())
            line = Timeline.loaded(kept, 8) if kept is not None else Timeline()
            self.before[n] = line
            self.after[n] = line.with_rows(new) if self.logic.of_rows else line.with_changes(new)

    def _timelines(self, versions: Mapping[bytes, Sequence[Version]]) -> list[bytes]:
        """The versions of all keys after the batch, as bytes."""
        lines = [_NO_VERSIONS if kept is None else kept for kept in self.kept]
        for n in map(self.number.__getitem__, versions):
            lines[n] = _NEVER + self.after[n].packed()
        return lines

    def _changed(self) -> dict[int, int]:
        """The keys whose answers change, by number, and the time from which they do."""
        firsts = {n: timeline.first_difference(self.before[n], line) for n, line in self.after.items()}
        return {n: first for n, first in sorted(firsts.items()) if first is not None}

    # ---- events ----------------------------------------------------------------------------------------

    def _add(self, events: Events) -> None:
        """New events are emitted, or wait; those that may be corrected are kept."""
        numbers = np.array([self.number.get(key, n) for n, key in enumerate(events.keys)], np.int64)
        number, time = numbers[events.key], events.time
        version = timeline.find_versions(self.lines, number, time)
        waits = self._waits(version, time)
        if waits.any():
            self._store(WAITING, events.rows, number, time, waits)
        self._send(events.rows, version, ~waits)
        if self.logic.final_us is None:
            self._store(SENT, events.rows, number, time, ~waits & (time >= self.since))

    def _waits(self, version: Numbers, time: Numbers) -> Flags:
        if self.hold is None:
            return np.zeros(len(time), bool)
        early: Flags = time + self.hold >= self.moment.watermark
        return early if self.logic.final_us is not None else early & (version < 0)

    def _correct(self, changed: Mapping[int, int]) -> None:
        """Retracts and emits again the events that were emitted with another version."""
        if self.logic.final_us is not None:
            return
        touched = [
            chunk
            for n, first in changed.items()
            for chunk in time_chunks.found(self.state, SENT, self.keys[n], n, max(first, self.since))
        ]
        if not touched:
            return
        rows, number, _ = time_chunks.loaded(touched, self.left)
        time = times_of(rows, self.logic.as_of)
        lines = timeline.stack_timelines([self.before[n].packed() for n in changed])
        place = np.searchsorted(np.array(list(changed), np.int64), number)
        old = timeline.find_versions(lines, place, time)
        old = np.where(old >= 0, old + len(self.lines.valid), -1)
        self.lines = timeline.concat_timelines(self.lines, lines)
        new = timeline.find_versions(self.lines, number, time)
        differs = ~timeline.same_versions(self.lines, old, new) & (time >= self.since)
        self._send(rows, old, differs, sign=-1)
        self._send(rows, new, differs)

    def _release(self, changed: Mapping[int, int]) -> None:
        """Emits events that have waited long enough, or whose version has arrived."""
        if self.hold is None:
            return
        passed = self.moment.watermark - self.hold
        chunks: list[Chunk] = []
        for n in sorted({*changed, *(self.number[key] for key in self.due)}):
            all_of_key = n in changed and self.logic.final_us is None
            for chunk in time_chunks.found(self.state, WAITING, self.keys[n], n):
                if not all_of_key and time_chunks.time_of(chunk.name) >= passed:
                    self._wake_at(n, time_chunks.time_of(chunk.name))
                    break
                chunks.append(chunk)
        if not chunks:
            return
        rows, number, chunk_of = time_chunks.loaded(chunks, self.left)
        time = times_of(rows, self.logic.as_of)
        version = timeline.find_versions(self.lines, number, time)
        waits = self._waits(version, time)
        opened = np.zeros(len(chunks), bool)
        opened[chunk_of[~waits]] = True
        for chunk, is_open in zip(chunks, opened, strict=True):
            if is_open:
                self.changes[chunk.name] = None
            else:
                self._wake_at(chunk.number, time_chunks.time_of(chunk.name))
        self._store(WAITING, rows, number, time, waits & opened[chunk_of])
        self._send(rows, version, ~waits)
        if self.logic.final_us is None:
            self._store(SENT, rows, number, time, ~waits & (time >= self.since))

    def _send(self, rows: pa.Table, version: Numbers, which: Flags | None = None, sign: int = 1) -> None:
        if which is not None and not which.all():
            rows, version = rows.filter(pa.array(which)), version[which]
        if self.logic.missing == "drop" and (version < 0).any():
            rows, version = rows.filter(pa.array(version >= 0)), version[version >= 0]
        if rows.num_rows:
            weight = rows.column(WEIGHT).combine_chunks().to_numpy()
            self.out.append(Part(rows.drop_columns([WEIGHT]), version, weight * sign))

    # ---- the state -------------------------------------------------------------------------------------

    def _store(self, letter: bytes, rows: pa.Table, number: Numbers, time: Numbers, which: Flags) -> None:
        if not which.any():
            return
        if not which.all():
            rows, number, time = rows.filter(pa.array(which)), number[which], time[which]
        steps = number[1:] - number[:-1]
        if ((steps < 0) | ((steps == 0) & (time[1:] < time[:-1]))).any():
            order = np.lexsort((time, number))
            rows, number, time = rows.take(pa.array(order)), number[order], time[order]
        waits = letter == WAITING
        chosen = time_chunks.Chosen(rows, number, time)
        chunks = time_chunks.chunked(self.state, self.changes, letter, self.keys, chosen, first=waits)
        self.changes |= chunks.entries
        if waits:
            for n, first in zip(chunks.numbers, chunks.times, strict=True):
                self._wake_at(n, first)
        else:
            after = self.lag + 1
            self.clear |= {n: last + after for n, last in zip(chunks.numbers, chunks.times, strict=True)}

    def _wake_at(self, n: int, first: int) -> None:
        self.wake[n] = min(first + (self.hold or 0) + 1, self.wake.get(n, FAR))

    def _forget(self) -> None:
        """Drops the events that no version can change any more."""
        for key in self.due if self.logic.final_us is None else ():
            n = self.number[key]
            for chunk in time_chunks.found(self.state, SENT, key, n):
                time_us = time_chunks.time_of(chunk.name)
                if time_us >= self.since:
                    self.clear.setdefault(n, time_us + self.lag + 1)
                    break
                self.changes[chunk.name] = None

    def _keep(self) -> None:
        """Stores the versions of keys, and their next time-outs."""
        nexts = self.clear if not self.wake else _earliest(self.clear, self.wake)
        for n, line in self.after.items():
            key = self.keys[n]
            at = nexts.get(n, FAR)
            if key not in self.due:
                at = min(at, int(self.timer[n]))
            if not self.logic.of_rows:
                line = line.since(self.since)  # noqa: PLW2901
                first = line.next_us()
                at = min(at, first + self.lag) if first != FAR else at
            new = timers.kept(at, line.packed()) if line.entries or at != FAR else None
            if new != self.kept[n]:
                self.changes |= value_changes(key, self.kept[n], new)
        timer = self.timer.tolist()
        for n, at in nexts.items():
            if at < timer[n] and n not in self.after:
                old = self.kept[n]
                new = timers.kept(at, _NO_VERSIONS[8:] if old is None else old[8:])
                self.changes |= value_changes(self.keys[n], old, new)

    # ---- rows ------------------------------------------------------------------------------------------

    def _rows(self) -> pa.Table:
        if not self.out:
            no_numbers = np.zeros(0, np.int64)
            return self._table(self.left.empty_table().drop_columns([WEIGHT]), no_numbers, no_numbers)
        rows = pa.concat_tables([part.rows for part in self.out])
        version = np.concatenate([part.version for part in self.out])
        return self._table(rows, version, np.concatenate([part.weight for part in self.out]))

    def _table(self, rows: pa.Table, version: Numbers, weight: Numbers) -> pa.Table:
        used = np.unique(version[version >= 0])
        table = unpack(self.lines.data, self.lines.begins[used], self.right)
        ids = timeline.version_ids(self.lines.valid[used], self.lines.order[used])
        table = table.append_column(self.logic.version, ids)
        place = pa.array(np.searchsorted(used, version), mask=version < 0)
        for name, column in zip(table.column_names, table.take(place).columns, strict=True):
            rows = rows.append_column(name, column)
        if self.logic.final_us is None:
            rows = rows.append_column(WEIGHT, pa.array(weight, pa.int32()))
        return consolidate(rows) if self.logic.retractable and (weight < 0).any() else rows


def _earliest(some: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    return {n: min(some.get(n, FAR), others.get(n, FAR)) for n in {*some, *others}}


def value_changes(key: bytes, before: bytes | None, after: bytes | None) -> dict[bytes, bytes | None]:
    """Like ``timers.changed``, but without an entry for a key that has no time-out."""
    changes = timers.changed(key, before, after)
    changes.pop(timers.entry(FAR, key), None)
    return changes
