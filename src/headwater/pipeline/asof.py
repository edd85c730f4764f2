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

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headwater.pipeline import chunks, packed, timeline, timers
from headwater.pipeline.chunks import Chunk
from headwater.pipeline.layout import TIMELINE
from headwater.pipeline.operator import Applied, Moment, Spec, State
from headwater.pipeline.pair import LEFT, RIGHT
from headwater.pipeline.timeline import FAR, Held, Pool
from headwater.pipeline.wire import WEIGHT

__all__ = ["AsOf"]

SENT, WAITING = b"e", b"w"
_encode = msgspec.msgpack.Encoder().encode
_held = msgspec.msgpack.Decoder(Held)
_NONE = _encode(Held())


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
    layout: str = TIMELINE

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
        self.pool = Pool()
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
        self.number = {key: n for n, key in enumerate(self.keys)}
        self.known = state.get([timers.place(key) for key in self.keys])
        self.before = [self._loaded(key) for key in self.keys]
        self.after = list(self.before)
        for key, versions in came.items():
            held = self.before[self.number[key]]
            self.after[self.number[key]] = (
                held.with_rows(versions) if logic.of_rows else held.with_changes(versions)
            )
        self.lines = timeline.stacked(self.after, self.pool)
        self._send(lone, np.full(lone.num_rows, -1, np.int64))
        changed = self._changed(came)
        self._correct(changed)
        self._release(changed)
        numbers = np.array([self.number[key] for key in at.keys], np.int64)
        self._take(events, numbers[at.key] if len(at.key) else at.key, at.time)
        self._forget()
        self._keep(came)

    def done(self) -> Applied:
        changes = dict(sorted(self.changes.items()))
        return Applied(self._rows(), changes, timers.earliest(self.state, changes, self.moment.watermark))

    def _loaded(self, key: bytes) -> Held:
        kept = self.known.get(timers.place(key))
        return _held.decode(memoryview(kept)[8:]) if kept is not None else Held()

    def _changed(self, came: Mapping[bytes, Any]) -> dict[int, int]:
        """The keys whose answers change, by number, and from when on."""
        firsts = {n: timeline.changed_from(self.before[n], self.after[n]) for n in map(self.number.get, came)}
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
        lines = timeline.stacked([self.before[n] for n in changed], self.pool)
        place = np.searchsorted(np.array(list(changed), np.int64), number)
        old = timeline.searched(lines, place, time)
        new = timeline.searched(self.lines, number, time)
        other = ~timeline.same_versions(self.pool, old, new) & (time >= self.since)
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
                    self._wakes(chunk)
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
                self._wakes(each)
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
        for each in chunks.chunked(
            self.state, self.changes, letter, self.keys, rows, number, time, first=waits
        ):
            self.changes[each.name] = each.value
            if waits:
                self._wakes(each)
            else:
                self.clear[each.number] = chunks.time_of(each.name) + self.lag + 1

    def _wakes(self, chunk: Chunk) -> None:
        due = chunks.time_of(chunk.name) + (self.hold or 0) + 1
        self.wake[chunk.number] = min(due, self.wake.get(chunk.number, FAR))

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

    def _keep(self, came: Mapping[bytes, Any]) -> None:
        """The versions of keys, and when these have to be looked at."""
        looked = {self.number[key] for key in (*came, *self.due)}
        for n in looked.union(self.wake, self.clear):
            key = self.keys[n]
            old = self.known.get(timers.place(key))
            at = min(self.wake.get(n, FAR), self.clear.get(n, FAR))
            if old is not None and key not in self.due:
                at = min(at, timers.time_of(old))
            if n in looked:
                held = self.after[n] if self.logic.of_rows else self.after[n].since(self.since)
                first = FAR if self.logic.of_rows else held.next_us()
                at = min(at, first + self.lag) if first != FAR else at
                value = _encode(held) if held.valid or at != FAR else None
            else:  # only events came
                value = _NONE if old is None else old[8:]
            new = timers.kept(at, value) if value is not None else None
            if new != old:
                self.changes |= looked_at(key, old, new)

    # ---- rows ------------------------------------------------------------------------------------------

    def _rows(self) -> pa.Table:
        if not self.out:
            return self._table(self.left.empty_table().drop_columns([WEIGHT]), np.zeros(0, np.int64), [])
        rows = pa.concat_tables([part.rows for part in self.out])
        version = np.concatenate([part.version for part in self.out])
        return self._table(rows, version, np.concatenate([part.weight for part in self.out]))

    def _table(self, rows: pa.Table, version: Any, weight: Any) -> pa.Table:
        used = np.unique(version[version >= 0])
        data = [self.pool.rows[n] for n in used.tolist()]
        starts = np.concatenate(([0], np.cumsum([len(each) for each in data])))[:-1].astype(np.int64)
        table = packed.unpack(b"".join(data), starts, self.right)
        table = table.append_column(self.logic.version, ids(self.pool, used.tolist()))
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
    kind = schema.field(side).type
    return pa.schema([kind.field(n) for n in range(kind.num_fields)])


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
    lone = whole.filter(pc.invert(fits))
    if lone.num_rows:
        lone = lone.take(pa.array(sorted(range(lone.num_rows), key=packed.pack(lone).rows().__getitem__)))
        whole, mine = whole.filter(fits), mine.filter(fits)
    encoded = mine.column("_key").cast(pa.binary()).combine_chunks().dictionary_encode()
    by_key = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(by_key), np.int64)
    rank[by_key.to_numpy()] = np.arange(len(by_key))
    key = rank[encoded.indices.to_numpy()]
    time = times(whole, logic.as_of)
    order = _settled(whole, key, time, np.lexsort((time, key)))
    at = _At(encoded.dictionary.take(by_key).to_pylist(), key[order], time[order])
    return whole.take(pa.array(order)), at, lone


