"""The queries of simulated views over the records of one batch, in plain Python; state files are written by the real code (``operator.answers``)."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.declare.spec import Stream
from headwater.pipeline.operator.building import OBSERVED
from headwater.pipeline.operator.count_latest import Count
from headwater.pipeline.operator.logic import Logic
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.operator.shell import FILE, answers, to_arrow
from headwater.pipeline.output.changed_rows import NO_ROWS, ORDER, PUBLISH, AppendedRows, ChangedRows
from headwater.pipeline.output.complete_rows import CompleteRows
from headwater.pipeline.time import late_split
from headwater.pipeline.wire.wire import INVALID
from headwater.record import Record
from headwater.result import TICKS
from simulation.query import Rows

__all__ = ["COUNTED", "WINDOW_US", "Computing", "parsed", "rows_of"]

WINDOW_US = 60_000_000
COUNTED = "count1"
"""The operator of the view of totals."""
COUNTED_ROWS = StructType([StructField("key", StringType()), StructField("count", LongType())])
KINDS = {
    "_key": pa.binary(),
    "_value": pa.binary(),
    "_until": pa.int64(),
    ORDER: pa.int64(),
    "_shard": pa.int32(),
}


class Event(NamedTuple):
    """A valid record."""

    stream: str
    partition: int
    offset: int
    key: str
    time_us: int

    @property
    def window(self) -> int:
        return self.time_us // WINDOW_US * WINDOW_US


def parsed(value: bytes | None) -> tuple[str, int] | None:
    """Key and time of an event, or None for an invalid record."""
    try:
        found = json.loads(value or b"-")
        return found["key"], found["time_us"]
    except (ValueError, KeyError):
        return None


def rows_of(query: str, key: str, *more: int) -> tuple[bytes, bytes]:
    """The key and the row that a view has of an event or a window; ``more`` are its numbers."""
    match query:
        case "counts" | "ready":
            start, count = more
            return b"%s@%d" % (key.encode(), start), b'{"n":%d}' % count
        case "totals":
            return key.encode(), b'{"n":%d}' % more[0]
        case "newest":
            return key.encode(), b'{"at":%d}' % more[0]
    return key.encode(), b'{"place":%d,"at":%d}' % more


class Computing:
    """The query of a view over the records of one batch."""

    def __init__(self, rows: Rows, plan: Plan) -> None:
        self._query, self._plan, self._name = rows.query, plan, rows.query.prepared.view.name
        self._judge: Any = rows.query.prepared.judge
        self.state: dict[str, int] = rows.query.state(rows.batch)
        """Of the engine's own operators: the count of each window."""
        self.seen: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._kept: list[Event] = []
        self._ticked = any(
            ends[TICKS] != starts[TICKS]
            for starts, ends in zip(rows.starts, rows.ends, strict=True)
            if TICKS in ends
        )
        self._dropped_ms, self._forgotten_ms = rows.query.marks(rows.batch)
        self._attempts = 0

    def hear(self, stream: Stream, records: Iterable[tuple[int, Record]]) -> None:
        found = [(partition, record, parsed(record.value)) for partition, record in records]
        events = [Event(stream.name, p, r.offset, *event) for p, r, event in found if event is not None]
        counts = {"records": len(found) - len(events), "valid": len(events)}
        if self._judge is None:
            self._kept += events
            self.seen[f"{INVALID} {stream.name}"] = counts
            return
        late = [event for event in events if event.time_us < self._judge.late_us]
        self._kept += [event for event in events if event.time_us >= self._judge.late_us]
        greatest: dict[int, int] = {}
        for event in events:
            if event.time_us < self._judge.future_us:
                greatest[event.partition] = max(event.time_us, greatest.get(event.partition, event.time_us))
        heard: dict[str, Any] = {"late": len(late), "kept": len(events) - len(late)}
        if not self._judge.horizon_us:
            times = {str(n): greatest.get(n) for n in range(self._judge.places(stream))}
            self.seen[f"{INVALID} {stream.name}"] = counts | heard | times
            return
        notes = json.dumps({f"{stream.name}/{place}": at for place, at in greatest.items()})
        straggling = [e for e in events if self._judge.late_us <= e.time_us < self._plan.watermark]
        named = [f"{event.partition}@{event.offset}" for event in straggling]
        heard |= {"notes": [notes], "stragglers": len(straggling), "named": named}
        self.seen[f"{INVALID} {stream.name}"] = counts
        self.seen[f"{late_split.HEARD} {stream.name}"] = heard

    def work(self) -> None:
        """One attempt of the tasks."""
        self._attempts += 1
        match self._name:
            case "counts" | "ready":
                rows = self._windows()
                logic: Logic = CompleteRows() if self._name == "ready" else ChangedRows()
            case "totals":
                rows, logic = self._totals(), ChangedRows()
            case "newest":
                logic = ChangedRows()
                rows = [
                    {"_key": key, "_value": value, ORDER: event.offset}
                    for event in self._kept
                    for key, value in [rows_of("newest", event.key, event.time_us)]
                ]
            case _:
                logic = AppendedRows()
                rows = [
                    {"_key": key, "_value": value}
                    for event in self._kept
                    for key, value in [rows_of("all", event.key, event.partition, event.offset)]
                ]
        for batch in self._answers(PUBLISH, logic, rows, NO_ROWS):
            self.notes += [note for note in batch.column(FILE).to_pylist() if note is not None]

    def _windows(self) -> list[dict[str, Any]]:
        state = dict(self._query.state(self._plan.batch))
        changed = {}
        for event in self._kept:
            end_ms = (event.window + WINDOW_US) // 1000
            if end_ms <= self._dropped_ms:
                continue
            name = f"{event.key}@{event.window}"
            state[name] = state.get(name, 0) + 1
            changed[name] = event
        self.state = {
            name: count
            for name, count in state.items()
            if (int(name.partition("@")[2]) + WINDOW_US) // 1000 > self._forgotten_ms
        }
        made = []
        for name, event in changed.items():
            key, value = rows_of("counts", event.key, event.window, state[name])
            made.append({"_key": key, "_value": value, "_until": event.window + WINDOW_US})
        return made

    def _totals(self) -> list[dict[str, Any]]:
        """By an operator of ours, whose rows are then published."""
        rows = [{"_key": event.key.encode(), "key": event.key} for event in self._kept]
        made, notes = [], []
        for batch in self._answers(COUNTED, Count(key=("key",)), rows, COUNTED_ROWS):
            for row in batch.to_pylist():
                if row[FILE] is not None:
                    notes.append(row[FILE])
                else:
                    key, value = rows_of("totals", row["key"], row["count"])
                    made.append({"_key": key, "_value": value})
        before = self.seen.get(f"{OBSERVED} {COUNTED}", {"files": []})["files"]
        self.seen[f"{OBSERVED} {COUNTED}"] = {"files": [*before, *notes]}
        return made

    def _answers(
        self, name: str, logic: Logic, rows: list[dict[str, Any]], kind: StructType
    ) -> Iterator[pa.RecordBatch]:
        shards = self._query.prepared.shards
        for row in rows:
            row["_shard"] = crc32(row["_key"]) % shards
        if logic.timed and self._ticked:
            rows = [*rows, *({"_key": None, "_shard": number} for number in range(shards))]
        if not rows:
            return
        columns = list(dict.fromkeys(name for row in rows for name in row))
        if logic.timed and "_value" not in columns:
            columns += ["_value", "_until"]
        table = pa.table(
            {
                name: pa.array([row.get(name) for row in rows], KINDS.get(name, pa.string()))
                for name in columns
            }
        )
        for number in range(shards):  # a task has one shard, or several
            mine = table.filter(pc.equal(table.column("_shard"), number))
            if mine.num_rows:
                yield from answers(name, logic, mine.to_batches(), self._plan, to_arrow(kind))
