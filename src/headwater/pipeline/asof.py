"""AsOf: each event of a stream with the version of its key that held at the event's own time, whichever of the two comes first.

An event meets the versions that have come so far, and is kept as long as one may still come that changes its answer: then the row is taken
back and the right one goes out. What is kept reaches ``lag`` behind the watermark: how long stragglers are waited for, or what
the operator itself was told to wait, whichever is longer.

    k KEY                → TIME VERSIONS    the versions of a key (``timeline.py``), and when it has to be looked at
    t TIME DIGEST        → KEY              the same, by time
    e DIGEST TIME NAME   → KEY EVENTS       events that went out and may have to be corrected (``chunks.py``)
    w DIGEST TIME NAME   → KEY EVENTS       events that wait
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headwater.pipeline import chunks, timeline, timers
from headwater.pipeline.chunks import Chunk
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.pair import LEFT, RIGHT
from headwater.pipeline.rowbytes import pack, unpack
from headwater.pipeline.sorting import by_bytes, in_order, numbered
from headwater.pipeline.timeline import FAR, Held
from headwater.pipeline.wire import WEIGHT

__all__ = ["AsOf"]

SENT, WAITING = b"e", b"w"
_NEVER = timers.kept(FAR, b"")
_NOTHING = timers.kept(FAR, Held().packed())


class AsOf(Spec, frozen=True, kw_only=True):
    """Rows of the stream with the columns of their version and its id. Weighted, or with ``final_us`` each once."""

    key: tuple[str, ...]
    as_of: str
    valid: str
    columns: tuple[str, ...]
    """Of the table, that go on."""
    version: str = "version"
    missing: str = "keep"
    wait_us: int = 0
    final_us: int | None = None
    correct_us: int = 0
    of_rows: bool = False
    """The table has a row for each version, and rows are taken out by their weight."""
    taken: bool = False
    """Events may be taken back, too."""
    kinds: str = ""
    """What the rows in the state are made of."""
    kind: str = "enrich"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        left, right = rows[LEFT].dataType, rows[RIGHT].dataType
        own = [StructField(name, right[name].dataType) for name in self.columns]
        weight = [] if self.final_us is not None else [StructField(WEIGHT, IntegerType())]
        return StructType([*left.fields, *own, StructField(self.version, StringType()), *weight])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        return _Work(self, rows, state, moment).done()

    def hold_us(self) -> int | None:
        """How long an event waits behind its time; None when none does."""
        if self.final_us is not None:
            return self.final_us
        return self.wait_us if self.missing == "wait" else None


class _Part(NamedTuple):
    """Rows that go out: events, the number of the version of each, and their weights."""

    rows: pa.Table
    version: Any
    weight: Any


class _Work:
    """One batch."""

    def __init__(self, logic: AsOf, rows: pa.Table, state: State, moment: Moment) -> None:
        self.logic, self.state, self.moment = logic, state, moment
        self.hold = logic.hold_us()
        self.lag = max(moment.watermark - moment.horizon, logic.correct_us, self.hold or 0)
        self.since = moment.watermark - self.lag
        self.left = _left_schema(rows.schema)
        self.right = pa.schema([inner(rows.schema, RIGHT).field(name) for name in logic.columns])
        self.changes: dict[bytes, bytes | None] = {}
        self.out: list[_Part] = []
        self.wake: dict[int, int] = {}
        """When the first event that waits is due, by the number of its key."""
        self.clear: dict[int, int] = {}
        """When a key has something to forget. Not at the first chunk, but at the newest that is known: so a key is looked at once in a horizon."""

        events, at, lone = _events(rows, logic)
        came = _came(rows, logic)
        self.due = {key for _, key in timers.due(state, moment.watermark)}
        self.keys = sorted({*at.keys, *came, *self.due}) if came or self.due else at.keys
        self.number = {key: n for n, key in enumerate(self.keys)} if self.keys is not at.keys else {}
        known = state.get([timers.place(key) for key in self.keys])
        self.known = [known.get(timers.place(key)) for key in self.keys]
        self.timer = np.array(
            [FAR if kept is None else timers.time_of(kept) for kept in self.known], np.int64
        )
        self.before: dict[int, Held] = {}
        self.after: dict[int, Held] = {}
        for n in {self.number[key] for key in (*came, *self.due)}:
            kept, versions = self.known[n], came.get(self.keys[n], ())
            held = Held.loaded(kept, 8) if kept is not None else Held()
            self.before[n] = held
            self.after[n] = held.with_rows(versions) if logic.of_rows else held.with_changes(versions)
        self.lines = timeline.stacked(self._timelines(came), skip=8)
        self._send(lone, np.full(lone.num_rows, -1, np.int64))
        changed = self._changed()
        self._correct(changed)
        self._release(changed)
        numbers = np.array([self.number.get(key, n) for n, key in enumerate(at.keys)], np.int64)
        self._take(events, numbers[at.key], at.time)
        self._forget()
        self._keep()

    def done(self) -> Applied:
        changes = dict(sorted(self.changes.items()))
        return Applied(self._rows(), changes, timers.earliest(self.state, changes, self.moment.watermark))

    def _timelines(self, came: Mapping[bytes, Any]) -> list[bytes]:
        """The versions of all keys after the batch, as bytes."""
        lines = [_NOTHING if kept is None else kept for kept in self.known]
        for n in map(self.number.__getitem__, came):
            lines[n] = _NEVER + self.after[n].packed()
        return lines

    def _changed(self) -> dict[int, int]:
        """The keys whose answers change, by number, and from when on."""
        firsts = {n: timeline.changed_from(self.before[n], held) for n, held in self.after.items()}
        return {n: first for n, first in sorted(firsts.items()) if first is not None}

    # ---- events ----------------------------------------------------------------------------------------

    def _take(self, events: pa.Table, number: Any, time: Any) -> None:
        """New events: out they go, or they wait; what may be corrected is kept."""
        version = timeline.searched(self.lines, number, time)
        waits = self._waits(version, time)
        if waits.any():
            self._store(WAITING, events, number, time, waits)
        self._send(events, version, ~waits)
        if self.logic.final_us is None:
            self._store(SENT, events, number, time, ~waits & (time >= self.since))

    def _waits(self, version: Any, time: Any) -> Any:
        if self.hold is None:
            return np.zeros(len(time), bool)
        early = time + self.hold >= self.moment.watermark
        return early if self.logic.final_us is not None else early & (version < 0)

    def _correct(self, changed: Mapping[int, int]) -> None:
        """Events that went out, and would go out otherwise now."""
        if self.logic.final_us is not None:
            return
        touched = [
            chunk
            for n, first in changed.items()
            for chunk in chunks.found(self.state, SENT, self.keys[n], n, max(first, self.since))
        ]
        if not touched:
            return
        rows, number, _ = chunks.loaded(touched, self.left)
        time = times(rows, self.logic.as_of)
        lines = timeline.stacked([self.before[n].packed() for n in changed])
        place = np.searchsorted(np.array(list(changed), np.int64), number)
        old = timeline.searched(lines, place, time)
        old = np.where(old >= 0, old + len(self.lines.valid), -1)
        self.lines = timeline.joined(self.lines, lines)
        new = timeline.searched(self.lines, number, time)
        other = ~timeline.same_versions(self.lines, old, new) & (time >= self.since)
        self._send(rows, old, other, sign=-1)
        self._send(rows, new, other)

    def _release(self, changed: Mapping[int, int]) -> None:
        """Events that have waited long enough, or whose version has come."""
        if self.hold is None:
            return
        passed = self.moment.watermark - self.hold
        looked: list[Chunk] = []
        for n in sorted({*changed, *(self.number[key] for key in self.due)}):
            everything = n in changed and self.logic.final_us is None
            for chunk in chunks.found(self.state, WAITING, self.keys[n], n):
                if not everything and chunks.time_of(chunk.name) >= passed:
                    self._wakes(n, chunks.time_of(chunk.name))
                    break
                looked.append(chunk)
        if not looked:
            return
        rows, number, chunk = chunks.loaded(looked, self.left)
        time = times(rows, self.logic.as_of)
        version = timeline.searched(self.lines, number, time)
        waits = self._waits(version, time)
        opened = np.zeros(len(looked), bool)
        opened[chunk[~waits]] = True
        for each, is_open in zip(looked, opened, strict=True):
            if is_open:
                self.changes[each.name] = None
            else:
                self._wakes(each.number, chunks.time_of(each.name))
        self._store(WAITING, rows, number, time, waits & opened[chunk])
        self._send(rows, version, ~waits)
        if self.logic.final_us is None:
            self._store(SENT, rows, number, time, ~waits & (time >= self.since))

    def _send(self, rows: pa.Table, version: Any, which: Any = None, sign: int = 1) -> None:
        if which is not None and not which.all():
            rows, version = rows.filter(pa.array(which)), version[which]
        if self.logic.missing == "drop" and (version < 0).any():
            rows, version = rows.filter(pa.array(version >= 0)), version[version >= 0]
        if rows.num_rows:
            weight = rows.column(WEIGHT).combine_chunks().to_numpy()
            self.out.append(_Part(rows.drop_columns([WEIGHT]), version, weight * sign))

    # ---- what is kept ----------------------------------------------------------------------------------

    def _store(self, letter: bytes, rows: pa.Table, number: Any, time: Any, which: Any) -> None:
        if not which.any():
            return
        if not which.all():
            rows, number, time = rows.filter(pa.array(which)), number[which], time[which]
        steps = number[1:] - number[:-1]
        if ((steps < 0) | ((steps == 0) & (time[1:] < time[:-1]))).any():
            order = np.lexsort((time, number))
            rows, number, time = rows.take(pa.array(order)), number[order], time[order]
        waits = letter == WAITING
        chosen = chunks.Chosen(rows, number, time)
        made = chunks.chunked(self.state, self.changes, letter, self.keys, chosen, first=waits)
        self.changes |= made.entries
        if waits:
            for n, first in zip(made.numbers, made.times, strict=True):
                self._wakes(n, first)
        else:
            behind = self.lag + 1
            self.clear |= {n: last + behind for n, last in zip(made.numbers, made.times, strict=True)}

    def _wakes(self, n: int, first: int) -> None:
        self.wake[n] = min(first + (self.hold or 0) + 1, self.wake.get(n, FAR))

    def _forget(self) -> None:
        """Events that no version can change any more."""
        for key in self.due if self.logic.final_us is None else ():
            n = self.number[key]
            for chunk in chunks.found(self.state, SENT, key, n):
                time_us = chunks.time_of(chunk.name)
                if time_us >= self.since:
                    self.clear.setdefault(n, time_us + self.lag + 1)
                    break
                self.changes[chunk.name] = None

    def _keep(self) -> None:
        """The versions of keys, and when these have to be looked at."""
        nexts = self.clear if not self.wake else _earliest(self.clear, self.wake)
        for n, held in self.after.items():
            key = self.keys[n]
            at = nexts.get(n, FAR)
            if key not in self.due:
                at = min(at, int(self.timer[n]))
            if not self.logic.of_rows:
                held = held.since(self.since)  # noqa: PLW2901
                first = held.next_us()
                at = min(at, first + self.lag) if first != FAR else at
            new = timers.kept(at, held.packed()) if held.entries or at != FAR else None
            if new != self.known[n]:
                self.changes |= looked_at(key, self.known[n], new)
        timer = self.timer.tolist()
        for n, at in nexts.items():
            if at < timer[n] and n not in self.after:
                old = self.known[n]
                new = timers.kept(at, _NOTHING[8:] if old is None else old[8:])
                self.changes |= looked_at(self.keys[n], old, new)

    # ---- rows ------------------------------------------------------------------------------------------

    def _rows(self) -> pa.Table:
        if not self.out:
            return self._table(self.left.empty_table().drop_columns([WEIGHT]), np.zeros(0, np.int64), [])
        rows = pa.concat_tables([part.rows for part in self.out])
        version = np.concatenate([part.version for part in self.out])
        return self._table(rows, version, np.concatenate([part.weight for part in self.out]))

    def _table(self, rows: pa.Table, version: Any, weight: Any) -> pa.Table:
        used = np.unique(version[version >= 0])
        table = unpack(self.lines.data, self.lines.begins[used], self.right)
        ids = timeline.ids(self.lines.valid[used], self.lines.order[used])
        table = table.append_column(self.logic.version, ids)
        place = pa.array(np.searchsorted(used, version), mask=version < 0)
        for name, column in zip(table.column_names, table.take(place).columns, strict=True):
            rows = rows.append_column(name, column)
        if self.logic.final_us is None:
            rows = rows.append_column(WEIGHT, pa.array(weight, pa.int32()))
        return _consolidated(rows) if self.logic.taken else rows


class _At(NamedTuple):
    """The keys of some rows in order, which of them each has, and its time."""

    keys: list[bytes]
    key: Any
    time: Any


def inner(schema: pa.Schema, side: str) -> pa.Schema:
    """The columns of one input. Any may be null: what the state gives back has to be of the same kind."""
    kind = schema.field(side).type
    return pa.schema(
        [pa.field(each.name, each.type) for each in (kind.field(n) for n in range(kind.num_fields))]
    )


def _left_schema(schema: pa.Schema) -> pa.Schema:
    return inner(schema, LEFT).append(pa.field(WEIGHT, pa.int32()))


def side(rows: pa.Table, side: str) -> pa.Table:
    """The rows of one input."""
    return rows.filter(pc.is_valid(rows.column(side)))


def columns(rows: pa.Table, side: str) -> pa.Table:
    return pa.table(rows.column(side).combine_chunks().flatten(), schema=inner(rows.schema, side))


def joins(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """Whether rows have something to be joined on: nulls meet nothing."""
    there = [pc.is_valid(rows.column(name)) for name in key]
    both = there[0]
    for each in there[1:]:
        both = pc.and_(both, each)
    return both


def _came(rows: pa.Table, logic: AsOf) -> dict[bytes, list[timeline.Fresh]]:
    mine = side(rows, RIGHT)
    mine = mine.filter(joins(mine, logic.key))
    weights = mine.column(WEIGHT).to_pylist() if logic.of_rows else None
    keys = mine.column("_key").cast(pa.binary()).to_pylist()
    return timeline.fresh(columns(mine, RIGHT), keys, logic.valid, logic.columns, weights)


def _events(rows: pa.Table, logic: AsOf) -> tuple[pa.Table, _At, pa.Table]:
    """The events in the order of key, time and bytes; and those that have no key or no time."""
    mine = side(rows, LEFT)
    whole = columns(mine, LEFT).append_column(WEIGHT, mine.column(WEIGHT).cast(pa.int32()))
    fits = pc.and_(joins(mine, logic.key), pc.is_valid(whole.column(logic.as_of)))
    lone = by_bytes(whole.filter(pc.invert(fits)))
    if lone.num_rows:
        whole, mine = whole.filter(fits), mine.filter(fits)
    keys, key = numbered(mine.column("_key"))
    time = times(whole, logic.as_of)
    order = in_order(whole, key, time)
    return whole.take(pa.array(order)), _At(keys.to_pylist(), key[order], time[order]), lone


def times(rows: pa.Table, name: str) -> Any:
    return rows.column(name).cast(timeline.TIMES).cast(pa.int64()).to_numpy()


def _consolidated(rows: pa.Table) -> pa.Table:
    """Without rows whose weights cancel."""
    weights = rows.column(WEIGHT).to_pylist()
    if min(weights, default=1) > 0:
        return rows
    data = pack(rows.drop_columns([WEIGHT])).to_pylist()
    left: Counter[bytes] = Counter()
    for row, weight in zip(data, weights, strict=True):
        left[row] += weight
    chosen = []
    for n, (row, weight) in enumerate(zip(data, weights, strict=True)):
        if left[row] * weight > 0:
            chosen.append(n)
            left[row] -= weight
    return rows.take(pa.array(chosen, pa.int64()))


def _earliest(some: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    return {n: min(some.get(n, FAR), others.get(n, FAR)) for n in {*some, *others}}


def looked_at(key: bytes, before: bytes | None, after: bytes | None) -> dict[bytes, bytes | None]:
    """As ``timers.changed``, but for what never has to be looked at."""
    changes = timers.changed(key, before, after)
    changes.pop(timers.entry(FAR, key), None)
    return changes