def _settled(rows: pa.Table, key: Any, time: Any, order: Any) -> Any:
    """The order in which rows with the same key and time stand by their bytes."""
    same = (key[order][1:] == key[order][:-1]) & (time[order][1:] == time[order][:-1])
    if not same.any():
        return order
    tied = np.concatenate(([False], same)) | np.concatenate((same, [False]))
    places = np.flatnonzero(tied)
    data = packed.pack(rows.take(pa.array(order[places]))).rows()
    run = np.cumsum(~np.concatenate(([False], same)))[places].tolist()
    by_bytes = sorted(range(len(places)), key=lambda n: (run[n], data[n]))
    order = order.copy()
    order[places] = order[places][by_bytes]
    return order


def times(rows: pa.Table, name: str) -> Any:
    return rows.column(name).cast(timeline.TIMES).cast(pa.int64()).to_numpy()


def _consolidated(rows: pa.Table) -> pa.Table:
    """Without rows whose weights cancel."""
    weights = rows.column(WEIGHT).to_pylist()
    if min(weights, default=1) > 0:
        return rows
    data = packed.pack(rows.drop_columns([WEIGHT])).rows()
    left: Counter[bytes] = Counter()
    for row, weight in zip(data, weights, strict=True):
        left[row] += weight
    chosen = []
    for n, (row, weight) in enumerate(zip(data, weights, strict=True)):
        if left[row] * weight > 0:
            chosen.append(n)
            left[row] -= weight
    return rows.take(pa.array(chosen, pa.int64()))


def ids(pool: Pool, numbers: Sequence[int]) -> pa.Array:
    """The ids of versions: the time from which each holds, and where it stands in the log if that is known."""
    times = pa.array([pool.valid[n] for n in numbers], pa.int64()).cast(pa.timestamp("us"))
    orders = [pool.order[n] for n in numbers]
    ends = pa.array(["Z" if order < 0 else f"Z#{order}" for order in orders], pa.string())
    return pc.binary_join_element_wise(pc.strftime(times, "%Y-%m-%dT%H:%M:%S"), ends, "")


def looked_at(key: bytes, before: bytes | None, after: bytes | None) -> dict[bytes, bytes | None]:
    """As ``timers.changed``, but for what never has to be looked at."""
    changes = timers.changed(key, before, after)
    never = [kept for kept in (before, after) if kept is not None and timers.time_of(kept) == FAR]
    for kept in never:
        changes.pop(timers.entry(FAR, key), None)
    return changes


